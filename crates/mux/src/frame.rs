//! Frames and how they are told from garbage.

use bytes::{Buf, Bytes, BytesMut};

pub const HEADER: usize = 12;
/// Longest content.
pub const CONTENT_MAX: usize = 16 * 1024;
/// Bytes of the number that both sides find each other by.
pub const GREETING: usize = 16;
const MARK: [u8; 2] = [0xc0, 0x7e];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Host to guest: a number, and all streams end.
    Greet,
    /// The answer: the same number.
    Found,
    /// Host to guest: a new stream.
    Open,
    Data,
    /// So many bytes were passed on, and as many more may be sent.
    Window,
    /// Nothing more comes in this direction.
    End,
    /// The stream is over in both.
    Reset,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Greet,
        Self::Found,
        Self::Open,
        Self::Data,
        Self::Window,
        Self::End,
        Self::Reset,
    ];

    fn longest(self) -> usize {
        match self {
            Self::Greet | Self::Found => GREETING,
            Self::Data => CONTENT_MAX,
            Self::Window => 4,
            Self::Open | Self::End | Self::Reset => 0,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Frame {
    pub kind: Kind,
    pub stream: u32,
    pub content: Bytes,
}

impl Frame {
    pub fn new(kind: Kind, stream: u32, content: Bytes) -> Self {
        Self {
            kind,
            stream,
            content,
        }
    }

    pub fn empty(kind: Kind, stream: u32) -> Self {
        Self::new(kind, stream, Bytes::new())
    }

    pub fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&MARK);
        header[2] = self.kind as u8;
        header[4..8].copy_from_slice(&self.stream.to_le_bytes());
        let length = u32::try_from(self.content.len()).unwrap_or(u32::MAX);
        header[8..].copy_from_slice(&length.to_le_bytes());
        header
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// What a header announces: the kind, the stream, the length.
fn announced(bytes: &[u8]) -> Option<(Kind, u32, usize)> {
    let header = bytes.get(..HEADER)?;
    let kind = *Kind::ALL.get(usize::from(header[2]))?;
    let length = usize::try_from(word(header, 8)?).ok()?;
    let good = header[..2] == MARK && header[3] == 0 && length <= kind.longest();
    good.then_some((kind, word(header, 4)?, length))
}

/// The first frame of a buffer.
pub enum First {
    Whole(Frame),
    /// More has to come.
    Part,
    Garbage,
}

pub fn first(bytes: &mut BytesMut) -> First {
    if bytes.len() < HEADER {
        return First::Part;
    }
    let Some((kind, stream, length)) = announced(bytes) else {
        return First::Garbage;
    };
    if bytes.len() < HEADER + length {
        return First::Part;
    }
    bytes.advance(HEADER);
    let content = bytes.split_to(length).freeze();
    First::Whole(Frame::new(kind, stream, content))
}

/// Of a frame of this kind with a number, anywhere in the bytes: where it ends, and the number.
fn number(bytes: &[u8], wanted: Kind) -> Option<(usize, [u8; GREETING])> {
    let whole = HEADER + GREETING;
    let at = (0..(bytes.len() + 1).saturating_sub(whole)).find(|at| {
        announced(&bytes[*at..])
            .is_some_and(|(kind, _, length)| kind == wanted && length == GREETING)
    })?;
    let content = bytes.get(at + HEADER..at + whole)?;
    Some((at + whole, content.try_into().ok()?))
}

/// The host's greeting among the bytes.
pub fn greeting(bytes: &[u8]) -> Option<(usize, [u8; GREETING])> {
    number(bytes, Kind::Greet)
}

/// The guest's answer to this number among the bytes.
pub fn answer(bytes: &[u8], to: &[u8; GREETING]) -> Option<(usize, ())> {
    let mut from = 0;
    loop {
        let (end, number) = number(&bytes[from..], Kind::Found)?;
        from += end;
        if number == *to {
            return Some((from, ()));
        }
    }
}
