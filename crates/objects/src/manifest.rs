//! Which chunks make up a snapshot, in which order.
//!
//! ```text
//! "cove-objects\n" u8 version, u8 parts
//! part…   u8 kind, u16 length and trailer, u64 bytes, u32 count, then per chunk: digest, u64 suffix, u32 bytes
//! ```
//! Numbers are little-endian. It is sealed like a chunk, so a reader of it knows that this program wrote it.

use crate::keys::Digest;
use crate::{CHUNK_MAX, MANIFEST_MAX, ObjectsError};

const MAGIC: &[u8; 13] = b"cove-objects\n";
const VERSION: u8 = 1;
/// A snapshot has four.
pub const PARTS_MAX: usize = 16;
const TRAILER_MAX: usize = 4096;
const CHUNK_BYTES: usize = 32 + 8 + 4;
/// What a part has besides its chunks, and the manifest besides its parts.
const PART_MORE: usize = TRAILER_MAX + 64;
/// Chunks that a manifest lists at most: an upload writes half of what a download accepts.
pub const CHUNKS_MAX: usize = (MANIFEST_MAX / 2 - (PARTS_MAX + 1) * PART_MORE) / CHUNK_BYTES;

/// One chunk where it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRef {
    pub digest: Digest,
    /// The random end of its name.
    pub suffix: u64,
    /// Before compression.
    pub bytes: u32,
}

/// A run of bytes with a meaning of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub kind: u8,
    pub bytes: u64,
    /// What the maker wants back with it.
    pub trailer: Vec<u8>,
    pub chunks: Vec<ChunkRef>,
}

pub(crate) fn encode(parts: &[Part]) -> Result<Vec<u8>, ObjectsError> {
    let count = u8::try_from(parts.len()).map_err(|_| ObjectsError::TooLarge)?;
    if parts.len() > PARTS_MAX {
        return Err(ObjectsError::TooLarge);
    }
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&[VERSION, count]);
    for part in parts {
        let trailer = u16::try_from(part.trailer.len()).map_err(|_| ObjectsError::TooLarge)?;
        let chunks = u32::try_from(part.chunks.len()).map_err(|_| ObjectsError::TooLarge)?;
        if part.trailer.len() > TRAILER_MAX {
            return Err(ObjectsError::TooLarge);
        }
        out.push(part.kind);
        out.extend_from_slice(&trailer.to_le_bytes());
        out.extend_from_slice(&part.trailer);
        out.extend_from_slice(&part.bytes.to_le_bytes());
        out.extend_from_slice(&chunks.to_le_bytes());
        for chunk in &part.chunks {
            out.extend_from_slice(&chunk.digest.0);
            out.extend_from_slice(&chunk.suffix.to_le_bytes());
            out.extend_from_slice(&chunk.bytes.to_le_bytes());
        }
    }
    Ok(out)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}

/// `None` for anything that [`encode`] does not write.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<Part>> {
    let mut reader = Reader(bytes);
    let head = reader.take(MAGIC.len())?;
    let [version, count] = reader.array()?;
    if head != MAGIC || version != VERSION || usize::from(count) > PARTS_MAX {
        return None;
    }
    let mut parts = Vec::new();
    for _ in 0..count {
        let [kind] = reader.array()?;
        let trailer = usize::from(u16::from_le_bytes(reader.array()?));
        if trailer > TRAILER_MAX {
            return None;
        }
        let trailer = reader.take(trailer)?.to_vec();
        let bytes = u64::from_le_bytes(reader.array()?);
        let count = u32::from_le_bytes(reader.array()?) as usize;
        // Checked before anything is allocated for it.
        let mut listed = Reader(reader.take(count.checked_mul(CHUNK_BYTES)?)?);
        let mut chunks = Vec::with_capacity(count);
        let mut sum = 0_u64;
        for _ in 0..count {
            let chunk = ChunkRef {
                digest: Digest(listed.array()?),
                suffix: u64::from_le_bytes(listed.array()?),
                bytes: u32::from_le_bytes(listed.array()?),
            };
            if chunk.bytes as usize > CHUNK_MAX {
                return None;
            }
            sum += u64::from(chunk.bytes);
            chunks.push(chunk);
        }
        if sum != bytes {
            return None;
        }
        parts.push(Part {
            kind,
            bytes,
            trailer,
            chunks,
        });
    }
    reader.0.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part() -> impl Strategy<Value = Part> {
        let chunk = (any::<[u8; 32]>(), any::<u64>(), 0..=CHUNK_MAX as u32);
        let chunks = proptest::collection::vec(chunk, 0..20);
        let trailer = proptest::collection::vec(any::<u8>(), 0..64);
        (any::<u8>(), trailer, chunks).prop_map(|(kind, trailer, chunks)| {
            let chunks: Vec<_> = chunks
                .into_iter()
                .map(|(digest, suffix, bytes)| ChunkRef {
                    digest: Digest(digest),
                    suffix,
                    bytes,
                })
                .collect();
            Part {
                kind,
                bytes: chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum(),
                trailer,
                chunks,
            }
        })
    }

    proptest! {
        #[test]
        fn a_manifest_reads_back(parts in proptest::collection::vec(part(), 0..6)) {
            let bytes = encode(&parts).unwrap();
            prop_assert_eq!(decode(&bytes), Some(parts));
            for cut in 0..bytes.len() {
                prop_assert_eq!(decode(&bytes[..cut]), None);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let mut framed = MAGIC.to_vec();
            framed.push(VERSION);
            framed.extend_from_slice(&bytes);
            let _ = decode(&bytes);
            let _ = decode(&framed);
        }
    }
}
