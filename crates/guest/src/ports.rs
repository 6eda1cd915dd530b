//! TCP ports that something inside listens on, and who.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;

use cove_protocol::message::{Port, Ports, ReplyKind};

use crate::call::{Call, Ended};
use crate::figures::sessions;
use crate::files::set_file_ids;
use crate::thread;

/// Ports reported in one answer.
const PORTS_MAX: usize = 1024;
/// Descriptors looked at in search of the listeners.
const DESCRIPTORS_MAX: usize = 200_000;
/// The state of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

pub async fn serve(call: &mut Call) -> Result<(), Ended> {
    let ports = thread::run(find).await?;
    call.reply(ReplyKind::Ports(Ports { ports })).await?;
    Ok(())
}

struct Listener {
    address: IpAddr,
    port: u16,
    inode: u64,
}

fn find() -> Vec<Port> {
    let mut listeners = Vec::new();
    for path in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        listeners.extend(text.lines().skip(1).filter_map(parse).take(PORTS_MAX));
    }
    listeners.sort_by_key(|listener| (listener.port, listener.address));
    listeners.truncate(PORTS_MAX);
    let holders = holders(&listeners);
    listeners
        .iter()
        .map(|listener| {
            let pid = holders.get(&listener.inode).copied().unwrap_or(0);
            Port {
                port: listener.port.into(),
                address: listener.address.to_string(),
                pid,
                process: name(pid),
            }
        })
        .collect()
}

fn parse(line: &str) -> Option<Listener> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    if fields.get(3) != Some(&LISTENING) {
        return None;
    }
    let (address, port) = fields.get(1)?.split_once(':')?;
    Some(Listener {
        address: parse_address(address)?,
        port: u16::from_str_radix(port, 16).ok()?,
        inode: fields.get(9)?.parse().ok()?,
    })
}

/// Addresses come as 32-bit words in the byte order of the machine.
fn parse_address(hex: &str) -> Option<IpAddr> {
    let mut octets = [0; 16];
    let words = hex.len() / 8;
    if !hex.len().is_multiple_of(8) || !matches!(words, 1 | 4) {
        return None;
    }
    for word in 0..words {
        let value = u32::from_str_radix(hex.get(word * 8..word * 8 + 8)?, 16).ok()?;
        octets[word * 4..word * 4 + 4].copy_from_slice(&value.to_ne_bytes());
    }
    Some(match words {
        1 => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
        _ => Ipv6Addr::from(octets).into(),
    })
}

/// A process for each socket. Without the right to look into other users' processes each one's
/// descriptors are read as its own user; this thread ends with the call.
fn holders(listeners: &[Listener]) -> HashMap<u64, i32> {
    let mut found = HashMap::new();
    let mut left = DESCRIPTORS_MAX;
    for pid in sessions::pids() {
        if found.len() == listeners.len() || left == 0 {
            break;
        }
        let Ok(owner) = std::fs::metadata(format!("/proc/{pid}")) else {
            continue;
        };
        if set_file_ids(owner.uid(), owner.gid()).is_err() {
            continue;
        }
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        for entry in entries.flatten().take(left) {
            left -= 1;
            let inode = std::fs::read_link(entry.path())
                .ok()
                .and_then(|link| socket_inode(link.to_str()?));
            if let Some(inode) = inode
                && listeners.iter().any(|listener| listener.inode == inode)
            {
                found.entry(inode).or_insert(pid);
            }
        }
    }
    found
}

fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

fn name(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim_end().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lines_are_read() {
        let four = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     \
                    0        0 4242 1 0000000000000000 100 0 0 10 0";
        let listener = parse(four).unwrap();
        assert_eq!((listener.port, listener.inode), (8080, 4242));
        assert_eq!(listener.address, Ipv4Addr::LOCALHOST);
        let six = "   1: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 \
                   0A 00000000:00000000 00:00000000 00000000 0 0 7 1 0 100 0 0 10 0";
        assert_eq!(parse(six).unwrap().address, Ipv6Addr::LOCALHOST);
        let connected = four.replace(" 0A ", " 01 ");
        assert!(parse(&connected).is_none());
        assert!(parse("garbage").is_none());
        assert_eq!(socket_inode("socket:[12]"), Some(12));
        assert_eq!(socket_inode("pipe:[12]"), None);
    }
}
