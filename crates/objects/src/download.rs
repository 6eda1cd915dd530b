//! Getting a snapshot back out of the bucket, checked piece by piece.

use std::sync::Arc;

use bytes::Bytes;
use cove_model::OrgId;
use futures_util::{Stream, StreamExt, stream};

use crate::bucket::Bucket;
use crate::keys::OrgKey;
use crate::manifest::{self, ChunkRef, Part};
use crate::upload::chunk_name;
use crate::{CHUNK_MAX, MANIFEST_MAX, ObjectsError};

/// Chunks that are fetched side by side.
const AT_ONCE: usize = 8;

/// What a manifest says, ready to be read.
pub struct Download {
    bucket: Bucket,
    key: Arc<OrgKey>,
    org: OrgId,
    parts: Vec<Part>,
}

impl Download {
    pub async fn open(
        bucket: Bucket,
        key: Arc<OrgKey>,
        org: OrgId,
        name: &str,
    ) -> Result<Self, ObjectsError> {
        let sealed = bucket.get_manifest(name).await?;
        let plain = key.open(name, &sealed, MANIFEST_MAX)?;
        let parts = manifest::decode(&plain).ok_or_else(|| ObjectsError::Damaged {
            name: name.to_owned(),
            problem: "it is not a manifest",
        })?;
        Ok(Self {
            bucket,
            key,
            org,
            parts,
        })
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The bytes of a part in order. Whoever reads slowly is waited for.
    pub fn read<'a>(
        &'a self,
        part: &'a Part,
    ) -> impl Stream<Item = Result<Bytes, ObjectsError>> + Send + 'a {
        stream::iter(&part.chunks)
            .map(|chunk| self.fetch(chunk))
            .buffered(AT_ONCE)
    }

    async fn fetch(&self, chunk: &ChunkRef) -> Result<Bytes, ObjectsError> {
        let name = chunk_name(&self.org, chunk.digest, chunk.suffix);
        let sealed = self.bucket.get_chunk(&name).await?;
        let plain = self.key.open(&name, &sealed, CHUNK_MAX)?;
        let fits = plain.len() == chunk.bytes as usize && self.key.digest(&plain) == chunk.digest;
        match fits {
            true => Ok(plain.into()),
            false => Err(ObjectsError::Damaged {
                name,
                problem: "it holds something else",
            }),
        }
    }
}
