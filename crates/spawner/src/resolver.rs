//! The address of the host's resolver inside: one of the loopback's own as long as the sandbox has no network, so that
//! the guest can refuse names there. The host takes it away where it makes an interface.

use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// What the engine writes before the address, among the directories it names.
const ARGUMENT: &str = cove_spawner::RESOLVER_ARGUMENT;
/// What `cove_network` calls it.
const INTERFACE: &str = "eth0";
const LOOPBACK_INDEX: u32 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const TABLE_LOCAL: u8 = 255;
const PROTOCOL_STATIC: u8 = 4;
const SCOPE_HOST: u8 = 254;
const ROUTE_LOCAL: u8 = 2;

/// The address that the engine gave this program.
pub fn given() -> Option<Ipv4Addr> {
    std::env::args()
        .skip(1)
        .find_map(|argument| argument.strip_prefix(ARGUMENT)?.parse().ok())
}

pub fn other_arguments() -> impl Iterator<Item = String> {
    std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with(ARGUMENT))
}

/// Makes the address local, unless the engine has made an interface: it has done so before the start, or not at all.
pub fn keep_inside(address: Ipv4Addr) -> Result<(), Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    match rustix::net::netdevice::name_to_index(&socket, INTERFACE) {
        Err(Errno::NODEV) => make_local(&socket, address),
        found => found.map(drop),
    }
}

/// One request over rtnetlink, and its acknowledgement: a local route, which needs no interface of its own.
fn make_local(socket: &OwnedFd, address: Ipv4Addr) -> Result<(), Errno> {
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(socket, &request(address), SendFlags::empty(), &kernel)?;
    let mut answer = [0_u8; 256];
    let (length, _) = rustix::net::recv(socket, &mut answer[..], RecvFlags::empty())?;
    acknowledged(&answer[..length])
}

fn request(address: Ipv4Addr) -> Vec<u8> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE) as u16;
    let mut request = vec![0; 4];
    request.extend(libc::RTM_NEWROUTE.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    // Number and sender, which nobody looks at.
    request.extend([0; 8]);
    let family = libc::AF_INET as u8;
    request.extend([
        family,
        32,
        0,
        0,
        TABLE_LOCAL,
        PROTOCOL_STATIC,
        SCOPE_HOST,
        ROUTE_LOCAL,
    ]);
    request.extend([0; 4]);
    for (kind, value) in [
        (RTA_DST, address.octets()),
        (RTA_OIF, LOOPBACK_INDEX.to_ne_bytes()),
    ] {
        request.extend(8_u16.to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(value);
    }
    let length = request.len() as u32;
    request[..4].copy_from_slice(&length.to_ne_bytes());
    request
}

fn acknowledged(answer: &[u8]) -> Result<(), Errno> {
    let header = size_of::<libc::nlmsghdr>();
    let kind = answer
        .get(4..6)
        .map(|it| u16::from_ne_bytes([it[0], it[1]]));
    let code = answer
        .get(header..header + 4)
        .and_then(|it| it.try_into().ok())
        .map(i32::from_ne_bytes);
    match (kind.map(i32::from), code) {
        (Some(libc::NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(libc::NLMSG_ERROR), Some(code)) => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_acknowledgement_is_a_success() {
        let answer = |kind: i32, code: i32| {
            let mut answer = vec![0; size_of::<libc::nlmsghdr>()];
            answer[4..6].copy_from_slice(&(kind as u16).to_ne_bytes());
            answer.extend(code.to_ne_bytes());
            answer
        };
        assert_eq!(acknowledged(&answer(libc::NLMSG_ERROR, 0)), Ok(()));
        let denied = answer(libc::NLMSG_ERROR, -libc::EPERM);
        assert_eq!(acknowledged(&denied), Err(Errno::PERM));
        assert_eq!(
            acknowledged(&answer(libc::NLMSG_DONE, 0)),
            Err(Errno::PROTO)
        );
        assert_eq!(acknowledged(&[]), Err(Errno::PROTO));
    }
}
