//! Namespaces, the wires between them, and small servers and clients that run in them.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Far above what anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// How long a packet that must not arrive is waited for.
pub const SILENCE: Duration = Duration::from_millis(300);
/// When a datagram counts as lost.
pub const AGAIN: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// Addresses of the internet: one public, some that policies must keep sandboxes from.
pub const PUBLIC: Ipv4Addr = Ipv4Addr::new(1, 2, 3, 4);
pub const OTHER_PUBLIC: Ipv4Addr = Ipv4Addr::new(5, 6, 7, 8);
pub const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 7);
pub const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
pub const SHARED: Ipv4Addr = Ipv4Addr::new(100, 64, 9, 9);
/// The host's own address towards the internet.
pub const HOST: Ipv4Addr = Ipv4Addr::new(7, 7, 7, 1);
const UPSTREAM: Ipv4Addr = Ipv4Addr::new(7, 7, 7, 2);

pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .expect("iproute2 is installed");
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A network namespace with a name, removed when dropped.
pub struct Namespace {
    pub name: String,
    file: File,
}

/// Removes the namespaces of test programs that were killed.
fn sweep() {
    for entry in std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let maker = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.rsplit('-').nth(1));
        if maker.is_some_and(|pid| !std::path::Path::new("/proc").join(pid).exists()) {
            // Another program may sweep at the same time.
            let _ = Command::new("ip").args(["netns", "del", &name]).output();
        }
    }
}

const PREFIX: &str = "covetest-";

impl Namespace {
    pub fn new(role: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SWEPT: std::sync::Once = std::sync::Once::new();
        SWEPT.call_once(sweep);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{role}-{}-{count}", std::process::id());
        ip(&format!("netns add {name}"));
        let file = File::open(format!("/run/netns/{name}")).expect("it was just made");
        let namespace = Self { name, file };
        namespace.ip("link set lo up");
        namespace
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    pub fn ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.name));
    }

    /// Runs a program inside and returns its output, whatever became of it.
    pub fn program(&self, line: &str) -> (bool, String) {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.path()))
            .args(line.split(' '))
            .output()
            .expect("nsenter is installed");
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.success(), text)
    }

    /// Runs `work` on a thread inside.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    move_into_link_name_space(self.fd(), Some(LinkNameSpaceType::Network))
                        .expect("root may enter");
                    work()
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub fn connect(&self, to: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
        self.enter(|| connect(to, port))
    }

    /// From a port of our choice.
    pub fn connect_from(&self, port: u16, to: Ipv4Addr, to_port: u16) -> io::Result<TcpStream> {
        self.enter(|| {
            let socket = rustix::net::socket(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                None,
            )?;
            rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
            rustix::net::connect(&socket, &SocketAddrV4::new(to, to_port))?;
            let stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        })
    }

    pub fn udp(&self) -> UdpSocket {
        self.enter(|| udp(0))
    }

    pub fn udp_from(&self, port: u16) -> UdpSocket {
        self.enter(|| udp(port))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .output();
    }
}

fn udp(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).expect("a port is free");
    socket
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout can be set");
    socket
}

fn connect(to: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((to, port)), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a line and reads what comes back.
pub fn exchange(stream: &mut TcpStream, line: &str) -> io::Result<String> {
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\n") {
        if stream.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        text.extend(byte);
    }
    Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
}

/// Sends a datagram and waits for its echo; again, since a busy machine loses some.
pub fn echo(socket: &UdpSocket, to: Ipv4Addr, port: u16, text: &str) -> io::Result<String> {
    socket.connect((to, port))?;
    socket.set_read_timeout(Some(AGAIN))?;
    let mut buffer = vec![0; 65_536];
    let deadline = Instant::now() + PATIENCE;
    loop {
        socket.send(text.as_bytes())?;
        match socket.recv(&mut buffer) {
            Ok(read) => return Ok(String::from_utf8_lossy(&buffer[..read]).into_owned()),
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
}

/// Servers in a namespace that answer with who asked; they end when dropped.
pub struct Servers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Echoes over TCP and UDP on a port of the namespace's addresses: `peer-address text`.
    pub fn echo(namespace: &Namespace, addresses: &[Ipv4Addr], port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        // A datagram's answer must come from the address it went to.
        let (tcp, udp) = namespace.enter(|| {
            let udp: Vec<UdpSocket> = addresses
                .iter()
                .map(|address| UdpSocket::bind((*address, port)).expect("the port is free"))
                .collect();
            (
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("the port is free"),
                udp,
            )
        });
        tcp.set_nonblocking(true).expect("sockets can be");
        let ended = Arc::clone(&stop);
        let accepting = std::thread::spawn(move || {
            let mut open = Vec::new();
            while !ended.load(Ordering::Acquire) {
                match tcp.accept() {
                    Ok((stream, peer)) => {
                        let ended = Arc::clone(&ended);
                        open.push(std::thread::spawn(move || serve(stream, peer, &ended)));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            for thread in open {
                let _ = thread.join();
            }
        });
        let mut threads = vec![accepting];
        for udp in udp {
            udp.set_read_timeout(Some(POLL))
                .expect("a timeout can be set");
            let ended = Arc::clone(&stop);
            threads.push(std::thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while !ended.load(Ordering::Acquire) {
                    if let Ok((read, peer)) = udp.recv_from(&mut buffer) {
                        let mut answer = format!("{} ", peer.ip()).into_bytes();
                        answer.extend(&buffer[..read]);
                        let _ = udp.send_to(&answer, peer);
                    }
                }
            }));
        }
        Self { stop, threads }
    }
}

impl Servers {
    /// Answers every request with the host it was for and the address it came to, then hangs up.
    pub fn web(namespace: &Namespace, port: u16) -> Self {
        let listener = namespace
            .enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("the port is free"));
        listener.set_nonblocking(true).expect("sockets can be");
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let _ = page(stream);
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Self {
            stop,
            threads: vec![thread],
        }
    }
}

fn page(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? == 1 {
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let host = head
        .lines()
        .find_map(|line| line.strip_prefix("Host: "))
        .unwrap_or_default();
    let body = format!("for {host} at {}\n", stream.local_addr()?.ip());
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn serve(mut stream: TcpStream, peer: SocketAddr, ended: &AtomicBool) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_read_timeout(Some(POLL));
    let mut buffer = [0; 4096];
    while !ended.load(Ordering::Acquire) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => {
                let mut answer = format!("{} ", peer.ip()).into_bytes();
                answer.extend(&buffer[..read]);
                if stream.write_all(&answer).is_err() {
                    return;
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) => {}
            Err(_) => return,
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Takes a connection's first byte for what is wanted: `u` reads to the end and answers, anything else
/// is a number of bytes to send, in eight bytes.
pub struct Transfers {
    pub port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Transfers {
    pub fn serve(namespace: &Namespace, address: Ipv4Addr, port: u16) -> Self {
        Self::with(namespace, address, port, |mut stream| {
            let mut order = [0; 9];
            stream.read_exact(&mut order)?;
            let bytes = u64::from_be_bytes(order[1..].try_into().expect("eight bytes"));
            if order[0] == b'u' {
                io::copy(&mut Read::by_ref(&mut stream).take(bytes), &mut io::sink())?;
                stream.write_all(b"k")
            } else {
                io::copy(&mut io::repeat(b'x').take(bytes), &mut stream).map(drop)
            }
        })
    }

    fn with(
        namespace: &Namespace,
        address: Ipv4Addr,
        port: u16,
        work: fn(TcpStream) -> io::Result<()>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let listener =
            namespace.enter(|| TcpListener::bind((address, port)).expect("the port is free"));
        listener.set_nonblocking(true).expect("sockets can be");
        let ended = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let _ = stream.set_nonblocking(false);
                        let _ = stream.set_read_timeout(Some(PATIENCE));
                        let _ = stream.set_write_timeout(Some(PATIENCE));
                        let _ = work(stream);
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Self {
            port,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Moves bytes one way and waits for the end.
pub fn transfer(mut stream: TcpStream, upload: bool, bytes: usize) {
    let mut order = vec![if upload { b'u' } else { b'd' }];
    order.extend((bytes as u64).to_be_bytes());
    stream.write_all(&order).expect("it is open");
    if upload {
        let mut source = io::repeat(b'x').take(bytes as u64);
        io::copy(&mut source, &mut stream).expect("it is open");
        stream.read_exact(&mut [0]).expect("it is taken in");
    } else {
        let read = io::copy(&mut stream.take(bytes as u64), &mut io::sink());
        assert_eq!(read.expect("it is open"), bytes as u64);
    }
}

/// Talks without being asked, until nobody listens any more.
pub struct Talker {
    pub port: u16,
    _server: Transfers,
}

impl Talker {
    pub fn serve(namespace: &Namespace, address: Ipv4Addr, port: u16) -> Self {
        let server = Transfers::with(namespace, address, port, |mut stream| {
            // Who was cut off takes nothing more, and the server has to end.
            stream.set_write_timeout(Some(SILENCE * 4))?;
            loop {
                stream.write_all(&[b'z'; 1024])?;
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            port,
            _server: server,
        }
    }
}

/// A host and the internet behind it, with echo servers on port 7 and 443.
pub struct World {
    pub host: Namespace,
    pub internet: Namespace,
    _servers: Vec<Servers>,
}

pub const ECHO: u16 = 7;

impl World {
    pub fn new() -> Self {
        let host = Namespace::new("host");
        let internet = Namespace::new("net");
        ip(&format!(
            "link add up0 netns {} type veth peer name eth0 netns {}",
            host.name, internet.name
        ));
        host.ip(&format!("addr add {HOST}/24 dev up0"));
        host.ip("link set up0 up");
        internet.ip(&format!("addr add {UPSTREAM}/24 dev eth0"));
        let addresses = [PUBLIC, OTHER_PUBLIC, PRIVATE, METADATA, SHARED];
        for address in addresses {
            internet.ip(&format!("addr add {address}/32 dev lo"));
        }
        internet.ip("link set eth0 up");
        host.ip(&format!("route add default via {UPSTREAM}"));
        let servers = vec![
            Servers::echo(&internet, &addresses, ECHO),
            Servers::echo(&internet, &addresses, 443),
            Servers::echo(&host, &[HOST], ECHO),
        ];
        Self {
            host,
            internet,
            _servers: servers,
        }
    }
}

/// An echo request and whether its answer comes.
pub fn ping(namespace: &Namespace, to: Ipv4Addr) -> io::Result<()> {
    const ECHO_REQUEST: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 1];
    namespace.enter(|| {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::DGRAM,
            Some(rustix::net::ipproto::ICMP),
        )?;
        let patience = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&socket, patience, Some(PATIENCE))?;
        rustix::net::connect(&socket, &SocketAddrV4::new(to, 0))?;
        rustix::net::send(&socket, &ECHO_REQUEST, rustix::net::SendFlags::empty())?;
        let mut answer = [0u8; 64];
        rustix::net::recv(&socket, &mut answer[..], rustix::net::RecvFlags::empty())?;
        Ok(())
    })
}
