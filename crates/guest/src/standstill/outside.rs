//! Connections of a restored machine that lead out of it. They are the original's: the other side knows nothing of a copy.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{connect_unspec, getpeername, getsockname, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Programs find them reset. They stand still meanwhile, so that none of them notices how.
pub fn hang_up(own: Ipv4Addr) {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        if let Some(pid) = pid.filter(|pid| *pid > 1).and_then(Pid::from_raw) {
            hang_up_of(pid, own);
        }
    }
}

/// What is gone meanwhile has no connections.
fn hang_up_of(pid: Pid, own: Ipv4Addr) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    let listed = fs::read_dir(format!("/proc/{pid}/fd"));
    for entry in listed.into_iter().flatten().flatten() {
        let is_socket = fs::read_link(entry.path()).is_ok_and(|target| {
            target
                .as_os_str()
                .as_encoded_bytes()
                .starts_with(b"socket:")
        });
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(number) = number.filter(|_| is_socket) else {
            continue;
        };
        if let Ok(socket) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())
            && leads_out(&socket, own)
        {
            let _ = connect_unspec(&socket);
        }
    }
}

fn leads_out(socket: &OwnedFd, own: Ipv4Addr) -> bool {
    if sockopt::socket_type(socket) != Ok(rustix::net::SocketType::STREAM) {
        return false;
    }
    let from = getsockname(socket)
        .ok()
        .and_then(|it| address(it.try_into().ok()?));
    let to = getpeername(socket.as_fd()).ok().flatten();
    let to = to.and_then(|it| address(it.try_into().ok()?));
    from == Some(own) && to.is_some_and(|to| to != own)
}

fn address(found: SocketAddr) -> Option<Ipv4Addr> {
    match found.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(address) => address.to_ipv4_mapped(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_connections_from_the_own_address_to_others_lead_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let port = listener.local_addr().expect("an address").port();
        let mut connected = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        // The loopback has more addresses than one.
        let other = TcpListener::bind("127.0.0.2:0").expect("listens");
        let port = other.local_addr().expect("an address").port();
        let out = TcpStream::connect(("127.0.0.2", port)).expect("connected");
        let (inside, out) = (
            OwnedFd::from(connected.try_clone().expect("a copy")),
            OwnedFd::from(out),
        );
        let own = Ipv4Addr::LOCALHOST;
        assert!(!leads_out(&inside, own));
        assert!(!leads_out(&inside, Ipv4Addr::new(198, 19, 0, 2)));
        assert!(!leads_out(&listener.into(), own));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
        socket.connect("127.0.0.2:9").expect("connected");
        assert!(!leads_out(&socket.into(), own));
        let from = getsockname(&out)
            .ok()
            .and_then(|it| address(it.try_into().ok()?));
        assert!(leads_out(&out, from.expect("an address")));
        connect_unspec(&out).expect("disconnected");
        assert!(!leads_out(&out, own), "it leads nowhere any more");
        connect_unspec(&inside).expect("disconnected");
        let ended = connected.read(&mut [0]);
        assert!(ended.is_err(), "{ended:?}");
    }
}
