//! What is in object storage. The bucket is never asked what it has: these tables are.
//!
//! Whatever looks at an organisation's chunks or changes them takes the lock of its row in `object_orgs` first, so a
//! chunk that an upload finds cannot be condemned before its use is registered.

use cove_model::{ObjectCopy, OrgId, SnapshotId, Steady};
use time::OffsetDateTime;

use crate::sql::{Op, Row, Tx, values};
use crate::{
    ChunkClaimed, ChunkStored, ChunkWanted, ObjectOutcome, ObjectRecord, ObjectTotals,
    SnapshotRecord, StoreError, UploadKey,
};

/// Uses of chunks that one transaction removes.
const DROP_MAX: i64 = 500;
const COLUMNS: &str = "snapshot, org, manifest, bytes, sent_bytes, stored_at";
const SUPERSEDED: StoreError = StoreError::NotFound { what: "the upload" };

fn record(row: &Row) -> Result<ObjectRecord, StoreError> {
    Ok(ObjectRecord {
        snapshot: row.parse(0, "snapshot id")?,
        org: row.parse(1, "organisation id")?,
        manifest: row.optional_text(2)?,
        bytes: row.count(3)?,
        sent_bytes: row.count(4)?,
        stored_at: row.optional_time(5)?,
    })
}

/// The organisation's bytes in the bucket; nobody else changes its chunks until the transaction ends.
async fn lock<T: Tx>(tx: &mut T, org: &OrgId) -> Result<u64, StoreError> {
    let rows = tx
        .query(
            "UPDATE object_orgs SET stored_bytes = stored_bytes WHERE org = ?1 RETURNING stored_bytes",
            values![org],
        )
        .await?;
    rows.first().ok_or(SUPERSEDED)?.count(0)
}

async fn require_mine<T: Tx>(tx: &mut T, upload: &UploadKey) -> Result<(), StoreError> {
    let rows = tx
        .query(
            "SELECT snapshot FROM objects WHERE snapshot = ?1 AND org = ?2 AND token = ?3 AND manifest IS NULL",
            values![&upload.snapshot, &upload.org, upload.token.as_str()],
        )
        .await?;
    rows.first().map(drop).ok_or(SUPERSEDED)
}

async fn add_bytes<T: Tx>(tx: &mut T, org: &OrgId, more: i64) -> Result<(), StoreError> {
    tx.execute(
        "UPDATE object_orgs SET stored_bytes = stored_bytes + ?2 WHERE org = ?1",
        values![org, more],
    )
    .await
    .map(drop)
}

/// The organisation's wrapped key: made once, the first one wins and is answered.
pub struct KeepKey(pub OrgId, pub String);

impl Op for KeepKey {
    type Out = String;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<String, StoreError> {
        tx.execute(
            "INSERT INTO object_orgs (org, wrapped_key, stored_bytes) VALUES (?1, ?2, 0) \
             ON CONFLICT DO NOTHING",
            values![&self.0, self.1.as_str()],
        )
        .await?;
        let kept = Key(self.0.clone()).run(tx).await?;
        kept.ok_or(StoreError::Corrupt {
            what: "key of an organisation",
        })
    }
}

pub struct Key(pub OrgId);

impl Op for Key {
    type Out = Option<String>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = "SELECT wrapped_key FROM object_orgs WHERE org = ?1";
        let rows = tx.query(sql, values![&self.0]).await?;
        rows.first()
            .map(|row| Ok(row.text(0)?.to_owned()))
            .transpose()
    }
}

/// Begins an upload, or takes over the one there is. The snapshot must be there, and not be stored already.
pub struct Begin(pub UploadKey);

impl Op for Begin {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let upload = &self.0;
        lock(tx, &upload.org).await?;
        let wanted = tx
            .execute(
                "UPDATE snapshots SET object_copy = ?3 WHERE id = ?1 AND org = ?2 \
                 AND deleted_at IS NULL AND state = 'ready' AND object_copy <> ?4",
                values![
                    &upload.snapshot,
                    &upload.org,
                    ObjectCopy::Uploading.as_str(),
                    ObjectCopy::Stored.as_str(),
                ],
            )
            .await?;
        if wanted == 0 {
            return Err(SUPERSEDED);
        }
        tx.execute(
            "INSERT INTO objects (snapshot, org, token, bytes, sent_bytes) VALUES (?1, ?2, ?3, 0, 0) \
             ON CONFLICT (snapshot) DO UPDATE SET token = excluded.token",
            values![&upload.snapshot, &upload.org, upload.token.as_str()],
        )
        .await
        .map(drop)
    }
}

/// Registers the use of chunks, then tells which are there. Refused beyond the organisation's quota.
pub struct Claim {
    pub upload: UploadKey,
    pub chunks: Vec<ChunkWanted>,
    pub quota_mb: u64,
}

impl Op for Claim {
    type Out = Vec<ChunkClaimed>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let org = &self.upload.org;
        let mut used = lock(tx, org).await?;
        require_mine(tx, &self.upload).await?;
        let mut claimed = Vec::with_capacity(self.chunks.len());
        for chunk in &self.chunks {
            let digest = chunk.digest.as_str();
            tx.execute(
                "INSERT INTO object_uses (snapshot, org, digest) VALUES (?1, ?2, ?3) \
                 ON CONFLICT DO NOTHING",
                values![&self.upload.snapshot, org, digest],
            )
            .await?;
            tx.execute(
                "INSERT INTO object_chunks (org, digest, suffix, stored, bytes) \
                 VALUES (?1, ?2, ?3, 0, 0) ON CONFLICT DO NOTHING",
                values![org, digest, chunk.suffix.as_str()],
            )
            .await?;
            let rows = tx
                .query(
                    "SELECT suffix, stored FROM object_chunks WHERE org = ?1 AND digest = ?2",
                    values![org, digest],
                )
                .await?;
            let row = rows.first().ok_or(StoreError::Corrupt { what: "chunk" })?;
            let stored = row.int(1)? != 0;
            if !stored {
                used = used.saturating_add(chunk.bytes);
            }
            claimed.push(ChunkClaimed {
                suffix: row.text(0)?.to_owned(),
                stored,
            });
        }
        let used_mb = used.div_ceil(1 << 20);
        if used_mb > self.quota_mb && claimed.iter().any(|chunk| !chunk.stored) {
            return Err(StoreError::Quota {
                resource: "object storage (MiB)",
                limit: self.quota_mb,
                used: used_mb,
                asked: 1,
            });
        }
        Ok(claimed)
    }
}

/// These are in the bucket now.
pub struct Stored(pub UploadKey, pub Vec<ChunkStored>);

impl Op for Stored {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let org = &self.0.org;
        lock(tx, org).await?;
        require_mine(tx, &self.0).await?;
        let mut more = 0_i64;
        for chunk in &self.1 {
            let changed = tx
                .execute(
                    "UPDATE object_chunks SET stored = 1, bytes = ?3 \
                     WHERE org = ?1 AND digest = ?2 AND stored = 0",
                    values![org, chunk.digest.as_str(), chunk.bytes],
                )
                .await?;
            if changed > 0 {
                more += i64::try_from(chunk.bytes).unwrap_or(i64::MAX);
            }
        }
        add_bytes(tx, org, more).await
    }
}

/// Whether the upload is still the one of its snapshot.
pub struct Renew(pub UploadKey);

impl Op for Renew {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        require_mine(tx, &self.0).await
    }
}

pub struct Commit {
    pub upload: UploadKey,
    pub outcome: ObjectOutcome,
    pub at: OffsetDateTime,
}

impl Op for Commit {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let (upload, outcome) = (&self.upload, &self.outcome);
        lock(tx, &upload.org).await?;
        require_mine(tx, upload).await?;
        tx.execute(
            "UPDATE objects SET manifest = ?2, bytes = ?3, sent_bytes = ?4, stored_at = ?5, \
             manifest_bytes = ?6 WHERE snapshot = ?1",
            values![
                &upload.snapshot,
                outcome.manifest.as_str(),
                outcome.bytes,
                outcome.sent_bytes,
                self.at,
                outcome.manifest_bytes,
            ],
        )
        .await?;
        let manifest = i64::try_from(outcome.manifest_bytes).unwrap_or(i64::MAX);
        add_bytes(tx, &upload.org, manifest).await?;
        let changed = tx
            .execute(
                "UPDATE snapshots SET object_copy = ?2 WHERE id = ?1 AND deleted_at IS NULL",
                values![&upload.snapshot, ObjectCopy::Stored.as_str()],
            )
            .await?;
        match changed {
            0 => Err(SUPERSEDED),
            _ => Ok(()),
        }
    }
}

pub struct Get(pub SnapshotId);

impl Op for Get {
    type Out = Option<ObjectRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM objects WHERE snapshot = ?1");
        let rows = tx.query(&sql, values![&self.0]).await?;
        rows.first().map(record).transpose()
    }
}

/// Nobody waits for the upload any more: what it registered is given up by [`DropOne`].
pub struct Abandon(pub SnapshotId, pub OrgId);

impl Op for Abandon {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        lock(tx, &self.1).await?;
        tx.execute(
            "UPDATE snapshots SET object_copy = ?3 WHERE id = ?1 AND org = ?2 AND object_copy = ?4",
            values![
                &self.0,
                &self.1,
                ObjectCopy::None.as_str(),
                ObjectCopy::Uploading.as_str(),
            ],
        )
        .await
        .map(drop)
    }
}

/// Snapshots that somebody wants in object storage and that are not there yet: `.0` in all, at most `.1` of an
/// organisation. By chance within an organisation, so that those which fail hold up no other for ever.
pub struct Pending(pub i64, pub i64);

impl Op for Pending {
    type Out = Vec<SnapshotRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let columns = super::snapshots::COLUMNS;
        let sql = format!(
            "SELECT {columns} FROM (SELECT {columns}, \
             ROW_NUMBER() OVER (PARTITION BY org ORDER BY RANDOM()) AS turn FROM snapshots \
             WHERE object_copy = 'uploading' AND state = 'ready' AND deleted_at IS NULL) AS pending \
             WHERE turn <= ?2 ORDER BY turn, RANDOM() LIMIT ?1"
        );
        let rows = tx.query(&sql, values![self.0, self.1]).await?;
        rows.iter().map(super::snapshots::record).collect()
    }
}

/// Snapshots that object storage has and the host too, the oldest first: as many as hold more than `keep_mb`.
pub struct Evictable(pub u64, pub i64);

impl Op for Evictable {
    type Out = Vec<SnapshotRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let which =
            "object_copy = 'stored' AND on_host = 1 AND state = 'ready' AND deleted_at IS NULL";
        let sum = format!(
            "SELECT CAST(COALESCE(SUM(held_disk_mb), 0) AS BIGINT) FROM snapshots WHERE {which}"
        );
        let held = tx.query(&sum, &[]).await?;
        let mut held = held.first().map_or(Ok(0), |row| row.count(0))?;
        if held <= self.0 {
            return Ok(Vec::new());
        }
        let columns = super::snapshots::COLUMNS;
        let sql = format!(
            "SELECT {columns} FROM snapshots WHERE {which} ORDER BY created_at, id LIMIT ?1"
        );
        let rows = tx.query(&sql, values![self.1]).await?;
        let mut found = Vec::new();
        for row in &rows {
            if held <= self.0 {
                break;
            }
            let record = super::snapshots::record(row)?;
            held = held.saturating_sub(record.held_disk_mb);
            found.push(record);
        }
        Ok(found)
    }
}

/// Gives up chunks of one snapshot that is gone, or will never be there. Whether there is more to do.
pub struct DropOne(pub Steady);

impl Op for DropOne {
    type Out = bool;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<bool, StoreError> {
        let rows = tx
            .query(
                "SELECT objects.snapshot, objects.org FROM objects LEFT JOIN snapshots \
                 ON snapshots.id = objects.snapshot AND snapshots.deleted_at IS NULL \
                 AND snapshots.object_copy <> 'none' WHERE snapshots.id IS NULL ORDER BY objects.snapshot LIMIT 1",
                &[],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(false);
        };
        let snapshot: SnapshotId = row.parse(0, "snapshot id")?;
        let org: OrgId = row.parse(1, "organisation id")?;
        lock(tx, &org).await?;
        let wanted = tx
            .query(
                "SELECT id FROM snapshots WHERE id = ?1 AND deleted_at IS NULL AND object_copy <> 'none'",
                values![&snapshot],
            )
            .await?;
        if !wanted.is_empty() {
            // Another upload of it began before the lock was ours.
            return Ok(true);
        }
        // One under way is superseded from here on; one that begins later registers everything again.
        tx.execute(
            "UPDATE objects SET token = '' WHERE snapshot = ?1",
            values![&snapshot],
        )
        .await?;
        let used = tx
            .query(
                "SELECT digest FROM object_uses WHERE snapshot = ?1 ORDER BY digest LIMIT ?2",
                values![&snapshot, DROP_MAX],
            )
            .await?;
        let mut freed = 0_i64;
        for row in &used {
            let digest = row.text(0)?;
            tx.execute(
                "DELETE FROM object_uses WHERE snapshot = ?1 AND digest = ?2",
                values![&snapshot, digest],
            )
            .await?;
            let gone = tx
                .query(
                    "DELETE FROM object_chunks WHERE org = ?1 AND digest = ?2 AND NOT EXISTS \
                     (SELECT 1 FROM object_uses WHERE org = ?1 AND digest = ?2) \
                     RETURNING suffix, bytes",
                    values![&org, digest],
                )
                .await?;
            if let Some(chunk) = gone.first() {
                freed += chunk.int(1)?;
                let name = format!(
                    "{org}/chunks/{}/{digest}-{}",
                    digest.get(..2).unwrap_or_default(),
                    chunk.text(0)?
                );
                condemn(tx, &name, self.0).await?;
            }
        }
        if used.len() < DROP_MAX as usize {
            let rows = tx
                .query(
                    "DELETE FROM objects WHERE snapshot = ?1 RETURNING manifest, manifest_bytes",
                    values![&snapshot],
                )
                .await?;
            if let Some(row) = rows.first()
                && let Some(manifest) = row.optional_text(0)?
            {
                freed += row.int(1)?;
                condemn(tx, &manifest, self.0).await?;
            }
        }
        add_bytes(tx, &org, -freed).await?;
        Ok(true)
    }
}

async fn condemn<T: Tx>(tx: &mut T, name: &str, at: Steady) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO object_condemned (name, at) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        values![name, at],
    )
    .await
    .map(drop)
}

/// Names that were condemned before `.0`.
pub struct Condemned(pub Steady, pub i64);

impl Op for Condemned {
    type Out = Vec<String>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT name FROM object_condemned WHERE at < ?1 ORDER BY at, name LIMIT ?2",
                values![self.0, self.1],
            )
            .await?;
        rows.iter().map(|row| Ok(row.text(0)?.to_owned())).collect()
    }
}

/// These are not in the bucket any more.
pub struct Deleted(pub Vec<String>);

impl Op for Deleted {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for name in &self.0 {
            let sql = "DELETE FROM object_condemned WHERE name = ?1";
            tx.execute(sql, values![name.as_str()]).await?;
        }
        Ok(())
    }
}

pub struct Totals;

impl Op for Totals {
    type Out = ObjectTotals;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<ObjectTotals, StoreError> {
        let one = async |tx: &mut T, sql: &str| -> Result<u64, StoreError> {
            let rows = tx.query(sql, &[]).await?;
            rows.first().map_or(Ok(0), |row| row.count(0))
        };
        Ok(ObjectTotals {
            stored: one(
                tx,
                "SELECT COUNT(*) FROM objects WHERE manifest IS NOT NULL",
            )
            .await?,
            uploading: one(tx, "SELECT COUNT(*) FROM objects WHERE manifest IS NULL").await?,
            bytes: one(
                tx,
                "SELECT CAST(COALESCE(SUM(stored_bytes), 0) AS BIGINT) FROM object_orgs",
            )
            .await?,
            condemned: one(tx, "SELECT COUNT(*) FROM object_condemned").await?,
        })
    }
}

/// What the organisation has in the bucket.
pub struct Usage(pub OrgId);

impl Op for Usage {
    type Out = u64;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<u64, StoreError> {
        let sql = "SELECT stored_bytes FROM object_orgs WHERE org = ?1";
        let rows = tx.query(sql, values![&self.0]).await?;
        rows.first().map_or(Ok(0), |row| row.count(0))
    }
}
