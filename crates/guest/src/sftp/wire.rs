//! Packets: a big-endian length, a kind, and fields one after the other.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{Answer, PACKET_MAX, Refusal, malformed};

pub const INIT: u8 = 1;
pub const VERSION: u8 = 2;
pub const OPEN: u8 = 3;
pub const CLOSE: u8 = 4;
pub const READ: u8 = 5;
pub const WRITE: u8 = 6;
pub const LSTAT: u8 = 7;
pub const FSTAT: u8 = 8;
pub const SETSTAT: u8 = 9;
pub const FSETSTAT: u8 = 10;
pub const OPENDIR: u8 = 11;
pub const READDIR: u8 = 12;
pub const REMOVE: u8 = 13;
pub const MKDIR: u8 = 14;
pub const RMDIR: u8 = 15;
pub const REALPATH: u8 = 16;
pub const STAT: u8 = 17;
pub const RENAME: u8 = 18;
pub const READLINK: u8 = 19;
pub const SYMLINK: u8 = 20;
pub const EXTENDED: u8 = 200;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRIBUTES: u8 = 105;
const EXTENDED_REPLY: u8 = 201;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    EndOfFile = 1,
    NoSuchFile = 2,
    PermissionDenied = 3,
    Failure = 4,
    BadMessage = 5,
    Unsupported = 8,
}

impl Status {
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NoSuchFile,
            io::ErrorKind::PermissionDenied => Self::PermissionDenied,
            io::ErrorKind::Unsupported => Self::Unsupported,
            io::ErrorKind::UnexpectedEof => Self::EndOfFile,
            _ => Self::Failure,
        }
    }
}

/// The next packet without its length; `false` when the client has ended between two of them.
pub fn read_packet(input: &mut impl Read, packet: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < length.len() {
        match input.read(&mut length[have..]) {
            Ok(0) if have == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > PACKET_MAX {
        return Err(malformed("a packet that is too long"));
    }
    packet.resize(length, 0);
    input.read_exact(packet)?;
    Ok(true)
}

/// What is left of a packet.
pub struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    pub fn new(packet: &'a [u8]) -> Self {
        Self(packet)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    pub fn number(&mut self) -> Option<u32> {
        let taken = self.take(4)?.try_into().ok()?;
        Some(u32::from_be_bytes(taken))
    }

    pub fn needed_number(&mut self) -> Result<u32, Refusal> {
        self.number().ok_or(Refusal::Malformed)
    }

    pub fn long(&mut self) -> Result<u64, Refusal> {
        let high = u64::from(self.needed_number()?);
        Ok(high << 32 | u64::from(self.needed_number()?))
    }

    pub fn text(&mut self) -> Result<&'a [u8], Refusal> {
        let length = self.needed_number()? as usize;
        self.take(length).ok_or(Refusal::Malformed)
    }

    /// An empty path is the directory the session began in, as clients expect.
    pub fn path(&mut self) -> Result<PathBuf, Refusal> {
        let bytes = match self.text()? {
            [] => b".",
            bytes => bytes,
        };
        if bytes.contains(&0) {
            return Err(Refusal::Malformed);
        }
        Ok(PathBuf::from(OsStr::from_bytes(bytes)))
    }

    pub fn handle(&mut self) -> Result<u32, Refusal> {
        let bytes = self.text()?.try_into().map_err(|_| Refusal::Malformed)?;
        Ok(u32::from_be_bytes(bytes))
    }
}

/// One packet being written; its length is filled in by [`Packet::end`].
pub struct Packet<'a> {
    into: &'a mut Vec<u8>,
    at: usize,
}

impl<'a> Packet<'a> {
    pub fn begin(into: &'a mut Vec<u8>, kind: u8) -> Self {
        let at = into.len();
        into.extend_from_slice(&[0; 4]);
        into.push(kind);
        Self { into, at }
    }

    pub fn number(&mut self, number: u32) -> &mut Self {
        self.into.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub fn long(&mut self, number: u64) -> &mut Self {
        self.into.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub fn text(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u32);
        self.into.extend_from_slice(bytes);
        self
    }

    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.into.extend_from_slice(bytes);
        self
    }

    pub fn end(self) {
        let length = (self.into.len() - self.at - 4) as u32;
        self.into[self.at..self.at + 4].copy_from_slice(&length.to_be_bytes());
    }
}

pub fn write_answer(reply: &mut Vec<u8>, id: u32, answer: Answer) {
    let kind = match &answer {
        Answer::Status(..) => STATUS,
        Answer::Handle(_) => HANDLE,
        Answer::Data(_) => DATA,
        Answer::Names(_) => NAME,
        Answer::Attributes(_) => ATTRIBUTES,
        Answer::Extended(_) => EXTENDED_REPLY,
    };
    let mut packet = Packet::begin(reply, kind);
    packet.number(id);
    match answer {
        Answer::Status(status, text) => {
            packet.number(status as u32).text(text.as_bytes()).text(b"");
        }
        Answer::Handle(handle) => {
            packet.text(&handle.to_be_bytes());
        }
        Answer::Data(data) => {
            packet.text(&data);
        }
        Answer::Names(entries) => {
            packet.number(entries.len() as u32);
            for entry in entries {
                packet.text(&entry.name).text(&entry.long);
                entry.attributes.write(&mut packet);
            }
        }
        Answer::Attributes(attributes) => attributes.write(&mut packet),
        Answer::Extended(bytes) => {
            packet.raw(&bytes);
        }
    }
    packet.end();
}
