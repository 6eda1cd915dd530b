//! What a driver says between the code's own output: a pure decoder of one output stream.
//!
//! A frame begins with a byte that text does not have and the context's own id, then a line of words
//! and a payload: `RS id kind run message length LF payload`. Everything here was written by a guest
//! and is bounded: what does not look like a frame is output.

use bytes::{Buf, Bytes, BytesMut};

const MARK: u8 = 0x1e;
/// Bytes of a frame's first line.
const HEAD_MAX: usize = 256;
/// Bytes of one frame's payload; drivers keep a whole frame below what a pipe takes in one piece.
const PAYLOAD_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A run's first byte of output comes after this.
    Begin,
    /// A piece of a longer message.
    Part,
    /// Something to show, or the last piece of it.
    Result,
    Error,
    End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub run: String,
    /// Which message this is a piece of.
    pub message: u64,
    pub payload: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Output(Bytes),
    Frame(Frame),
}

pub struct Decoder {
    prefix: Vec<u8>,
    buffer: BytesMut,
}

enum Look {
    /// A whole frame of this length.
    Whole(Frame, usize),
    /// May become one.
    Short,
    No,
}

impl Decoder {
    /// For the context with this id.
    pub fn new(id: &str) -> Self {
        let mut prefix = vec![MARK];
        prefix.extend_from_slice(id.as_bytes());
        prefix.push(b' ');
        Self {
            prefix,
            buffer: BytesMut::new(),
        }
    }

    /// Bytes between the last ones and the next are lost; a frame they cut is no longer one.
    pub fn gap(&mut self) {
        self.buffer.clear();
    }

    pub fn feed(&mut self, data: &[u8]) -> Vec<Item> {
        self.buffer.extend_from_slice(data);
        let mut items = Vec::new();
        let mut plain = 0;
        while plain < self.buffer.len() {
            let Some(at) = self.buffer[plain..].iter().position(|byte| *byte == MARK) else {
                plain = self.buffer.len();
                break;
            };
            let start = plain + at;
            match self.look(start) {
                Look::No => plain = start + 1,
                Look::Short => {
                    plain = start;
                    break;
                }
                Look::Whole(frame, length) => {
                    self.output(start, &mut items);
                    self.buffer.advance(length);
                    items.push(Item::Frame(frame));
                    plain = 0;
                }
            }
        }
        self.output(plain, &mut items);
        items
    }

    fn output(&mut self, length: usize, items: &mut Vec<Item>) {
        if length > 0 {
            items.push(Item::Output(self.buffer.split_to(length).freeze()));
        }
    }

    fn look(&self, start: usize) -> Look {
        let rest = &self.buffer[start..];
        let known = rest.len().min(self.prefix.len());
        if rest[..known] != self.prefix[..known] {
            return Look::No;
        }
        let rest = &rest[known..];
        let Some(end) = rest.iter().take(HEAD_MAX).position(|byte| *byte == b'\n') else {
            return if rest.len() >= HEAD_MAX {
                Look::No
            } else {
                Look::Short
            };
        };
        let Some((kind, run, message, length)) = head(&rest[..end]) else {
            return Look::No;
        };
        let payload = &rest[end + 1..];
        if payload.len() < length {
            return Look::Short;
        }
        let frame = Frame {
            kind,
            run,
            message,
            payload: Bytes::copy_from_slice(&payload[..length]),
        };
        Look::Whole(frame, self.prefix.len() + end + 1 + length)
    }
}

fn head(line: &[u8]) -> Option<(Kind, String, u64, usize)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split(' ');
    let kind = match words.next()? {
        "begin" => Kind::Begin,
        "part" => Kind::Part,
        "result" => Kind::Result,
        "error" => Kind::Error,
        "end" => Kind::End,
        _ => return None,
    };
    let run = words.next()?.to_owned();
    let message = words.next()?.parse().ok()?;
    let length = words.next()?.parse().ok()?;
    (words.next().is_none() && length <= PAYLOAD_MAX).then_some((kind, run, message, length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &[u8] = b"before\x1eprc_1 begin r1 1 0\nhi\x1e\x1eprc_2 end r1 1 0\n\x1eprc_1 result r1 2 5\n{\"a\"}x";

    fn told(pieces: &[&[u8]]) -> Vec<Item> {
        let mut decoder = Decoder::new("prc_1");
        let mut joined: Vec<Item> = Vec::new();
        for item in pieces.iter().flat_map(|piece| decoder.feed(piece)) {
            match (joined.last_mut(), item) {
                (Some(Item::Output(before)), Item::Output(more)) => {
                    *before = [before.as_ref(), more.as_ref()].concat().into();
                }
                (_, item) => joined.push(item),
            }
        }
        joined
    }

    #[test]
    fn frames_are_found_between_output_and_what_only_resembles_one_is_output() {
        let items = told(&[STREAM]);
        assert_eq!(items.len(), 5);
        assert_eq!(items[0], Item::Output("before".into()));
        assert!(
            matches!(&items[1], Item::Frame(frame) if frame.kind == Kind::Begin && frame.run == "r1")
        );
        assert_eq!(
            items[2],
            Item::Output(b"hi\x1e\x1eprc_2 end r1 1 0\n"[..].into())
        );
        assert!(matches!(&items[3], Item::Frame(frame) if frame.payload == "{\"a\"}"));
        assert_eq!(items[4], Item::Output("x".into()));
    }

    #[test]
    fn a_gap_ends_a_frame_that_was_begun() {
        let mut decoder = Decoder::new("prc_1");
        assert!(decoder.feed(b"\x1eprc_1 result r1 2 50\nabc").is_empty());
        decoder.gap();
        assert_eq!(decoder.feed(b"rest"), [Item::Output("rest".into())]);
    }

    proptest! {
        #[test]
        fn where_the_stream_is_cut_makes_no_difference(cut in 0..STREAM.len(), second in 0..STREAM.len()) {
            let (low, high) = (cut.min(second), cut.max(second));
            prop_assert_eq!(told(&[&STREAM[..low], &STREAM[low..high], &STREAM[high..]]), told(&[STREAM]));
        }

        #[test]
        fn nothing_a_guest_sends_is_kept_for_long_or_ends_the_decoder(
            noise in proptest::collection::vec(
                prop_oneof![
                    Just(b"\x1eprc_1 ".to_vec()), Just(b"\x1e".to_vec()), Just(b"result r 1 4096\n".to_vec()),
                    Just(b"result r 1 99999999999999999999\n".to_vec()), proptest::collection::vec(any::<u8>(), 0..400),
                ],
                0..40,
            )
        ) {
            let mut decoder = Decoder::new("prc_1");
            for piece in &noise {
                decoder.feed(piece);
                prop_assert!(decoder.buffer.len() <= decoder.prefix.len() + HEAD_MAX + PAYLOAD_MAX);
            }
        }
    }
}
