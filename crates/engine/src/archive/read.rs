//! Reading a file of something else section by section, with every length checked before it is believed.

use std::io;
use std::time::Duration;

use cove_parser::manifest::DESCRIPTION_MAX;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{CHUNK_MAX, Kind, MAGIC, Seal, VERSION, section_hash};

/// How long the other side may say nothing in the middle of a file.
const STALL_MAX: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("this is not an exported snapshot")]
    NotOurs,
    #[error("the file is of version {0}, and this version of Cove reads version {VERSION}")]
    Version(u32),
    #[error("the file is truncated")]
    CutOff,
    #[error("the file is damaged: {0}")]
    Damaged(String),
    #[error("no data of the file arrived for {} s", STALL_MAX.as_secs())]
    Stalled,
    #[error("the file could not be read: {0}")]
    Io(io::Error),
}

fn damaged(what: impl Into<String>) -> ReadError {
    ReadError::Damaged(what.into())
}

pub struct Reader<R> {
    input: R,
    seal: Seal,
    hash: Option<Sha256>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub async fn begin(input: R) -> Result<Self, ReadError> {
        let mut reader = Self {
            input,
            seal: Seal::new(),
            hash: None,
        };
        let mut head = [0; MAGIC.len() + 4];
        match reader.fill(&mut head).await {
            Err(ReadError::CutOff) => return Err(ReadError::NotOurs),
            result => result?,
        }
        let (magic, version) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(ReadError::NotOurs);
        }
        let version = u32::from_le_bytes(version.try_into().expect("four bytes are left"));
        if version != VERSION {
            return Err(ReadError::Version(version));
        }
        Ok(reader)
    }

    async fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ReadError> {
        match tokio::time::timeout(STALL_MAX, self.input.read_exact(bytes)).await {
            Err(_) => Err(ReadError::Stalled),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ReadError::CutOff)
            }
            Ok(Err(error)) => Err(ReadError::Io(error)),
        }
    }

    /// The kind of the next section.
    pub async fn next(&mut self) -> Result<Kind, ReadError> {
        let mut byte = [0];
        self.fill(&mut byte).await?;
        let kind = Kind::from_byte(byte[0])
            .ok_or_else(|| damaged(format!("a section of unknown kind {}", byte[0])))?;
        self.hash = Some(section_hash(kind));
        Ok(kind)
    }

    /// The next piece of the section into `chunk`; false at its end, once its hash was checked.
    pub async fn chunk(&mut self, chunk: &mut Vec<u8>) -> Result<bool, ReadError> {
        let mut length = [0; 4];
        self.fill(&mut length).await?;
        let length = u32::from_le_bytes(length) as usize;
        if length > CHUNK_MAX {
            return Err(damaged("a chunk is too long"));
        }
        chunk.resize(length, 0);
        if length > 0 {
            self.fill(chunk).await?;
            if let Some(hash) = &mut self.hash {
                hash.update(&chunk);
            }
            return Ok(true);
        }
        let mut told = [0; 32];
        self.fill(&mut told).await?;
        let hash = self.hash.take().ok_or_else(|| damaged("no section"))?;
        let digest: [u8; 32] = hash.finalize().into();
        if digest != told {
            return Err(damaged("a checksum does not match"));
        }
        self.seal.section(&digest);
        Ok(false)
    }

    /// The whole section, for the parser.
    pub async fn description(&mut self) -> Result<Vec<u8>, ReadError> {
        let (mut all, mut chunk) = (Vec::new(), Vec::new());
        while self.chunk(&mut chunk).await? {
            if all.len() + chunk.len() > DESCRIPTION_MAX {
                return Err(damaged("a description is too long"));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    /// What the signature must cover, if the next section is the end.
    pub fn seal_so_far(&self) -> [u8; 32] {
        Seal(self.seal.0.clone()).finish()
    }

    /// Makes sure that nothing follows.
    pub async fn finish(mut self) -> Result<(), ReadError> {
        let mut byte = [0];
        match tokio::time::timeout(STALL_MAX, self.input.read(&mut byte)).await {
            Err(_) => Err(ReadError::Stalled),
            Ok(Ok(0)) => Ok(()),
            Ok(Ok(_)) => Err(damaged("there is data after its end")),
            Ok(Err(error)) => Err(ReadError::Io(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::Keys;
    use super::super::write::Writer;
    use super::*;
    use cove_parser::Signature;
    use std::io::Write;

    fn file(keys: &Keys) -> Vec<u8> {
        let mut writer = Writer::begin(Vec::new()).unwrap();
        writer.json(Kind::Manifest, &"hello").unwrap();
        let mut section = writer.section(Kind::Root).unwrap();
        section.write_all(&[7; CHUNK_MAX + 100]).unwrap();
        section.finish().unwrap();
        writer.finish(keys).unwrap()
    }

    /// Reads a whole file; tells whether its signature holds.
    async fn read(bytes: &[u8], keys: &Keys) -> Result<bool, ReadError> {
        let mut reader = Reader::begin(bytes).await?;
        let mut chunk = Vec::new();
        loop {
            let seal = reader.seal_so_far();
            match reader.next().await? {
                Kind::End => {
                    let end = reader.description().await?;
                    reader.finish().await?;
                    // As the parser does, which has tests of its own.
                    let end: serde_json::Value =
                        serde_json::from_slice(&end).map_err(|error| damaged(error.to_string()))?;
                    let bytes = |name: &str| {
                        hex::decode(end[name].as_str().unwrap_or_default()).unwrap_or_default()
                    };
                    let key = bytes("key").try_into();
                    let signature = bytes("signature").try_into();
                    return Ok(match (key, signature) {
                        (Ok(key), Ok(signature)) => keys
                            .check(Some(&Signature { key, signature }), &seal)
                            .is_ok(),
                        _ => false,
                    });
                }
                _ => while reader.chunk(&mut chunk).await? {},
            }
        }
    }

    #[tokio::test]
    async fn a_file_reads_back_and_no_flipped_bit_goes_unnoticed() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path(), &[]).unwrap();
        let whole = file(&keys);
        assert!(read(&whole, &keys).await.unwrap());
        for at in (0..whole.len()).filter(|at| *at < 200 || at % 4099 == 0) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert!(!matches!(read(&flipped, &keys).await, Ok(true)), "at {at}");
        }
        for length in (0..whole.len()).filter(|at| *at < 200 || at % 4099 == 0) {
            assert!(read(&whole[..length], &keys).await.is_err());
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(read(&longer, &keys).await.is_err());
    }

    #[tokio::test]
    async fn foreign_files_and_versions_are_told_apart() {
        assert!(matches!(
            Reader::begin(&b"PK\x03\x04"[..]).await,
            Err(ReadError::NotOurs)
        ));
        let mut newer = MAGIC.to_vec();
        newer.extend_from_slice(&9_u32.to_le_bytes());
        assert!(matches!(
            Reader::begin(&newer[..]).await,
            Err(ReadError::Version(9))
        ));
    }
}
