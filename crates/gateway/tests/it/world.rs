//! Three network namespaces made for one test: an internet with its own servers, a host with the
//! gateway and the packet filter's redirection, and a sandbox. They are held by descriptors only,
//! so they are gone when the test is, however it ends.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cove_gateway::dns::wire::{self, Answer, Record};
use cove_gateway::host::{Gateway, GatewayConfig, PackageHosts, Presets};
use cove_gateway::limits::Limits;
use cove_model::egress::{EgressEntry, EgressQuery, EgressVerdict};
use cove_model::network::Entry;
use cove_model::network::Name;
use cove_model::{NetworkMode, NetworkPolicy, SandboxId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

pub const PATIENCE: Duration = Duration::from_secs(120);

pub const GOOD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
pub const EVIL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 20);
pub const DATABASE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 30);
/// Throws away what it is sent, on port 443.
pub const SINK: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 40);
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 53);
pub const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
/// The host's own address towards the internet.
pub const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
pub const SANDBOX: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
/// The address of another sandbox, in the same namespace for simplicity.
pub const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 3);
/// A port of the good server whose connections are held and not spoken on.
pub const IDLE: u16 = 7000;
/// An address at which nobody was placed.
pub const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 9);

pub struct Namespace(File);

impl Namespace {
    fn new() -> Self {
        let made = std::thread::spawn(|| {
            // SAFETY: only this thread's network namespace changes, and the thread ends here.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        Self(made.join().unwrap())
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                self.enter();
                work()
            });
            worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub fn command(&self, program: &str, arguments: &[&str], input: &str) {
        let mut child = Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success(), "{program} failed");
    }
}

/// What the servers of the internet saw.
#[derive(Default)]
pub struct Seen {
    pub questions: Mutex<Vec<String>>,
    pub requests: Mutex<Vec<String>>,
    pub connections: Mutex<Vec<SocketAddrV4>>,
}

impl Seen {
    pub fn asked(&self, name: &str) -> bool {
        self.questions.lock().unwrap().iter().any(|it| it == name)
    }

    pub fn connected(&self, to: Ipv4Addr) -> bool {
        let connections = self.connections.lock().unwrap();
        connections.iter().any(|address| *address.ip() == to)
    }
}

type Zone = Arc<Mutex<BTreeMap<String, Vec<Ipv4Addr>>>>;

pub struct World {
    pub internet: Namespace,
    pub host: Arc<Namespace>,
    pub sandbox: Namespace,
    pub seen: Arc<Seen>,
    pub zone: Zone,
    pub runtime: tokio::runtime::Runtime,
    pub config: GatewayConfig,
    gateway: Option<Gateway>,
    pub id: SandboxId,
    stop: Arc<AtomicBool>,
    _directory: tempfile::TempDir,
}

impl World {
    pub fn new(allow: &[&str]) -> Self {
        Self::with(allow, Limits::default())
    }

    pub fn with(allow: &[&str], limits: Limits) -> Self {
        let internet = Namespace::new();
        let host = Arc::new(Namespace::new());
        let sandbox = Namespace::new();
        wire_up(&internet, &host, &sandbox);
        let directory = tempfile::tempdir().unwrap();
        let runtime = {
            let host = host.clone();
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .on_thread_start(move || host.enter())
                .enable_all()
                .build()
                .unwrap()
        };
        let config = GatewayConfig {
            terminations: Default::default(),
            owners: Default::default(),
            program: cove_embedded::GATEWAY,
            directory: directory.path().join("gateway"),
            instance: "test".into(),
            uid: 65_533,
            gid: 65_533,
            dns: SocketAddrV4::new(GATEWAY, 5353),
            proxy: SocketAddrV4::new(GATEWAY, 4443),
            resolvers: vec![(RESOLVER, 53).into()],
            resolv_conf: PathBuf::from("/nonexistent"),
            presets: Presets {
                tenant_ranges: Vec::new(),
                file: None,
                packages: PackageHosts {
                    root: PathBuf::from("/nonexistent"),
                    home: None,
                    ask_tools: None,
                    ..PackageHosts::default()
                },
            },
            reserved: vec!["10.200.0.0/24".parse().unwrap()],
            limits,
        };
        let mut world = Self {
            internet,
            host,
            sandbox,
            seen: Arc::default(),
            zone: Arc::default(),
            runtime,
            config,
            gateway: None,
            id: SandboxId::random(),
            stop: Arc::default(),
            _directory: directory,
        };
        for (name, address) in [
            ("good.example", GOOD),
            ("also.good.example", GOOD),
            ("evil.example", EVIL),
            ("db.example", DATABASE),
            ("sink.example", SINK),
            ("internal.example", PRIVATE),
            ("rebind.example", Ipv4Addr::LOCALHOST),
            ("metadata.example", Ipv4Addr::new(169, 254, 169, 254)),
            ("host.example", HOST),
            ("sandbox.example", SANDBOX),
        ] {
            world.name(name, &[address]);
        }
        world.serve();
        let placed = vec![(SANDBOX, world.id.clone(), allowing(allow))];
        world.start(placed);
        world
    }

    pub fn name(&self, name: &str, addresses: &[Ipv4Addr]) {
        let mut zone = self.zone.lock().unwrap();
        zone.insert(name.to_owned(), addresses.to_vec());
    }

    /// Another engine: the one before, if any, is gone, as its process would be.
    pub fn start(&mut self, placed: Vec<(Ipv4Addr, SandboxId, NetworkPolicy)>) {
        if let Some(before) = self.gateway.take() {
            self.runtime.block_on(before.let_go());
        }
        let config = self.config.clone();
        let started = self
            .runtime
            .block_on(async { tokio::spawn(Gateway::start(config, placed)).await.unwrap() });
        self.gateway = Some(started.unwrap());
    }

    pub fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }

    /// Runs a call of the gateway's handle inside the host's namespace.
    pub fn on_host<T: Send + 'static>(
        &self,
        call: impl AsyncFnOnce(Gateway) -> T + Send + 'static,
    ) -> T {
        let gateway = self.gateway().clone();
        let handle = self.runtime.handle().clone();
        self.host.run(move || handle.block_on(call(gateway)))
    }

    pub fn allow(&self, allow: &[&str]) {
        let (id, policy) = (self.id.clone(), allowing(allow));
        self.on_host(async move |gateway: Gateway| {
            gateway.set_policy(SANDBOX, &id, &policy).await.unwrap();
        });
    }

    pub fn log(&self) -> Vec<EgressEntry> {
        let query = EgressQuery {
            sandbox: self.id.clone(),
            after: 0,
            limit: 1000,
            wait_ms: 0,
            verdict: None,
        };
        self.on_host(async move |gateway: Gateway| gateway.egress(query).await.unwrap())
            .entries
    }

    /// The newest entry with that name, once there is one.
    pub fn logged(&self, name: &str, verdict: EgressVerdict) -> EgressEntry {
        wait_for(&format!("a log entry of {name}"), || {
            self.log()
                .into_iter()
                .rev()
                .find(|it| it.name.as_deref() == Some(name) && it.verdict == verdict)
        })
    }

    /// The newest denied connection to that address, once there is one.
    pub fn denied_at(&self, address: Ipv4Addr) -> EgressEntry {
        wait_for(&format!("a denial at {address}"), || {
            self.log().into_iter().rev().find(|it| {
                it.address == Some(address.into()) && it.verdict == EgressVerdict::Denied
            })
        })
    }

    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.sandbox.run(work)
    }

    fn serve(&self) {
        let (seen, zone, stop) = (self.seen.clone(), self.zone.clone(), self.stop.clone());
        self.internet.run(move || {
            let socket = UdpSocket::bind((RESOLVER, 53)).unwrap();
            background(&stop, {
                let (seen, zone) = (seen.clone(), zone.clone());
                move || answer(&socket, &seen, &zone)
            });
            for address in [GOOD, EVIL, PRIVATE] {
                listen(&stop, &seen, address, 80, web);
                listen(&stop, &seen, address, 443, second);
                listen(&stop, &seen, address, 853, second);
            }
            for (address, port) in [(DATABASE, 5432), (EVIL, 5432), (GOOD, 22), (PRIVATE, 5432)] {
                listen(&stop, &seen, address, port, first);
            }
            listen(&stop, &seen, SINK, 443, sink);
            listen(&stop, &seen, SINK, 5432, first);
            let held = Mutex::new(Vec::new());
            let listener = TcpListener::bind((GOOD, IDLE)).unwrap();
            listener.set_nonblocking(true).unwrap();
            background(&stop, move || {
                if let Some(mut stream) = accept(&listener) {
                    stream.write_all(b"!").unwrap();
                    held.lock().unwrap().push(stream);
                }
            });
        });
        // Services of the host itself, which nobody may reach.
        let (seen, stop) = (self.seen.clone(), self.stop.clone());
        self.host.run(move || {
            for port in [80, 443, 5432] {
                listen(&stop, &seen, HOST, port, first);
            }
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            let handle = self.runtime.handle().clone();
            self.host.run(move || {
                let _ = handle.block_on(gateway.stop());
            });
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}

pub fn allowing(allow: &[&str]) -> NetworkPolicy {
    NetworkPolicy {
        mode: NetworkMode::Allowlist,
        allow: Some(Entry::list(allow.iter().copied()).unwrap()),
        ..NetworkPolicy::default()
    }
}

pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

fn wire_up(internet: &Namespace, host: &Namespace, sandbox: &Namespace) {
    let links = format!(
        "link set lo up\n\
         link add up0 type veth peer name inet0 netns {}\n\
         link add sb0 type veth peer name eth0 netns {}\n\
         addr add {HOST}/24 dev up0\n\
         addr add 10.66.0.2/24 dev up0\n\
         addr add {GATEWAY}/24 dev sb0\n\
         link set up0 up\n\
         link set sb0 up\n",
        internet.path(),
        sandbox.path()
    );
    host.command("ip", &["-batch", "-"], &links);
    let mut addresses = String::from("link set lo up\nlink set inet0 up\n");
    for address in [GOOD, EVIL, DATABASE, SINK, RESOLVER] {
        addresses += &format!("addr add {address}/24 dev inet0\n");
    }
    addresses += &format!("addr add {PRIVATE}/24 dev inet0\n");
    internet.command("ip", &["-batch", "-"], &addresses);
    let mut inside = String::from("link set lo up\nlink set eth0 up\n");
    for address in [SANDBOX, NEIGHBOUR, STRANGER] {
        inside += &format!("addr add {address}/24 dev eth0\n");
    }
    inside += &format!("route add default via {GATEWAY}\n");
    sandbox.command("ip", &["-batch", "-"], &inside);
    let rules = format!(
        "table ip redirection {{
            chain prerouting {{
                type nat hook prerouting priority -100;
                iifname sb0 udp dport 53 dnat to {GATEWAY}:5353
                iifname sb0 tcp dport 53 dnat to {GATEWAY}:5353
                iifname sb0 ip daddr != {GATEWAY} meta l4proto tcp dnat to {GATEWAY}:4443
            }}
        }}\n"
    );
    host.command("nft", &["-f", "-"], &rules);
}

fn background(stop: &Arc<AtomicBool>, work: impl Fn() + Send + 'static) {
    let stop = stop.clone();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            work();
        }
    });
}

fn answer(socket: &UdpSocket, seen: &Seen, zone: &Zone) {
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let mut buffer = [0; 2048];
    let Ok((length, peer)) = socket.recv_from(&mut buffer) else {
        return;
    };
    let Ok(query) = wire::parse_query(&buffer[..length]) else {
        return;
    };
    seen.questions.lock().unwrap().push(query.shown.clone());
    let addresses = zone.lock().unwrap().get(&query.shown).cloned();
    let answer = match (addresses, query.kind) {
        (None, _) => Answer {
            code: wire::NO_SUCH_NAME,
            ..Answer::default()
        },
        (Some(addresses), wire::A) => Answer {
            records: addresses
                .into_iter()
                .map(|address| Record::address(address, 60))
                .collect(),
            ..Answer::default()
        },
        (Some(_), wire::TXT) => Answer {
            records: vec![Record {
                kind: wire::TXT,
                ttl: 60,
                data: b"\x04text".to_vec(),
            }],
            ..Answer::default()
        },
        (Some(_), _) => Answer::default(),
    };
    let _ = socket.send_to(&wire::encode_answer(&query, &answer, 1232), peer);
}

fn listen(
    stop: &Arc<AtomicBool>,
    seen: &Arc<Seen>,
    address: Ipv4Addr,
    port: u16,
    serve: fn(TcpStream, &Seen),
) {
    let listener = TcpListener::bind((address, port)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let seen = seen.clone();
    background(stop, move || {
        if let Some(stream) = accept(&listener) {
            let local = SocketAddrV4::new(address, port);
            seen.connections.lock().unwrap().push(local);
            let seen = seen.clone();
            std::thread::spawn(move || serve(stream, &seen));
        }
    });
}

/// The next connection, if one comes soon: whoever waits looks now and then whether it should end.
fn accept(listener: &TcpListener) -> Option<TcpStream> {
    let soon = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 200_000_000,
    };
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut fds, Some(&soon)).ok()?;
    let (stream, _) = listener.accept().ok()?;
    stream.set_nonblocking(false).unwrap();
    Some(stream)
}

/// A server that speaks first, then echoes.
fn first(mut stream: TcpStream, _: &Seen) {
    let local = stream.local_addr().unwrap();
    if stream
        .write_all(format!("from {local}\n").as_bytes())
        .is_ok()
    {
        echo(stream);
    }
}

/// A server that waits to be spoken to, says who it is, and echoes.
fn second(mut stream: TcpStream, _: &Seen) {
    let local = stream.local_addr().unwrap();
    let mut buffer = [0; 1];
    if stream.peek(&mut buffer).is_ok_and(|count| count > 0)
        && stream
            .write_all(format!("from {local}\n").as_bytes())
            .is_ok()
    {
        echo(stream);
    }
}

/// A server that reads to the end, and then says so.
fn sink(mut stream: TcpStream, _: &Seen) {
    let mut buffer = vec![0; 1 << 18];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
    let _ = stream.write_all(b"done\n");
}

fn echo(mut stream: TcpStream) {
    let mut reader = stream.try_clone().unwrap();
    let _ = std::io::copy(&mut reader, &mut stream);
    let _ = stream.shutdown(Shutdown::Write);
}

/// Answers each request with who it is and what it was asked.
fn web(stream: TcpStream, seen: &Seen) {
    let local = stream.local_addr().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => head.push(line.trim_end().to_owned()),
            }
        }
        let field = |name: &str| {
            head.iter().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name)
                    .then(|| value.trim().to_owned())
            })
        };
        let length: u64 = field("content-length").map_or(0, |text| text.parse().unwrap());
        let mut body = Vec::new();
        if (&mut reader).take(length).read_to_end(&mut body).is_err() {
            return;
        }
        if field("transfer-encoding").is_some() {
            loop {
                let mut line = String::new();
                match reader.read_line(&mut line) {
                    Ok(0) | Err(_) => return,
                    Ok(_) if line == "0\r\n" => {
                        reader.read_line(&mut line).unwrap();
                        break;
                    }
                    Ok(_) => body.extend(line.bytes()),
                }
            }
        }
        let asked = format!("{} {}", head[0], field("host").unwrap_or_default());
        seen.requests.lock().unwrap().push(asked.clone());
        if field("upgrade").is_some() && head[0].contains("/socket") {
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
            stream.write_all(answer).unwrap();
            return echo(stream);
        }
        if let Some((_, to)) = head[0].split_once("/redirect?to=") {
            let to = to.split(' ').next().unwrap_or_default();
            let answer =
                format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
            continue;
        }
        let text = format!("{local} {asked} {}\n", body.len());
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        );
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

pub fn name(text: &str) -> Name {
    Name::from_text(text).unwrap()
}
