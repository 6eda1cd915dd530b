//! Netlink as bytes: messages with attributes, batches of them, and a socket that sends a batch and
//! reads what the kernel says. What the messages mean is up to `link`, `nft`, `conntrack` and `log`.

use std::io;
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

pub const REQUEST: u16 = 0x1;
pub const ACK: u16 = 0x4;
pub const EXCLUSIVE: u16 = 0x200;
pub const CREATE: u16 = 0x400;
pub const APPEND: u16 = 0x800;
pub const DUMP: u16 = 0x300;

const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NESTED: u16 = 0x8000;
const KIND_MASK: u16 = 0x3fff;

/// The rules of thousands of sandboxes go to the kernel in one piece.
const SEND_BUFFER: usize = 64 << 20;
const RECEIVE_BUFFER: usize = 1 << 20;
/// One read: the kernel never sends more at once.
const READ_MAX: usize = 64 * 1024;

/// What the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct NetlinkError {
    pub step: &'static str,
    #[source]
    pub source: io::Error,
}

impl NetlinkError {
    pub fn errno(&self) -> Option<rustix::io::Errno> {
        rustix::io::Errno::from_io_error(&self.source)
    }
}

/// Attributes in the order they are written.
#[derive(Debug, Clone, Default)]
pub struct Attributes {
    bytes: Vec<u8>,
}

impl Attributes {
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("attributes are built in small pieces");
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
    }

    pub fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub fn put_be32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    pub fn put_str(&mut self, kind: u16, value: &str) {
        let mut text = value.as_bytes().to_vec();
        text.push(0);
        self.put(kind, &text);
    }

    pub fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Attributes)) {
        let mut attributes = Attributes::default();
        inner(&mut attributes);
        self.put(kind | NESTED, &attributes.bytes);
    }

    /// Raw bytes without a header of their own, such as the fixed part of a nested message.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.pad();
    }

    pub fn append(&mut self, other: &Attributes) {
        self.bytes.extend(&other.bytes);
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Reads attributes; ends at the first one that makes no sense.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & KIND_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of one attribute.
pub fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

pub fn read_u32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?))
}

/// Messages that go to the kernel together, each with the step it stands for.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    steps: Vec<&'static str>,
    /// Where the last message begins.
    last: usize,
}

impl Batch {
    /// `fixed` is the family's header that comes before the attributes.
    pub fn message(
        &mut self,
        step: &'static str,
        kind: u16,
        flags: u16,
        fixed: &[u8],
        attributes: &Attributes,
    ) {
        let length = HEADER + fixed.len().next_multiple_of(4) + attributes.len();
        self.last = self.bytes.len();
        self.bytes.extend(
            u32::try_from(length)
                .expect("a message is small")
                .to_ne_bytes(),
        );
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | REQUEST).to_ne_bytes());
        // The sequence number is set when it is sent, the port by the kernel.
        self.bytes.extend([0; 8]);
        self.bytes.extend(fixed);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend(&attributes.bytes);
        self.steps.push(step);
    }

    /// Asks for an answer to the message added last also when all is well.
    pub fn acknowledge(&mut self) {
        let at = self.last + 6;
        let flags = u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) | ACK;
        self.bytes[at..at + 2].copy_from_slice(&flags.to_ne_bytes());
    }

    fn number(&mut self, first: u32) {
        let mut at = 0;
        let mut sequence = first;
        while at < self.bytes.len() {
            let length = read_u32(&self.bytes[at..]).expect("written above") as usize;
            self.bytes[at + 8..at + 12].copy_from_slice(&sequence.to_ne_bytes());
            sequence = sequence.wrapping_add(1);
            at += length.next_multiple_of(4);
        }
    }
}

/// A netlink socket of the network namespace it was opened in.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    pub fn route() -> io::Result<Self> {
        Self::open(None)
    }

    pub fn netfilter() -> io::Result<Self> {
        Self::open(Some(rustix::net::netlink::NETFILTER))
    }

    fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        // Without the right to go over the host's limit large hosts are served in smaller pieces.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&fd, SEND_BUFFER);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER);
        rustix::net::bind(&fd, &rustix::net::netlink::SocketAddrNetlink::new(0, 0))?;
        Ok(Self { fd, sequence: 1 })
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Sends the batch and returns the first thing the kernel refused.
    ///
    /// The kernel works through a batch before the send returns, so that all answers are there then.
    pub fn transact(&mut self, mut batch: Batch) -> Result<(), NetlinkError> {
        let whole = batch.steps.first().copied().unwrap_or("nothing");
        let failed = |step| move |source: io::Error| NetlinkError { step, source };
        batch.acknowledge();
        let first = self.sequence;
        batch.number(first);
        self.sequence = first.wrapping_add(batch.steps.len() as u32);
        self.drain();
        rustix::net::send(&self.fd, &batch.bytes, SendFlags::empty())
            .map_err(|errno| failed(whole)(errno.into()))?;
        let mut acknowledged = false;
        let mut refused = None;
        self.read_available(|kind, sequence, body| {
            let at = sequence.wrapping_sub(first) as usize;
            let (ERROR, Some(step)) = (kind, batch.steps.get(at)) else {
                return;
            };
            match read_u32(body).map(|code| code as i32) {
                Some(0) => acknowledged = true,
                Some(code) if refused.is_none() => {
                    refused = Some(failed(step)(io::Error::from_raw_os_error(-code)));
                }
                _ => {}
            }
        })
        .map_err(failed(whole))?;
        match refused {
            Some(refused) => Err(refused),
            None if acknowledged => Ok(()),
            None => Err(failed(whole)(io::Error::other("the kernel did not answer"))),
        }
    }

    /// Sends one request and hands every answer's body (after the netlink header) to `each`.
    pub fn ask(
        &mut self,
        step: &'static str,
        mut batch: Batch,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<(), NetlinkError> {
        let failed = |source: io::Error| NetlinkError { step, source };
        let first = self.sequence;
        batch.number(first);
        self.sequence = first.wrapping_add(batch.steps.len() as u32);
        self.drain();
        rustix::net::send(&self.fd, &batch.bytes, SendFlags::empty())
            .map_err(|errno| failed(errno.into()))?;
        let mut buffer = Vec::with_capacity(READ_MAX);
        loop {
            buffer.clear();
            rustix::io::retry_on_intr(|| {
                rustix::net::recv(&self.fd, spare_capacity(&mut buffer), RecvFlags::empty())
            })
            .map_err(|errno| failed(errno.into()))?;
            let mut end = None;
            messages(&buffer, |kind, sequence, body| {
                if sequence != first || end.is_some() {
                    return;
                }
                match kind {
                    DONE => end = Some(Ok(())),
                    ERROR => {
                        end = Some(match read_u32(body).map(|code| code as i32) {
                            Some(0) | None => Ok(()),
                            Some(code) => Err(io::Error::from_raw_os_error(-code)),
                        });
                    }
                    kind => each(kind, body),
                }
            });
            if let Some(end) = end {
                return end.map_err(failed);
            }
        }
    }

    /// Answers nobody waited for, after a call that failed half way.
    fn drain(&self) {
        let _ = self.read_available(|_, _, _| {});
    }

    /// Reads what is there without waiting.
    pub fn read_available(&self, mut each: impl FnMut(u16, u32, &[u8])) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(READ_MAX);
        loop {
            buffer.clear();
            match rustix::net::recv(&self.fd, spare_capacity(&mut buffer), RecvFlags::DONTWAIT) {
                Ok(_) if buffer.is_empty() => return Ok(()),
                Ok(_) => messages(&buffer, &mut each),
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn messages(mut bytes: &[u8], mut each: impl FnMut(u16, u32, &[u8])) {
    while bytes.len() >= HEADER {
        let length = read_u32(bytes).expect("a header is there") as usize;
        let Some(body) = bytes.get(HEADER..length) else {
            return;
        };
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        let sequence = read_u32(&bytes[8..]).expect("a header is there");
        each(kind, sequence, body);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let mut written = Attributes::default();
        written.put(1, b"abc");
        written.nest(2, |inner| inner.put_u32(3, 7));
        let read: Vec<_> = attributes(&written.bytes).collect();
        assert_eq!(read[0], (1, &b"abc"[..]));
        assert_eq!(read[1].0, 2);
        assert_eq!(attribute(read[1].1, 3).and_then(read_u32), Some(7));
    }

    #[test]
    fn damaged_attributes_end_the_reading() {
        for bytes in [
            &[0u8, 0, 1, 0][..],
            &[3, 0, 1, 0],
            &[200, 0, 1, 0, 5],
            &[4],
            &[255, 255, 255, 255],
        ] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
    }
}
