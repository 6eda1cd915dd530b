//! How a [`Message`] crosses from the program to its parent: one frame of fixed layout, decoded without
//! allocation beyond its three bounded texts.
//!
//! ```text
//! kind u8 | detail u8 | length of each of 3 texts u16 | 3 numbers u64 | digest [u8; 32] | the texts
//! ```
//! Integers are little-endian. There is exactly one frame for each message: what decodes but would be
//! written otherwise is refused.

use super::{Failure, Limit, Message, Warning};

pub const HEADER_BYTES: usize = 2 + 2 * TEXTS + 8 * NUMBERS + DIGEST_BYTES;
const TEXTS: usize = 3;
const NUMBERS: usize = 3;
/// Of one text; a longer one is cut when it is written, and control characters are replaced.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Below what the kernel writes into a pipe at once, so that frames of two processes do not mix.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + TEXTS * TEXT_BYTES_MAX;
const DIGEST_BYTES: usize = 32;

/// The bytes are no frame of the program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadFrame;

#[derive(Default)]
struct Parts<'a> {
    kind: u8,
    detail: u8,
    numbers: [u64; NUMBERS],
    digest: [u8; DIGEST_BYTES],
    texts: [&'a str; TEXTS],
}

const PROGRESS: u8 = 1;
const WARNING: u8 = 2;
const DONE: u8 = 3;
const FAILED: u8 = 4;

const LIMITS: [Limit; 8] = [
    Limit::TotalBytes,
    Limit::Entries,
    Limit::FileBytes,
    Limit::PathBytes,
    Limit::Depth,
    Limit::XattrBytes,
    Limit::ExtensionBytes,
    Limit::SparseSegments,
];

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Progress { bytes, entries } => Parts {
                kind: PROGRESS,
                numbers: [*bytes, *entries, 0],
                ..Parts::default()
            }
            .encode(),
            Self::Warning { warning } => warning.parts().encode(),
            Self::Done {
                bytes,
                entries,
                digest,
                warnings,
            } => Parts {
                kind: DONE,
                detail: u8::from(digest.is_some()),
                numbers: [*bytes, *entries, *warnings],
                digest: digest.unwrap_or_default(),
                ..Parts::default()
            }
            .encode(),
            Self::Failed { failure } => failure.parts().encode(),
        }
    }

    /// The first message in `bytes` and its length; `None` while it is not whole.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, BadFrame> {
        let Some((parts, length)) = Parts::decode(bytes)? else {
            return Ok(None);
        };
        let message = match parts.kind {
            PROGRESS => Self::Progress {
                bytes: parts.numbers[0],
                entries: parts.numbers[1],
            },
            WARNING => Self::Warning {
                warning: Warning::of(&parts)?,
            },
            DONE => Self::Done {
                bytes: parts.numbers[0],
                entries: parts.numbers[1],
                warnings: parts.numbers[2],
                digest: (parts.detail != 0).then_some(parts.digest),
            },
            FAILED => Self::Failed {
                failure: Failure::of(&parts)?,
            },
            _ => return Err(BadFrame),
        };
        // Whatever the message does not use must be empty.
        match message.encode() == bytes[..length] {
            true => Ok(Some((message, length))),
            false => Err(BadFrame),
        }
    }
}

impl<'a> Parts<'a> {
    fn encode(&self) -> Vec<u8> {
        let texts = self.texts.map(shown);
        let mut frame = vec![self.kind, self.detail];
        for text in &texts {
            let length = u16::try_from(text.len()).expect("texts are cut");
            frame.extend(length.to_le_bytes());
        }
        for number in self.numbers {
            frame.extend(number.to_le_bytes());
        }
        frame.extend(self.digest);
        for text in &texts {
            frame.extend(text.as_bytes());
        }
        frame
    }

    fn decode(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, BadFrame> {
        let Some((header, mut rest)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Ok(None);
        };
        let mut parts = Self {
            kind: header[0],
            detail: header[1],
            ..Self::default()
        };
        let (lengths, after) = header[2..].split_at(2 * TEXTS);
        let (numbers, digest) = after.split_at(8 * NUMBERS);
        for (number, bytes) in parts.numbers.iter_mut().zip(numbers.chunks_exact(8)) {
            *number = u64::from_le_bytes(bytes.try_into().map_err(|_| BadFrame)?);
        }
        parts.digest = digest.try_into().map_err(|_| BadFrame)?;
        let lengths = [0, 2, 4].map(|at| u16::from_le_bytes([lengths[at], lengths[at + 1]]));
        let lengths = lengths.map(usize::from);
        // Refused by the header alone, before anybody waits for the rest.
        if lengths.iter().any(|length| *length > TEXT_BYTES_MAX) {
            return Err(BadFrame);
        }
        for (text, length) in parts.texts.iter_mut().zip(lengths) {
            let Some((this, after)) = rest.split_at_checked(length) else {
                return Ok(None);
            };
            *text = std::str::from_utf8(this).map_err(|_| BadFrame)?;
            rest = after;
        }
        Ok(Some((parts, HEADER_BYTES + lengths.iter().sum::<usize>())))
    }
}

/// As much of a text as a frame takes, without control characters.
fn shown(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    let shown = text.replace(char::is_control, "?");
    debug_assert!(shown.len() <= TEXT_BYTES_MAX);
    shown
}

impl Warning {
    fn parts(&self) -> Parts<'_> {
        let (detail, number, [path, name]): (u8, u64, [&str; 2]) = match self {
            Self::SpecialFileSkipped { path } => (1, 0, [path, ""]),
            Self::UnknownEntrySkipped { path, type_flag } => (2, (*type_flag).into(), [path, ""]),
            Self::XattrSkipped { path, name } => (3, 0, [path, name]),
            Self::OwnerReplaced { path, id } => (4, *id, [path, ""]),
            Self::WhiteoutIgnored { path } => (5, 0, [path, ""]),
            Self::NoEndOfArchive => (6, 0, ["", ""]),
            Self::TrailingData => (7, 0, ["", ""]),
        };
        Parts {
            kind: WARNING,
            detail,
            numbers: [number, 0, 0],
            texts: [path, name, ""],
            ..Parts::default()
        }
    }

    fn of(parts: &Parts<'_>) -> Result<Self, BadFrame> {
        let path = parts.texts[0].to_owned();
        Ok(match parts.detail {
            1 => Self::SpecialFileSkipped { path },
            2 => Self::UnknownEntrySkipped {
                path,
                type_flag: u8::try_from(parts.numbers[0]).map_err(|_| BadFrame)?,
            },
            3 => Self::XattrSkipped {
                path,
                name: parts.texts[1].to_owned(),
            },
            4 => Self::OwnerReplaced {
                path,
                id: parts.numbers[0],
            },
            5 => Self::WhiteoutIgnored { path },
            6 => Self::NoEndOfArchive,
            7 => Self::TrailingData,
            _ => return Err(BadFrame),
        })
    }
}

impl Failure {
    fn parts(&self) -> Parts<'_> {
        let mut numbers = [0; NUMBERS];
        let (detail, texts): (u8, [&str; TEXTS]) = match self {
            Self::Corrupt { reason } => (1, [reason, "", ""]),
            Self::Truncated => (2, ["", "", ""]),
            Self::UnknownPacking { packing } => (3, [packing, "", ""]),
            Self::BadHeader { reason } => (4, [reason, "", ""]),
            Self::UnsafePath { path } => (5, [path, "", ""]),
            Self::UnsafeLink { path, target } => (6, [path, target, ""]),
            Self::LinkTargetMissing { path, target } => (7, [path, target, ""]),
            Self::LimitExceeded { what, limit } => {
                let which = LIMITS.iter().position(|limit| limit == what);
                numbers = [which.map_or(u64::MAX, |at| at as u64), *limit, 0];
                (8, ["", "", ""])
            }
            Self::NotADirectory { path } => (9, [path, "", ""]),
            Self::DiskFull => (10, ["", "", ""]),
            Self::Io {
                operation,
                path,
                reason,
            } => (11, [operation, path, reason]),
            Self::Confine { step, reason } => (12, [step, reason, ""]),
            Self::Usage { reason } => (13, [reason, "", ""]),
        };
        Parts {
            kind: FAILED,
            detail,
            numbers,
            texts,
            ..Parts::default()
        }
    }

    fn of(parts: &Parts<'_>) -> Result<Self, BadFrame> {
        let text = |index: usize| parts.texts[index].to_owned();
        Ok(match parts.detail {
            1 => Self::Corrupt { reason: text(0) },
            2 => Self::Truncated,
            3 => Self::UnknownPacking { packing: text(0) },
            4 => Self::BadHeader { reason: text(0) },
            5 => Self::UnsafePath { path: text(0) },
            6 => Self::UnsafeLink {
                path: text(0),
                target: text(1),
            },
            7 => Self::LinkTargetMissing {
                path: text(0),
                target: text(1),
            },
            8 => {
                let which = usize::try_from(parts.numbers[0]).map_err(|_| BadFrame)?;
                Self::LimitExceeded {
                    what: *LIMITS.get(which).ok_or(BadFrame)?,
                    limit: parts.numbers[1],
                }
            }
            9 => Self::NotADirectory { path: text(0) },
            10 => Self::DiskFull,
            11 => Self::Io {
                operation: text(0),
                path: text(1),
                reason: text(2),
            },
            12 => Self::Confine {
                step: text(0),
                reason: text(1),
            },
            13 => Self::Usage { reason: text(0) },
            _ => return Err(BadFrame),
        })
    }
}

#[cfg(test)]
mod tests;
