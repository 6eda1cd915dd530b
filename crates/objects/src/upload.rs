//! Putting a snapshot into the bucket: only what is not there yet, and nothing that the database does not know.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_model::OrgId;
use fastcdc::v2020::FastCDC;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bucket::Bucket;
use crate::keys::{Digest, OrgKey};
use crate::manifest::{self, ChunkRef, Part};
use crate::pace::Pace;
use crate::{
    CHUNK_AVERAGE, CHUNK_MAX, CHUNK_MIN, CHUNKS_MAX, MANIFEST_MAX, ObjectsError, PARTS_MAX, Source,
};

/// Chunks that are registered in one transaction.
const BATCH_MAX: usize = 32;
/// Bytes that are cut at once. More than one chunk, so that cutting does not run for every few bytes.
const BUFFER_BYTES: usize = 8 * CHUNK_MAX;

/// A chunk that an upload will refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub digest: Digest,
    /// The end of its name if nobody has registered it yet.
    pub suffix: u64,
    /// Before compression.
    pub bytes: u32,
}

/// What the database says to that, in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    pub suffix: u64,
    /// It is in the bucket, and stays there for as long as this upload or its snapshot does.
    pub stored: bool,
}

/// What one upload has in the database. Every call extends its lease; [`ObjectsError::Superseded`] when another one
/// took over, after which it may write nothing more.
#[async_trait]
pub trait Catalog: Send + Sync {
    /// Registers the use of chunks, then looks which are there.
    async fn claim(&self, chunks: &[Wanted]) -> Result<Vec<Claimed>, ObjectsError>;
    /// These are in the bucket now, with so many bytes.
    async fn stored(&self, chunks: &[(Digest, u64)]) -> Result<(), ObjectsError>;
    async fn renew(&self) -> Result<(), ObjectsError>;
    /// The manifest is in the bucket: the snapshot is durable once this returns.
    async fn commit(&self, outcome: &Outcome) -> Result<(), ObjectsError>;
}

/// What came of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The manifest's name.
    pub manifest: String,
    /// Of the snapshot.
    pub bytes: u64,
    pub chunks: u64,
    /// What was written to the bucket for it, the manifest included.
    pub sent_bytes: u64,
    pub manifest_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct UploadLimits {
    /// Writes under way.
    pub at_once: usize,
    /// No write begins later than this after the last answer of the catalog. What is condemned is deleted only after
    /// this and the longest write together.
    pub lease: Duration,
    /// Bytes before compression: files with holes read as far more than they hold, and equal chunks cost nothing else.
    pub bytes_max: u64,
    /// Chunks of all parts together; never more than [`CHUNKS_MAX`].
    pub chunks_max: usize,
}

impl Default for UploadLimits {
    fn default() -> Self {
        Self {
            at_once: 8,
            lease: Duration::from_secs(300),
            bytes_max: u64::MAX,
            chunks_max: CHUNKS_MAX,
        }
    }
}

pub(crate) fn chunk_name(org: &OrgId, digest: Digest, suffix: u64) -> String {
    let digest = digest.to_hex();
    format!("{org}/chunks/{}/{digest}-{suffix:016x}", &digest[..2])
}

/// One upload. What was not finished leaves nothing but registered chunks, which another try finds again.
pub struct Upload {
    shared: Arc<Shared>,
    limits: UploadLimits,
    manifest: String,
    parts: Vec<Part>,
    open: Option<Part>,
    buffer: Vec<u8>,
    batch: Vec<(Digest, Vec<u8>)>,
    /// Names of what this upload has registered.
    known: HashMap<Digest, u64>,
    writing: JoinSet<Result<(Digest, u64), ObjectsError>>,
    written: Vec<(Digest, u64)>,
    sent_bytes: u64,
    /// What was read and cut so far, of all parts.
    read_bytes: u64,
    cut_chunks: usize,
}

struct Shared {
    bucket: Bucket,
    key: Arc<OrgKey>,
    org: OrgId,
    pace: Arc<Pace>,
    catalog: Arc<dyn Catalog>,
    /// When the last call was sent that the catalog answered.
    renewed: Mutex<Instant>,
    lease: Duration,
}

impl Shared {
    async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, ObjectsError>>,
    ) -> Result<T, ObjectsError> {
        let sent = Instant::now();
        let answer = call.await?;
        *self.renewed.lock() = sent;
        Ok(answer)
    }

    async fn put(&self, name: &str, plain: &[u8]) -> Result<u64, ObjectsError> {
        let sealed = self.key.seal(name, plain)?;
        let bytes = sealed.len();
        self.pace.take(&self.org, bytes).await;
        let age = self.renewed.lock().elapsed();
        if age >= self.lease / 2 {
            self.ask(self.catalog.renew()).await?;
        }
        self.bucket.put(name, sealed).await?;
        Ok(bytes as u64)
    }
}

impl Upload {
    /// `manifest` is a name of this upload alone, as [`Upload::manifest_name`] makes them.
    pub fn new(
        bucket: Bucket,
        key: Arc<OrgKey>,
        org: OrgId,
        pace: Arc<Pace>,
        catalog: Arc<dyn Catalog>,
        manifest: String,
        limits: UploadLimits,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                bucket,
                key,
                org,
                pace,
                catalog,
                renewed: Mutex::new(Instant::now()),
                lease: limits.lease,
            }),
            limits,
            manifest,
            parts: Vec::new(),
            open: None,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            batch: Vec::new(),
            known: HashMap::new(),
            writing: JoinSet::new(),
            written: Vec::new(),
            sent_bytes: 0,
            read_bytes: 0,
            cut_chunks: 0,
        }
    }

    /// Never the same twice.
    pub fn manifest_name(org: &OrgId, of: &str) -> String {
        format!("{org}/manifests/{of}-{:016x}", rand::random::<u64>())
    }

    pub fn begin_part(&mut self, kind: u8) -> Result<(), ObjectsError> {
        if self.open.is_some() || self.parts.len() >= PARTS_MAX {
            return Err(ObjectsError::TooLarge);
        }
        self.open = Some(Part {
            kind,
            bytes: 0,
            trailer: Vec::new(),
            chunks: Vec::new(),
        });
        Ok(())
    }

    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), ObjectsError> {
        self.read_bytes = self.read_bytes.saturating_add(bytes.len() as u64);
        if self.read_bytes > self.limits.bytes_max {
            return Err(ObjectsError::TooLarge);
        }
        while !bytes.is_empty() {
            let room = BUFFER_BYTES - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == BUFFER_BYTES {
                self.cut(false).await?;
            }
        }
        Ok(())
    }

    /// `trailer` comes back with the part.
    pub async fn end_part(&mut self, trailer: Vec<u8>) -> Result<(), ObjectsError> {
        self.cut(true).await?;
        self.register().await?;
        let mut part = self.open.take().ok_or(ObjectsError::TooLarge)?;
        part.trailer = trailer;
        self.parts.push(part);
        Ok(())
    }

    /// Cuts what is buffered; the rest stays, unless it is the `last` of a part.
    async fn cut(&mut self, last: bool) -> Result<(), ObjectsError> {
        let mut from = 0;
        while from < self.buffer.len() {
            let rest = self.buffer.len() - from;
            if !last && rest < CHUNK_MAX {
                break;
            }
            let window = &self.buffer[from..from + rest.min(CHUNK_MAX)];
            let cutter = FastCDC::new(window, CHUNK_MIN, CHUNK_AVERAGE, CHUNK_MAX);
            let (_, end) = cutter.cut(0, window.len());
            let plain = window[..end.clamp(1, window.len())].to_vec();
            from += plain.len();
            self.batch.push((self.shared.key.digest(&plain), plain));
            if self.batch.len() == BATCH_MAX {
                self.register().await?;
            }
        }
        self.buffer.drain(..from);
        Ok(())
    }

    /// Registers the batch, and begins to write what is not there.
    async fn register(&mut self) -> Result<(), ObjectsError> {
        let batch = std::mem::take(&mut self.batch);
        // Before anything is registered: what no manifest can hold would be read for nothing, perhaps without an end.
        self.cut_chunks += batch.len();
        if self.cut_chunks > self.limits.chunks_max.min(CHUNKS_MAX) {
            return Err(ObjectsError::TooLarge);
        }
        let mut wanted: Vec<Wanted> = Vec::new();
        for (digest, plain) in &batch {
            let is_new = !self.known.contains_key(digest);
            if is_new && wanted.iter().all(|other| other.digest != *digest) {
                wanted.push(Wanted {
                    digest: *digest,
                    suffix: rand::random(),
                    bytes: plain.len() as u32,
                });
            }
        }
        let shared = Arc::clone(&self.shared);
        let claimed = match wanted.is_empty() {
            true => Vec::new(),
            false => shared.ask(shared.catalog.claim(&wanted)).await?,
        };
        if claimed.len() != wanted.len() {
            return Err(ObjectsError::Catalog("answers are missing".into()));
        }
        let mut absent: HashMap<Digest, u64> = HashMap::new();
        for (wanted, claimed) in wanted.iter().zip(&claimed) {
            self.known.insert(wanted.digest, claimed.suffix);
            if !claimed.stored {
                absent.insert(wanted.digest, claimed.suffix);
            }
        }
        for (digest, plain) in batch {
            let suffix = *self.known.get(&digest).ok_or(ObjectsError::TooLarge)?;
            let part = self.open.as_mut().ok_or(ObjectsError::TooLarge)?;
            part.bytes += plain.len() as u64;
            part.chunks.push(ChunkRef {
                digest,
                suffix,
                bytes: plain.len() as u32,
            });
            if absent.remove(&digest).is_some() {
                while self.writing.len() >= self.limits.at_once {
                    self.settle_one().await?;
                }
                let shared = Arc::clone(&self.shared);
                self.writing.spawn(async move {
                    let name = chunk_name(&shared.org, digest, suffix);
                    let bytes = shared.put(&name, &plain).await?;
                    Ok((digest, bytes))
                });
            }
        }
        self.tell_written().await
    }

    /// Waits for one write.
    async fn settle_one(&mut self) -> Result<(), ObjectsError> {
        let Some(done) = self.writing.join_next().await else {
            return Ok(());
        };
        let (digest, bytes) =
            done.map_err(|error| ObjectsError::Catalog(Source::from(error)))??;
        self.sent_bytes += bytes;
        self.written.push((digest, bytes));
        Ok(())
    }

    async fn tell_written(&mut self) -> Result<(), ObjectsError> {
        let written = std::mem::take(&mut self.written);
        if written.is_empty() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        shared.ask(shared.catalog.stored(&written)).await
    }

    /// Everything is in the bucket and registered when this returns.
    pub async fn finish(mut self) -> Result<Outcome, ObjectsError> {
        if self.open.is_some() {
            return Err(ObjectsError::TooLarge);
        }
        while !self.writing.is_empty() {
            self.settle_one().await?;
        }
        self.tell_written().await?;
        let encoded = manifest::encode(&self.parts)?;
        if encoded.len() > MANIFEST_MAX / 2 {
            return Err(ObjectsError::TooLarge);
        }
        let manifest_bytes = self.shared.put(&self.manifest, &encoded).await?;
        let outcome = Outcome {
            manifest: self.manifest.clone(),
            bytes: self.parts.iter().map(|part| part.bytes).sum(),
            chunks: self.known.len() as u64,
            sent_bytes: self.sent_bytes + manifest_bytes,
            manifest_bytes,
        };
        let shared = Arc::clone(&self.shared);
        shared.ask(shared.catalog.commit(&outcome)).await?;
        Ok(outcome)
    }
}
