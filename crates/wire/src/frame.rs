//! A message on a byte stream: its length, on some wires a byte that says its kind, and its body.

use std::io;

use crate::limits;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

/// How one wire frames its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    order: Order,
    has_kind: bool,
    max: usize,
}

/// Bytes of a length.
const LENGTH: usize = 4;
/// The longest header.
pub const HEADER_MAX: usize = LENGTH + 1;

pub const GUEST: Layout = Layout {
    order: Order::Little,
    has_kind: false,
    max: limits::GUEST_FRAME_MAX,
};
pub const RUNNER: Layout = Layout {
    order: Order::Little,
    has_kind: true,
    max: limits::RUNNER_FRAME_MAX,
};
pub const GATEWAY_CALL: Layout = Layout {
    order: Order::Big,
    has_kind: false,
    max: limits::GATEWAY_CALL_MAX,
};
pub const GATEWAY_REPLY: Layout = Layout {
    max: limits::GATEWAY_REPLY_MAX,
    ..GATEWAY_CALL
};

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// 0 where the wire has no kinds.
    pub kind: u8,
    pub length: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oversize {
    pub length: usize,
    pub max: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the other side closed the connection")]
    Closed,
    #[error("a frame of {} bytes is over the limit of {}", .0.length, .0.max)]
    TooLarge(Oversize),
    #[error("a frame could not be decoded")]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the connection failed")]
    Io(#[source] io::Error),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl From<FrameError> for io::Error {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Closed => Self::new(io::ErrorKind::UnexpectedEof, error),
            FrameError::Io(error) => error,
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}

impl Layout {
    /// Bytes before the body.
    pub const fn header(&self) -> usize {
        match self.has_kind {
            true => LENGTH + 1,
            false => LENGTH,
        }
    }

    pub const fn max(&self) -> usize {
        self.max
    }

    /// The same wire with a lower limit.
    pub const fn at_most(self, max: usize) -> Self {
        match max < self.max {
            true => Self { max, ..self },
            false => self,
        }
    }

    fn bounded(&self, length: usize) -> Result<usize, FrameError> {
        match length <= self.max {
            true => Ok(length),
            false => Err(FrameError::TooLarge(Oversize {
                length,
                max: self.max,
            })),
        }
    }

    /// The header of a body of `length` bytes, in the first [`Layout::header`] bytes.
    pub fn head(&self, kind: u8, length: usize) -> Result<[u8; HEADER_MAX], FrameError> {
        // Limits are below 4 GiB, which the tests hold them to.
        let length = self.bounded(length)? as u32;
        let [a, b, c, d] = match self.order {
            Order::Little => length.to_le_bytes(),
            Order::Big => length.to_be_bytes(),
        };
        Ok([a, b, c, d, kind])
    }

    /// Fills the header of a frame whose body already stands behind the room for it.
    pub fn seal(&self, kind: u8, frame: &mut [u8]) -> Result<(), FrameError> {
        let header = self.header();
        let head = self.head(kind, frame.len() - header)?;
        frame[..header].copy_from_slice(&head[..header]);
        Ok(())
    }

    /// What the header at the front of `bytes` says, once it is there. A length over the limit is refused before
    /// anything is made for it.
    pub fn announced(&self, bytes: &[u8]) -> Result<Option<Head>, FrameError> {
        let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = match self.order {
            Order::Little => u32::from_le_bytes(*length),
            Order::Big => u32::from_be_bytes(*length),
        };
        let length = self.bounded(usize::try_from(length).unwrap_or(usize::MAX))?;
        match (self.has_kind, rest.first()) {
            (false, _) => Ok(Some(Head { kind: 0, length })),
            (true, Some(kind)) => Ok(Some(Head {
                kind: *kind,
                length,
            })),
            (true, None) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_fits_into_a_length() {
        for layout in [GUEST, RUNNER, GATEWAY_CALL, GATEWAY_REPLY] {
            assert!(u32::try_from(layout.max()).is_ok());
            assert!(layout.head(0, layout.max()).is_ok());
            assert!(matches!(
                layout.head(0, layout.max() + 1),
                Err(FrameError::TooLarge(_))
            ));
        }
    }
}
