//! Changing the few images that must differ between a sandbox and its copy: ids, name, limits,
//! connections to the outside. An image is two magic numbers and protobuf messages with their lengths before
//! them; everything that is not changed is kept byte for byte.

use std::net::{Ipv4Addr, Ipv6Addr};

mod limits;
mod regular;
mod terminal;
mod timer;
mod wire;

pub use limits::{open_files, with_open_files, with_segment_pages};
pub use regular::refuse_files_below;
pub use terminal::with_terminals_by_name;
pub use timer::with_running_timers;

use wire::{Field, Value, parse};

const COMMON_MAGIC: u32 = 0x5456_4319;
const USERNS_MAGIC: u32 = 0x5547_4906;
const UTSNS_MAGIC: u32 = 0x5447_3203;
const FILES_MAGIC: u32 = 0x5630_3138;

/// The kernel's number of a closed TCP connection, and of a listening one.
const TCP_CLOSE: u64 = 7;
const TCP_LISTEN: u64 = 10;
const SOCK_STREAM: u64 = 1;
const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;

#[derive(Debug, thiserror::Error)]
#[error("the image is damaged: {0}")]
pub struct ImageError(&'static str);

/// A user namespace image whose ids begin at `base` on the host.
pub fn with_ids_from(image: &[u8], base: u32) -> Result<Vec<u8>, ImageError> {
    const LOWER_FIRST: u32 = 2;
    edit(image, USERNS_MAGIC, |fields| {
        for field in fields {
            let Value::Bytes(extent) = &field.value else {
                return Err(ImageError("a map of ids has an odd shape"));
            };
            let mut extent = parse(extent)?;
            for part in &mut extent {
                if part.tag == LOWER_FIRST {
                    part.value = Value::Varint(base.into());
                }
            }
            field.value = Value::Bytes(wire::write(&extent));
        }
        Ok(())
    })
}

/// A host name image with another name.
pub fn with_hostname(image: &[u8], name: &str) -> Result<Vec<u8>, ImageError> {
    const NODENAME: u32 = 1;
    edit(image, UTSNS_MAGIC, |fields| {
        for field in fields.iter_mut().filter(|field| field.tag == NODENAME) {
            field.value = Value::Bytes(name.as_bytes().to_vec());
        }
        Ok(())
    })
}

/// A files image in which no TCP connection leads out of the sandbox: those sockets are closed ones,
/// so that whoever uses them notices, and no packet about them is ever sent. `None`: there are none.
pub fn without_outside_connections(image: &[u8]) -> Result<Option<Vec<u8>>, ImageError> {
    const INET_SOCKET: u32 = 4;
    let mut changed = false;
    let edited = edit(image, FILES_MAGIC, |fields| {
        for field in fields.iter_mut().filter(|field| field.tag == INET_SOCKET) {
            let Value::Bytes(socket) = &field.value else {
                return Err(ImageError("a socket has an odd shape"));
            };
            let mut socket = parse(socket)?;
            if leads_outside(&socket)? {
                close(&mut socket);
                field.value = Value::Bytes(wire::write(&socket));
                changed = true;
            }
        }
        Ok(())
    })?;
    Ok(changed.then_some(edited))
}

/// Tags of a socket's image.
mod socket {
    pub const FAMILY: u32 = 3;
    pub const TYPE: u32 = 4;
    pub const STATE: u32 = 6;
    pub const SRC_PORT: u32 = 7;
    pub const DST_PORT: u32 = 8;
    pub const SRC_ADDR: u32 = 11;
    pub const DST_ADDR: u32 = 12;
    pub const SHUTDOWN: u32 = 19;
}

fn number(fields: &[Field], tag: u32) -> u64 {
    fields
        .iter()
        .find_map(|field| match field.value {
            Value::Varint(value) if field.tag == tag => Some(value),
            _ => None,
        })
        .unwrap_or(0)
}

fn leads_outside(fields: &[Field]) -> Result<bool, ImageError> {
    let state = number(fields, socket::STATE);
    if number(fields, socket::TYPE) != SOCK_STREAM || state == TCP_CLOSE || state == TCP_LISTEN {
        return Ok(false);
    }
    let words = address(fields, socket::DST_ADDR)?;
    let local = match (number(fields, socket::FAMILY), words.as_slice()) {
        (AF_INET, [word]) => Ipv4Addr::from(word.to_le_bytes()).is_loopback(),
        (AF_INET6, [a, b, c, d]) => {
            let mut octets = [0; 16];
            for (to, word) in octets.chunks_exact_mut(4).zip([a, b, c, d]) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            let address = Ipv6Addr::from(octets);
            address.is_loopback()
                || address
                    .to_ipv4_mapped()
                    .is_some_and(|mapped| mapped.is_loopback())
        }
        _ => return Err(ImageError("a socket has an odd address")),
    };
    // Both ends of a connection to an own address are inside as well.
    Ok(!local && address(fields, socket::SRC_ADDR)? != words)
}

fn address(fields: &[Field], tag: u32) -> Result<Vec<u32>, ImageError> {
    let mut words = Vec::new();
    for field in fields.iter().filter(|field| field.tag == tag) {
        match &field.value {
            Value::Varint(value) => words.push(*value as u32),
            Value::Bytes(packed) => words.extend(wire::packed(packed)?),
            _ => return Err(ImageError("a socket has an odd address")),
        }
    }
    Ok(words)
}

fn close(fields: &mut Vec<Field>) {
    for field in fields.iter_mut() {
        match field.tag {
            socket::STATE => field.value = Value::Varint(TCP_CLOSE),
            socket::SRC_PORT | socket::DST_PORT => field.value = Value::Varint(0),
            socket::SRC_ADDR | socket::DST_ADDR => {
                if let Value::Varint(word) = &mut field.value {
                    *word = 0;
                } else if let Value::Bytes(packed) = &mut field.value {
                    let count = wire::packed(packed).map_or(0, |words| words.len());
                    *packed = vec![0; count];
                }
            }
            _ => {}
        }
    }
    fields.retain(|field| field.tag != socket::SHUTDOWN);
}

fn body_of(image: &[u8], first: u32, second: u32) -> Result<&[u8], ImageError> {
    let (head, body) = image
        .split_at_checked(8)
        .ok_or(ImageError("it is too short"))?;
    if head[..4] != first.to_le_bytes() || head[4..] != second.to_le_bytes() {
        return Err(ImageError("it is of another kind"));
    }
    Ok(body)
}

fn messages(mut body: &[u8]) -> Result<Vec<&[u8]>, ImageError> {
    let cut = ImageError("it is truncated");
    let mut all = Vec::new();
    while !body.is_empty() {
        let Some((length, rest)) = body.split_first_chunk::<4>() else {
            return Err(cut);
        };
        let Some((message, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)
        else {
            return Err(cut);
        };
        all.push(message);
        body = rest;
    }
    Ok(all)
}

fn edit(
    image: &[u8],
    magic: u32,
    mut change: impl FnMut(&mut Vec<Field>) -> Result<(), ImageError>,
) -> Result<Vec<u8>, ImageError> {
    let body = body_of(image, COMMON_MAGIC, magic)?;
    let mut edited = image[..8].to_vec();
    for message in messages(body)? {
        let mut fields = parse(message)?;
        change(&mut fields)?;
        let message = wire::write(&fields);
        edited.extend_from_slice(&(message.len() as u32).to_le_bytes());
        edited.extend_from_slice(&message);
    }
    Ok(edited)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(magic: u32, message: &[u8]) -> Vec<u8> {
        let mut image = COMMON_MAGIC.to_le_bytes().to_vec();
        image.extend_from_slice(&magic.to_le_bytes());
        image.extend_from_slice(&(message.len() as u32).to_le_bytes());
        image.extend_from_slice(message);
        image
    }

    fn message(fields: &[(u32, u64)]) -> Vec<u8> {
        let fields: Vec<Field> = fields
            .iter()
            .map(|&(tag, value)| Field {
                tag,
                value: Value::Varint(value),
            })
            .collect();
        wire::write(&fields)
    }

    fn nested(tag: u32, message: Vec<u8>) -> Vec<u8> {
        wire::write(&[Field {
            tag,
            value: Value::Bytes(message),
        }])
    }

    #[test]
    fn ids_move_and_nothing_else_changes() {
        let before = image(
            USERNS_MAGIC,
            &nested(1, message(&[(1, 0), (2, 720_896), (3, 65_536)])),
        );
        let after = with_ids_from(&before, 131_072).expect("a good image");
        let wanted = image(
            USERNS_MAGIC,
            &nested(1, message(&[(1, 0), (2, 131_072), (3, 65_536)])),
        );
        assert_eq!(after, wanted);
    }

    fn tcp(state: u64, peer: [u8; 4]) -> Vec<u8> {
        let socket = message(&[
            (3, AF_INET),
            (4, SOCK_STREAM),
            (6, state),
            (7, 40_000),
            (8, 443),
            (11, u64::from(u32::from_le_bytes([10, 0, 0, 2]))),
            (12, u64::from(u32::from_le_bytes(peer))),
        ]);
        image(FILES_MAGIC, &nested(4, socket))
    }

    #[test]
    fn only_connections_to_the_outside_are_closed() {
        let outside = tcp(1, [93, 184, 216, 34]);
        let closed = without_outside_connections(&outside)
            .expect("a good image")
            .expect("it changes");
        assert!(
            without_outside_connections(&closed)
                .expect("a good image")
                .is_none()
        );
        for kept in [
            tcp(1, [127, 0, 0, 1]),
            tcp(1, [10, 0, 0, 2]),
            tcp(TCP_LISTEN, [0; 4]),
        ] {
            assert!(
                without_outside_connections(&kept)
                    .expect("a good image")
                    .is_none()
            );
        }
    }

    #[test]
    fn damaged_images_are_refused() {
        let good = tcp(1, [1, 1, 1, 1]);
        for bad in [
            &good[..4],
            &good[..10],
            &good[..good.len() - 1],
            b"",
            b"nonsense",
        ] {
            assert!(without_outside_connections(bad).is_err());
        }
        assert!(with_ids_from(&good, 1).is_err(), "another kind of image");
    }
}
