//! What begins a connection between control and a relay, the only bytes that a relay reads.
//!
//! ```text
//! "cove" version kind 0 0            then
//!   call                             the bytes of a call to the runner and its answer
//!   call with a stream               length (4 bytes, little-endian), that many bytes of the call, the stream's bytes
//!   report                           back: a message with the relay's clock and certificate
//!   renew                            back: a new public key; there: its certificate; back: a report
//! ```
//! A message is its length (4 bytes, little-endian) and JSON.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const MAGIC: &[u8; 4] = b"cove";
pub const VERSION: u8 = 1;
pub const BYTES: usize = 8;
/// Longest message of a report or a renewal.
const MESSAGE_MAX: usize = 32 * 1024;
/// Longest first part of a call that a stream comes with: the bytes that the runner reads before the stream.
pub const CALL_MAX: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Call = 1,
    CallWithStream = 2,
    Report = 3,
    Renew = 4,
}

pub fn encode(kind: Kind) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4] = VERSION;
    bytes[5] = kind as u8;
    bytes
}

pub fn parse(bytes: &[u8; BYTES]) -> io::Result<Kind> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    if bytes[..4] != *MAGIC {
        return Err(refused("not a connection of control".into()));
    }
    if bytes[4] != VERSION {
        return Err(refused(format!("version {} is unknown", bytes[4])));
    }
    let known = [Kind::Call, Kind::CallWithStream, Kind::Report, Kind::Renew];
    let kind = known.into_iter().find(|kind| *kind as u8 == bytes[5]);
    match kind {
        Some(kind) if bytes[6..] == [0, 0] => Ok(kind),
        _ => Err(refused(format!("kind {} is unknown", bytes[5]))),
    }
}

pub async fn write_message(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    let whole = [&length.to_le_bytes()[..], &text].concat();
    stream.write_all(&whole).await?;
    stream.flush().await
}

pub async fn read_message<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    let length = stream.read_u32_le().await? as usize;
    if length > MESSAGE_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the message is too long",
        ));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_is_read() {
        for kind in [Kind::Call, Kind::CallWithStream, Kind::Report, Kind::Renew] {
            let whole = encode(kind);
            assert_eq!(parse(&whole).unwrap(), kind);
            for index in 0..BYTES {
                let mut odd = whole;
                odd[index] ^= 0x40;
                assert!(parse(&odd).is_err(), "{index}");
            }
        }
    }
}
