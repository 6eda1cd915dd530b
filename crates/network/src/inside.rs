//! Work inside a sandbox's network namespace, on a thread that goes there and ends there.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::address::INSIDE;
use crate::link::local_address;
use crate::netlink::Socket;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Runs `work` in the namespace.
pub fn run<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .spawn_scoped(scope, || {
                move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
                work()
            })?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread in the namespace panicked")))
    })
}

/// Settings that must hold before the interface is there, and a socket to set up the rest with.
pub fn prepare(namespace: BorrowedFd<'_>) -> io::Result<Socket> {
    run(namespace, || {
        // New interfaces get no IPv6 at all; loopback, which is there already, keeps its own.
        write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")?;
        Socket::route()
    })
}

/// Lets these groups, by the host's numbers, ping; the policy decides what becomes of it.
pub fn let_ping(namespace: BorrowedFd<'_>, groups: RangeInclusive<u32>) -> io::Result<()> {
    let groups = format!("{} {}", groups.start(), groups.end());
    run(namespace, || {
        write("/proc/sys/net/ipv4/ping_group_range", &groups)
    })
}

/// Makes an address one of the loopback's, in the namespace of the calling thread. Done already is well.
pub fn make_local(address: Ipv4Addr) -> io::Result<()> {
    let mut routes = Socket::route()?;
    local_address(&mut routes, address, 0, true).map_err(io::Error::other)
}

/// Listens at an address of the sandbox's own loopback. Programs in this namespace connect to it from that address
/// or from 127/8; the kernel takes packets with such sources from no other interface, so that whoever checks the
/// peer's address has none from outside. The namespace lives as long as the listener.
pub fn listen(namespace: BorrowedFd<'_>, address: SocketAddrV4) -> io::Result<TcpListener> {
    run(namespace, || {
        make_local(*address.ip())?;
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK,
            None,
        )?;
        // After an engine that died, connections of its listener may linger.
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &address)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(TcpListener::from(socket))
    })
}

/// Whether the interface of a sandbox is all set up: its route comes last.
pub fn is_attached(namespace: BorrowedFd<'_>) -> io::Result<bool> {
    let everywhere = format!("{INSIDE}\t00000000\t");
    run(namespace, || {
        let routes = fs::read_to_string("/proc/thread-self/net/route")?;
        Ok(routes.lines().any(|route| route.starts_with(&everywhere)))
    })
}

fn write(path: &str, value: &str) -> io::Result<()> {
    match fs::write(path, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
