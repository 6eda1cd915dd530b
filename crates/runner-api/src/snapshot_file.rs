//! The outer form of an exported snapshot: sections of bytes with a kind and a checksum. What is inside, the engine
//! and its confined programs know (`engine/src/archive.rs`).
//!
//! Whoever stores such a file elsewhere may cut sections into other pieces: checksums and the signature cover their
//! kind and bytes alone.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

pub const MAGIC: &[u8; 14] = b"cove-snapshot\n";
pub const VERSION: u32 = 1;
/// The largest piece; readers refuse more.
pub const PIECE_MAX: usize = 256 << 10;
/// The section that ends a file.
pub const END: u8 = 255;
pub const CHECKSUM_BYTES: usize = 32;
/// How long the other side may say nothing in the middle of a file.
const STALL_MAX: Duration = Duration::from_secs(120);

/// What comes next in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Begin(u8),
    Bytes(Vec<u8>),
    /// With the section's checksum, which is not checked here.
    End([u8; CHECKSUM_BYTES]),
}

/// Reads a file from the host of this program; its contents are not looked at.
pub struct Sections<R> {
    input: R,
    inside: Option<u8>,
    ended: bool,
}

impl<R: AsyncRead + Unpin> Sections<R> {
    pub async fn begin(input: R) -> io::Result<Self> {
        let mut sections = Self {
            input,
            inside: None,
            ended: false,
        };
        let head: [u8; MAGIC.len() + 4] = sections.fill().await?;
        let (magic, version) = head.split_at(MAGIC.len());
        if magic != MAGIC || version != VERSION.to_le_bytes() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the host sent no snapshot of a known version",
            ));
        }
        Ok(sections)
    }

    async fn fill<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(&mut bytes).await?;
        Ok(bytes)
    }

    async fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let read = timeout(STALL_MAX, self.input.read_exact(bytes)).await;
        read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
            .map(drop)
    }

    /// `None` after the whole file; an error when it was cut off.
    pub async fn next(&mut self) -> io::Result<Option<Item>> {
        let Some(kind) = self.inside else {
            if self.ended {
                return Ok(None);
            }
            let [kind] = self.fill().await?;
            self.inside = Some(kind);
            return Ok(Some(Item::Begin(kind)));
        };
        let length = u32::from_le_bytes(self.fill().await?) as usize;
        if length > PIECE_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a piece of a snapshot is too long",
            ));
        }
        if length == 0 {
            let checksum = self.fill().await?;
            self.inside = None;
            self.ended = kind == END;
            return Ok(Some(Item::End(checksum)));
        }
        let mut bytes = vec![0; length];
        self.read(&mut bytes).await?;
        Ok(Some(Item::Bytes(bytes)))
    }
}

pub async fn write_head(output: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    output.write_all(MAGIC).await?;
    output.write_all(&VERSION.to_le_bytes()).await
}

pub async fn write_begin(output: &mut (impl AsyncWrite + Unpin), kind: u8) -> io::Result<()> {
    output.write_all(&[kind]).await
}

pub async fn write_bytes(output: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    for piece in bytes.chunks(PIECE_MAX) {
        output
            .write_all(&(piece.len() as u32).to_le_bytes())
            .await?;
        output.write_all(piece).await?;
    }
    Ok(())
}

pub async fn write_end(output: &mut (impl AsyncWrite + Unpin), checksum: &[u8]) -> io::Result<()> {
    output.write_all(&0_u32.to_le_bytes()).await?;
    output.write_all(checksum).await
}
