//! Work inside a sandbox's network namespace, on a thread that goes there and ends there.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::netlink::Socket;

/// Runs `work` in the namespace.
pub fn run<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
                work()
            })
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread in the namespace panicked")))
    })
}

/// Settings that must hold before the interface is there, and a socket to set up the rest with.
pub fn prepare(namespace: BorrowedFd<'_>) -> io::Result<Socket> {
    run(namespace, || {
        // New interfaces get no IPv6 at all; loopback, which is there already, keeps its own.
        write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")?;
        // Everybody may ping; the policy decides what becomes of it.
        write("/proc/sys/net/ipv4/ping_group_range", "0 65535")?;
        Socket::route()
    })
}

fn write(path: &str, value: &str) -> io::Result<()> {
    match fs::write(path, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
