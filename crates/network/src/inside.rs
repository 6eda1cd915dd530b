//! Work inside a sandbox's network namespace, on a thread that goes there and ends there.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::address::INSIDE;
use crate::netlink::Socket;

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
