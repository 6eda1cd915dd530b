//! Namespaces and wires to measure on: a host, the internet behind it, and servers there.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub const PUBLIC: Ipv4Addr = Ipv4Addr::new(1, 2, 3, 4);
const HOST: Ipv4Addr = Ipv4Addr::new(7, 7, 7, 1);
const UPSTREAM: Ipv4Addr = Ipv4Addr::new(7, 7, 7, 2);
/// Reads all it is sent, and says when that is over.
pub const SINK: u16 = 9;
/// Says one byte and holds the connection.
pub const GREETER: u16 = 22;
/// After as many more, those who went are let go.
const GUESTS_LOOKED_AT: usize = 500;
const CHUNK: usize = 256 * 1024;
/// Nothing here takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .context("run ip, of iproute2")?;
    ensure!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// A network namespace, removed when dropped.
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    pub fn new(role: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("covebench-{role}-{}-{count}", std::process::id());
        ip(&format!("netns add {name}"))?;
        let file = File::open(format!("/run/netns/{name}"))?;
        let namespace = Self { name, file };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub fn handle(&self) -> Result<File> {
        Ok(self.file.try_clone()?)
    }

    fn ip(&self, arguments: &str) -> Result<()> {
        ip(&format!("-n {} {arguments}", self.name))
    }

    /// Runs `work` on a thread inside.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(&self.file);
                work()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Moves this thread; for threads that stay.
pub fn enter(namespace: &File) {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("root may enter a namespace");
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nothing depends on it; what stays is seen by `ip netns`.
        let _ = ip(&format!("netns del {}", self.name));
    }
}

/// A host and the internet behind it, with its servers.
pub struct Fabric {
    pub host: Namespace,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    internet: Namespace,
}

impl Fabric {
    pub fn new() -> Result<Self> {
        let (host, internet) = (Namespace::new("host")?, Namespace::new("net")?);
        ip(&format!(
            "link add up0 netns {} type veth peer name eth0 netns {}",
            host.name, internet.name
        ))?;
        host.ip(&format!("addr add {HOST}/24 dev up0"))?;
        host.ip("link set up0 up")?;
        internet.ip(&format!("addr add {UPSTREAM}/24 dev eth0"))?;
        internet.ip(&format!("addr add {PUBLIC}/32 dev lo"))?;
        internet.ip("link set eth0 up")?;
        host.ip(&format!("route add default via {UPSTREAM}"))?;
        let mut fabric = Self {
            host,
            internet,
            stop: Arc::default(),
            threads: Vec::new(),
        };
        fabric.serve(SINK, |mut stream| {
            let mut buffer = vec![0; CHUNK];
            while stream.read(&mut buffer)? > 0 {}
            stream.write_all(b"!")
        })?;
        fabric.greet()?;
        Ok(fabric)
    }

    /// A namespace with nothing but a wire and a route to the host, as any router has.
    pub fn plain(&self) -> Result<Namespace> {
        let inside = Namespace::new("plain")?;
        ip(&format!(
            "link add wire0 netns {} type veth peer name eth0 netns {}",
            self.host.name, inside.name
        ))?;
        self.host.ip("addr add 9.9.9.1/30 dev wire0")?;
        self.host.ip("link set wire0 up")?;
        inside.ip("addr add 9.9.9.2/30 dev eth0")?;
        inside.ip("link set eth0 up")?;
        inside.ip("route add default via 9.9.9.1")?;
        self.internet
            .ip(&format!("route add 9.9.9.0/30 via {HOST}"))?;
        self.host
            .enter(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?;
        Ok(inside)
    }

    fn listener(&self, port: u16) -> Result<TcpListener> {
        let listener = self.internet.enter(|| {
            let socket = rustix::net::socket(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::STREAM,
                None,
            )?;
            rustix::net::bind(&socket, &SocketAddr::from((PUBLIC, port)))?;
            rustix::net::listen(&socket, 4096)?;
            io::Result::Ok(TcpListener::from(socket))
        })?;
        Ok(listener)
    }

    /// A byte for everybody who comes, and then nothing more until they go. No thread for each: there are
    /// thousands.
    fn greet(&mut self) -> Result<()> {
        let listener = self.listener(GREETER)?;
        let stop = Arc::clone(&self.stop);
        self.threads.push(std::thread::spawn(move || {
            let mut kept: Vec<TcpStream> = Vec::new();
            let mut room = GUESTS_LOOKED_AT;
            while let Ok((mut stream, _)) = listener.accept() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                // Who cannot be greeted sees it.
                let greeted = stream.write_all(b"!").is_ok();
                if greeted && stream.set_nonblocking(true).is_ok() {
                    kept.push(stream);
                }
                if kept.len() >= room {
                    let waits = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
                    kept.retain(|stream| stream.peek(&mut [0]).is_err_and(waits));
                    room = kept.len() + GUESTS_LOOKED_AT;
                }
            }
        }));
        Ok(())
    }

    fn serve(&mut self, port: u16, work: fn(TcpStream) -> io::Result<()>) -> Result<()> {
        let listener = self.listener(port)?;
        let stop = Arc::clone(&self.stop);
        self.threads.push(std::thread::spawn(move || {
            let small = || std::thread::Builder::new().stack_size(64 * 1024);
            while let Ok((stream, _)) = listener.accept() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                // A connection that cannot be served is seen by who made it.
                let _ = small().spawn(move || work(stream));
            }
        }));
        Ok(())
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.internet.enter(|| {
            for port in [SINK, GREETER] {
                let _ = TcpStream::connect((PUBLIC, port));
            }
        });
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(PUBLIC, port).into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Bytes a second from inside to the internet.
pub fn throughput(inside: &Namespace, time: Duration) -> Result<f64> {
    inside.enter(|| {
        let mut stream = connect(SINK)?;
        let chunk = vec![b'x'; CHUNK];
        let (begun, mut sent) = (Instant::now(), 0u64);
        while begun.elapsed() < time {
            stream.write_all(&chunk)?;
            sent += CHUNK as u64;
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.read_exact(&mut [0])?;
        Ok(sent as f64 / begun.elapsed().as_secs_f64())
    })
}

/// From the call to the first byte of the server.
pub fn greeted(inside: &Namespace) -> Result<Duration> {
    inside.enter(|| {
        let begun = Instant::now();
        hold_one()?;
        Ok(begun.elapsed())
    })
}

fn hold_one() -> io::Result<TcpStream> {
    let mut stream = connect(GREETER)?;
    stream.read_exact(&mut [0])?;
    Ok(stream)
}

/// Connections that carry nothing more.
pub fn hold(inside: &Namespace, count: usize) -> Result<Vec<TcpStream>> {
    inside.enter(|| (0..count).map(|_| Ok(hold_one()?)).collect())
}
