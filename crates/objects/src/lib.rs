//! Snapshots in object storage: what a host had on its disk, kept where the host's loss does not reach.
//!
//! ```text
//!  bytes ─► cut by content ─► named by HMAC ─► zstd ─► AEAD ─► <org>/chunks/…     [`Upload`]
//!  order of the chunks, sealed the same way ─────────────────► <org>/manifests/…
//! ```
//! Whoever owns the bucket sees sizes, times and ids of organisations. It can neither read nor change anything
//! unnoticed, nor put a chunk in another one's place: names and contents are bound to each other by keys that are
//! not there ([`OrgKey`]). Equal chunks of one organisation are kept once; those of two have nothing in common.
//!
//! What exists is the database's to know ([`Catalog`]), never the bucket's: no request here depends on a condition
//! that a server checks, and nothing is listed. An upload registers a chunk before it looks whether it is there
//! already. What nobody uses is condemned in the same tables, and deleted from the bucket once no upload can still
//! be writing it. The random end of a name makes sure that a condemned one is never written again.
#![forbid(unsafe_code)]

mod bucket;
mod download;
mod http;
mod keys;
mod manifest;
mod pace;
mod upload;

pub use bucket::{Bucket, BucketConfig};
pub use download::Download;
pub use keys::{Digest, OrgKey};
pub use manifest::{CHUNKS_MAX, ChunkRef, PARTS_MAX, Part};
pub use pace::Pace;
pub use upload::{Catalog, Claimed, Outcome, Upload, UploadLimits, Wanted};

/// Content decides where chunks end; these are their bounds in bytes before compression. Smaller ones find more
/// that is equal, larger ones cost fewer requests.
pub const CHUNK_MIN: usize = 16 << 10;
pub const CHUNK_AVERAGE: usize = 64 << 10;
pub const CHUNK_MAX: usize = 256 << 10;
/// A manifest in the bucket: 100 GiB of small chunks.
pub const MANIFEST_MAX: usize = 64 << 20;

type Source = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    #[error("the address of the object storage is invalid: {0}")]
    Address(String),
    #[error("cannot {doing} in object storage")]
    Unreachable {
        doing: &'static str,
        #[source]
        source: Source,
    },
    #[error("object storage did not answer within {seconds} s: cannot {doing}")]
    Stalled { doing: &'static str, seconds: u64 },
    #[error("object storage does not have {name}")]
    Missing { name: String },
    #[error("{name} in object storage is damaged: {problem}")]
    Damaged { name: String, problem: &'static str },
    #[error("the snapshot is too large for object storage")]
    TooLarge,
    /// Another upload of the same snapshot has taken over, or the snapshot is gone.
    #[error("the upload was abandoned: another one took over, or the snapshot was deleted")]
    Superseded,
    #[error("the database did not register the upload")]
    Catalog(#[source] Source),
}

impl ObjectsError {
    /// Whether the same may succeed later without anybody changing anything.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Stalled { .. })
    }
}
