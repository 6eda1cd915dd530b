//! A snapshot as one portable file, written and read as a stream.
//!
//! ```text
//! "cove-snapshot\n"  u32 version
//! section…           u8 kind, chunks (u32 length, bytes) up to one of length 0, sha256
//!   manifest (1)     JSON: what it is, what its image and its memory want
//!   root     (2)     a tar, mostly in gzip: the whole file system, image and changes made one
//!   memory   (3)     gzip of records (u16 name length, name, u64 length, bytes); only with memory
//!   end      (255)   JSON: who signed, and the signature
//! ```
//! Numbers are little-endian. A section's hash covers its kind and its bytes; the signature covers
//! the head and the hashes of all sections before the end, so nothing can be taken out, put in or
//! exchanged. A file without its end was cut off.
//!
//! This process handles lengths, hashes and the signature. What a section holds is written and read by
//! confined programs alone: the root of a file of something else goes to the unpacker as it comes, manifest and
//! end to the parser. Memory is another matter: what restores it trusts it. It is put aside as it comes
//! and unpacked only when the whole file was signed by a key this host trusts; otherwise it is left out.

use cove_image::OciConfig;
use cove_model::{SandboxId, SandboxSpec};
use serde::Serialize;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::record::MemoryRecord;

mod export;
mod import;
pub mod key;
mod read;
mod write;

use cove_runner_api::snapshot_file::{END, MAGIC, PIECE_MAX as CHUNK_MAX, VERSION};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Manifest = 1,
    Root = 2,
    Memory = 3,
    End = END,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Manifest, Self::Root, Self::Memory, Self::End]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// As it is written; the parser has the form in which it is read.
#[derive(Debug, Serialize)]
struct Manifest {
    /// Where it was taken; means nothing on another host but to a person.
    sandbox: SandboxId,
    spec: SandboxSpec,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    architecture: String,
    image: OciConfig,
    image_names: Vec<String>,
    memory: Option<MemoryRecord>,
}

#[derive(Debug, Serialize)]
struct End {
    /// Ed25519, in hex.
    key: String,
    signature: String,
}

/// What is signed: a hash over the head and every section's hash.
struct Seal(Sha256);

impl Seal {
    fn new() -> Self {
        let mut hash = Sha256::new();
        hash.update(MAGIC);
        hash.update(VERSION.to_le_bytes());
        Self(hash)
    }

    fn section(&mut self, digest: &[u8; 32]) {
        self.0.update(digest);
    }

    fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

fn section_hash(kind: Kind) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update([kind as u8]);
    hash
}
