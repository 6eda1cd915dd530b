//! Builds of templates, and the states after their steps.

use cove_model::{BuildId, BuildState, OrgId, SnapshotId};
use time::OffsetDateTime;

use crate::ops::organisations::lock;
use crate::sql::{Op, Row, Tx, values};
use crate::{BuildRecord, SnapshotState, StoreError};

const COLUMNS: &str =
    "id, org, name, state, error, template, steps, cached, created_at, finished_at";
/// Builds under way that a start finds; far fewer run at once.
const UNFINISHED_MAX: i64 = 1000;

fn record(row: &Row) -> Result<BuildRecord, StoreError> {
    Ok(BuildRecord {
        id: row.parse(0, "build id")?,
        org: row.parse(1, "organisation id")?,
        name: row.text(2)?.to_owned(),
        state: BuildState::parse(row.text(3)?).ok_or(StoreError::Corrupt {
            what: "state of a build",
        })?,
        error: row.optional_text(4)?,
        template: row.optional_parse(5, "template id")?,
        steps: row.count(6)?,
        cached: row.count(7)?,
        created_at: row.time(8)?,
        finished_at: row.optional_time(9)?,
    })
}

/// Adds it, or writes how far it is. What is over does not change.
pub struct Put {
    pub build: BuildRecord,
    /// Of those of the organisation that are over, so many stay.
    pub keep: u32,
}

impl Op for Put {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let build = &self.build;
        lock(tx, &build.org).await?;
        tx.execute(
            "INSERT INTO builds (id, org, name, state, error, template, steps, cached, created_at, finished_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (id) DO UPDATE SET \
             state = excluded.state, error = excluded.error, template = excluded.template, \
             steps = excluded.steps, cached = excluded.cached, finished_at = excluded.finished_at \
             WHERE builds.finished_at IS NULL",
            values![
                &build.id,
                &build.org,
                build.name.as_str(),
                build.state.as_str(),
                build.error.clone(),
                build.template.as_ref().map(|id| id.as_str().to_owned()),
                build.steps,
                build.cached,
                build.created_at,
                build.finished_at
            ],
        )
        .await?;
        tx.execute(
            "DELETE FROM builds WHERE org = ?1 AND finished_at IS NOT NULL AND id NOT IN \
             (SELECT id FROM builds WHERE org = ?1 ORDER BY created_at DESC, id DESC LIMIT ?2)",
            values![&build.org, i64::from(self.keep)],
        )
        .await
        .map(drop)
    }
}

pub struct Get(pub OrgId, pub BuildId);

impl Op for Get {
    type Out = Option<BuildRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM builds WHERE org = ?1 AND id = ?2");
        let rows = tx.query(&sql, values![&self.0, &self.1]).await?;
        rows.first().map(record).transpose()
    }
}

/// Newest first.
pub struct List(pub OrgId, pub u32);

impl Op for List {
    type Out = Vec<BuildRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM builds WHERE org = ?1 ORDER BY created_at DESC, id DESC LIMIT ?2"
        );
        let rows = tx.query(&sql, values![&self.0, i64::from(self.1)]).await?;
        rows.iter().map(record).collect()
    }
}

pub struct Unfinished;

impl Op for Unfinished {
    type Out = Vec<BuildRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM builds WHERE finished_at IS NULL ORDER BY created_at LIMIT ?1"
        );
        let rows = tx.query(&sql, values![UNFINISHED_MAX]).await?;
        rows.iter().map(record).collect()
    }
}

/// The snapshot of a state that an earlier build of the organisation made, if it is still there.
pub struct Cached(pub OrgId, pub String);

impl Op for Cached {
    type Out = Option<SnapshotId>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT build_cache.snapshot FROM build_cache JOIN snapshots \
                 ON snapshots.id = build_cache.snapshot AND snapshots.org = build_cache.org \
                 WHERE build_cache.org = ?1 AND build_cache.key = ?2 AND snapshots.state = ?3 \
                 AND snapshots.deleted_at IS NULL",
                values![&self.0, self.1.as_str(), SnapshotState::Ready.as_str()],
            )
            .await?;
        let first = rows.first();
        first.map(|row| row.parse(0, "snapshot id")).transpose()
    }
}

/// Keeps the state after a step; of an organisation's, those used longest ago go.
pub struct Keep {
    pub org: OrgId,
    pub key: String,
    pub snapshot: SnapshotId,
    pub at: OffsetDateTime,
    pub most: u32,
}

impl Op for Keep {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "INSERT INTO build_cache (org, key, snapshot, used_at) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (org, key) DO UPDATE SET snapshot = excluded.snapshot, used_at = excluded.used_at",
            values![&self.org, self.key.as_str(), &self.snapshot, self.at],
        )
        .await?;
        tx.execute(
            "DELETE FROM build_cache WHERE org = ?1 AND key NOT IN \
             (SELECT key FROM build_cache WHERE org = ?1 ORDER BY used_at DESC, key LIMIT ?2)",
            values![&self.org, i64::from(self.most)],
        )
        .await
        .map(drop)
    }
}

/// A build has used these states.
pub struct Touch(pub OrgId, pub Vec<String>, pub OffsetDateTime);

impl Op for Touch {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for key in &self.1 {
            tx.execute(
                "UPDATE build_cache SET used_at = ?3 WHERE org = ?1 AND key = ?2",
                values![&self.0, key.as_str(), self.2],
            )
            .await?;
        }
        Ok(())
    }
}

/// Forgets all states of an organisation.
pub struct Clear(pub OrgId);

impl Op for Clear {
    type Out = u64;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<u64, StoreError> {
        let sql = "DELETE FROM build_cache WHERE org = ?1";
        tx.execute(sql, values![&self.0]).await
    }
}

/// Whether the cache of builds has this snapshot.
pub struct IsCached(pub SnapshotId);

impl Op for IsCached {
    type Out = bool;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<bool, StoreError> {
        let sql = "SELECT COUNT(*) FROM build_cache WHERE snapshot = ?1";
        let rows = tx.query(sql, values![&self.0]).await?;
        Ok(rows.first().map_or(Ok(0), |row| row.count(0))? > 0)
    }
}
