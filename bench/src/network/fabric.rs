//! Namespaces and wires to measure on: a host, the internet behind it, and servers there.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::links;

pub const PUBLIC: Ipv4Addr = Ipv4Addr::new(1, 2, 3, 4);
const HOST: Ipv4Addr = Ipv4Addr::new(7, 7, 7, 1);
const UPSTREAM: Ipv4Addr = Ipv4Addr::new(7, 7, 7, 2);
/// A wire beside it, and its two ends.
const PLAIN: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 0);
const NEAR: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 2);
/// Reads all it is sent, and says when that is over.
pub const SINK: u16 = 9;
/// Says one byte and holds the connection.
pub const GREETER: u16 = 22;
/// After as many more, those who went are let go.
const GUESTS_LOOKED_AT: usize = 500;
const CHUNK: usize = 256 * 1024;
/// Nothing here takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace, gone when nobody holds it.
pub struct Namespace(File);

impl Namespace {
    pub fn new() -> Result<Self> {
        let made = std::thread::spawn(|| {
            // SAFETY: what changes is the network of this thread, which ends here and shares no descriptors less.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net")
        });
        let file = made
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let namespace = Self(file.context("make a network namespace; that takes root")?);
        links::bring_up(&namespace, "lo")?;
        Ok(namespace)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub fn handle(&self) -> Result<File> {
        Ok(self.0.try_clone()?)
    }

    /// Runs `work` on a thread inside.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(&self.0);
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

/// One end of a wire: where, its interface and its address.
type End<'a> = (&'a Namespace, &'a str, Ipv4Addr);

fn wire(one: End<'_>, other: End<'_>, bits: u8) -> Result<()> {
    links::pair((one.0, one.1), (other.0, other.1))?;
    for (inside, link, address) in [one, other] {
        links::set_address(inside, link, address, bits)?;
        links::bring_up(inside, link)?;
    }
    Ok(())
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
        let (host, internet) = (Namespace::new()?, Namespace::new()?);
        wire((&host, "up0", HOST), (&internet, "eth0", UPSTREAM), 24)?;
        links::set_address(&internet, "lo", PUBLIC, 32)?;
        links::add_route(&host, Ipv4Addr::UNSPECIFIED, 0, UPSTREAM)?;
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
        let inside = Namespace::new()?;
        wire((&self.host, "wire0", NEAR), (&inside, "eth0", FAR), 30)?;
        links::add_route(&inside, Ipv4Addr::UNSPECIFIED, 0, NEAR)?;
        links::add_route(&self.internet, PLAIN, 30, HOST)?;
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
