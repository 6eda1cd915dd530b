//! What control asks the database about object storage.

use async_trait::async_trait;
use cove_model::{OrgId, SnapshotId, Steady};
use time::OffsetDateTime;

use crate::ops::objects;
use crate::sql::Backend;
use crate::store::SqlStore;
use crate::{
    ChunkClaimed, ChunkStored, ChunkWanted, ObjectOutcome, ObjectRecord, ObjectTotals,
    SnapshotRecord, StoreError, UploadKey,
};

/// Calls with an [`UploadKey`] answer `NotFound` once another upload of the snapshot has begun, or the snapshot is gone.
#[async_trait]
pub trait ObjectTables: Send + Sync + 'static {
    /// The organisation's key, wrapped. The first one that is kept wins, and is answered.
    async fn keep_object_key(&self, org: &OrgId, wrapped: &str) -> Result<String, StoreError>;
    async fn object_key(&self, org: &OrgId) -> Result<Option<String>, StoreError>;
    /// After [`ObjectTables::keep_object_key`].
    async fn begin_upload(&self, upload: &UploadKey) -> Result<(), StoreError>;
    /// Registers the use of chunks before it looks which are there; in the same order.
    async fn claim_chunks(
        &self,
        upload: &UploadKey,
        chunks: &[ChunkWanted],
        quota_mb: u64,
    ) -> Result<Vec<ChunkClaimed>, StoreError>;
    async fn chunks_stored(
        &self,
        upload: &UploadKey,
        chunks: &[ChunkStored],
    ) -> Result<(), StoreError>;
    async fn renew_upload(&self, upload: &UploadKey) -> Result<(), StoreError>;
    /// The snapshot is durable when this returns.
    async fn commit_upload(
        &self,
        upload: &UploadKey,
        outcome: &ObjectOutcome,
        at: OffsetDateTime,
    ) -> Result<(), StoreError>;
    async fn object(&self, snapshot: &SnapshotId) -> Result<Option<ObjectRecord>, StoreError>;
    /// The snapshot stays without a copy in object storage, unless another upload of it begins.
    async fn abandon_upload(&self, snapshot: &SnapshotId, org: &OrgId) -> Result<(), StoreError>;
    /// Snapshots that are to be uploaded, at most `per_org` of an organisation, in no order.
    async fn pending_uploads(
        &self,
        limit: u32,
        per_org: u32,
    ) -> Result<Vec<SnapshotRecord>, StoreError>;
    /// Snapshots that object storage has too and that hold more than `keep_mb` on hosts, the oldest first.
    async fn evictable_snapshots(
        &self,
        keep_mb: u64,
        limit: u32,
    ) -> Result<Vec<SnapshotRecord>, StoreError>;
    /// Condemns some of what only snapshots that are gone used. Whether there may be more.
    async fn drop_objects(&self, at: Steady) -> Result<bool, StoreError>;
    /// Names that were condemned before this.
    async fn condemned_objects(
        &self,
        before: Steady,
        limit: u32,
    ) -> Result<Vec<String>, StoreError>;
    /// The bucket does not have these any more.
    async fn objects_deleted(&self, names: &[String]) -> Result<(), StoreError>;
    async fn object_totals(&self) -> Result<ObjectTotals, StoreError>;
    /// Bytes of an organisation in the bucket.
    async fn object_usage(&self, org: &OrgId) -> Result<u64, StoreError>;
}

#[async_trait]
impl<B: Backend> ObjectTables for SqlStore<B> {
    async fn keep_object_key(&self, org: &OrgId, wrapped: &str) -> Result<String, StoreError> {
        self.flushed(objects::KeepKey(org.clone(), wrapped.to_owned()))
            .await
    }

    async fn object_key(&self, org: &OrgId) -> Result<Option<String>, StoreError> {
        self.read(objects::Key(org.clone())).await
    }

    async fn begin_upload(&self, upload: &UploadKey) -> Result<(), StoreError> {
        self.written(objects::Begin(upload.clone())).await
    }

    async fn claim_chunks(
        &self,
        upload: &UploadKey,
        chunks: &[ChunkWanted],
        quota_mb: u64,
    ) -> Result<Vec<ChunkClaimed>, StoreError> {
        let claim = objects::Claim {
            upload: upload.clone(),
            chunks: chunks.to_vec(),
            quota_mb,
        };
        // Flushed: a name that was written and forgotten would stay in the bucket for ever.
        self.flushed(claim).await
    }

    async fn chunks_stored(
        &self,
        upload: &UploadKey,
        chunks: &[ChunkStored],
    ) -> Result<(), StoreError> {
        // The commit after it is flushed; one that is lost is written again.
        self.written(objects::Stored(upload.clone(), chunks.to_vec()))
            .await
    }

    async fn renew_upload(&self, upload: &UploadKey) -> Result<(), StoreError> {
        self.read(objects::Renew(upload.clone())).await
    }

    async fn commit_upload(
        &self,
        upload: &UploadKey,
        outcome: &ObjectOutcome,
        at: OffsetDateTime,
    ) -> Result<(), StoreError> {
        let commit = objects::Commit {
            upload: upload.clone(),
            outcome: outcome.clone(),
            at,
        };
        self.flushed(commit).await
    }

    async fn object(&self, snapshot: &SnapshotId) -> Result<Option<ObjectRecord>, StoreError> {
        self.read(objects::Get(snapshot.clone())).await
    }

    async fn abandon_upload(&self, snapshot: &SnapshotId, org: &OrgId) -> Result<(), StoreError> {
        self.written(objects::Abandon(snapshot.clone(), org.clone()))
            .await
    }

    async fn pending_uploads(
        &self,
        limit: u32,
        per_org: u32,
    ) -> Result<Vec<SnapshotRecord>, StoreError> {
        self.read(objects::Pending(limit.into(), per_org.into()))
            .await
    }

    async fn evictable_snapshots(
        &self,
        keep_mb: u64,
        limit: u32,
    ) -> Result<Vec<SnapshotRecord>, StoreError> {
        self.read(objects::Evictable(keep_mb, limit.into())).await
    }

    async fn drop_objects(&self, at: Steady) -> Result<bool, StoreError> {
        self.flushed(objects::DropOne(at)).await
    }

    async fn condemned_objects(
        &self,
        before: Steady,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        self.read(objects::Condemned(before, limit.into())).await
    }

    async fn objects_deleted(&self, names: &[String]) -> Result<(), StoreError> {
        self.written(objects::Deleted(names.to_vec())).await
    }

    async fn object_totals(&self) -> Result<ObjectTotals, StoreError> {
        self.read(objects::Totals).await
    }

    async fn object_usage(&self, org: &OrgId) -> Result<u64, StoreError> {
        self.read(objects::Usage(org.clone())).await
    }
}
