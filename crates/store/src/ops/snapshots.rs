//! Snapshots and what grew from them.

use cove_model::{HostId, OrgId, SandboxId, SnapshotId};
use time::OffsetDateTime;

use crate::cursor::Position;
use crate::newest::Newest;
use crate::ops::idempotency::claim;
use crate::ops::nodes::still_there;
use crate::ops::organisations::{hold, hold_whatever, lock};
use crate::ops::sandboxes::Whose;
use crate::ops::templates::keeper;
use crate::sql::{Op, Row, Tx, Value, json, micros, values};
use crate::{
    Holding, IdempotencyKey, ObjectCopy, Page, PageRequest, SNAPSHOTS_ALWAYS, SNAPSHOTS_OF_HOST,
    SnapshotChange, SnapshotCreated, SnapshotFilter, SnapshotKind, SnapshotRecord, SnapshotState,
    StoreError,
};

pub(super) const COLUMNS: &str = "id, org, name, sandbox, parent, kind, state, memory, spec, rolled_back_to, \
     facts, held_disk_mb, created_at, deleted_at, created_steady, host, object_copy, on_host";

const NAME_TAKEN: StoreError = StoreError::Exists {
    what: "a snapshot of this name",
};

pub(super) fn record(row: &Row) -> Result<SnapshotRecord, StoreError> {
    let corrupt = |what| StoreError::Corrupt { what };
    Ok(SnapshotRecord {
        id: row.parse(0, "snapshot id")?,
        org: row.parse(1, "organisation id")?,
        name: row.optional_text(2)?,
        sandbox: row.optional_parse(3, "sandbox id")?,
        parent: row.optional_parse(4, "snapshot id")?,
        kind: SnapshotKind::parse(row.text(5)?).ok_or(corrupt("kind of snapshot"))?,
        state: SnapshotState::parse(row.text(6)?).ok_or(corrupt("state of a snapshot"))?,
        memory: row.int(7)? != 0,
        spec: row.json(8, "sandbox spec")?,
        rolled_back_to: row.optional_parse(9, "snapshot id")?,
        facts: row.json(10, "facts of a snapshot")?,
        held_disk_mb: row.count(11)?,
        created_at: row.time(12)?,
        deleted_at: row.optional_time(13)?,
        created_steady: row.steady(14)?,
        host: row.parse(15, "host id")?,
        object_copy: ObjectCopy::parse(row.text(16)?).ok_or(corrupt("place of a snapshot"))?,
        on_host: row.int(17)? != 0,
    })
}

fn row_values(record: &SnapshotRecord) -> Result<[Value; 18], StoreError> {
    Ok([
        (&record.id).into(),
        (&record.org).into(),
        record.name.as_deref().into(),
        record.sandbox.as_ref().into(),
        record.parent.as_ref().into(),
        record.kind.as_str().into(),
        record.state.as_str().into(),
        record.memory.into(),
        json(&record.spec)?.into(),
        record.rolled_back_to.as_ref().into(),
        json(&record.facts)?.into(),
        record.held_disk_mb.into(),
        record.created_at.into(),
        record.deleted_at.into(),
        record.created_steady.into(),
        (&record.host).into(),
        record.object_copy.as_str().into(),
        record.on_host.into(),
    ])
}

fn disk(mb: u64) -> Holding {
    Holding {
        disk_mb: mb,
        ..Holding::nothing()
    }
}

/// A duplicate can only be the name: ids are random and the caller's own.
fn name_taken(error: StoreError) -> StoreError {
    match error {
        StoreError::Exists { .. } => NAME_TAKEN,
        other => other,
    }
}

/// Refuses one more of a host's snapshots to an organisation that has its share of them: half of what the others left.
async fn leave_some<T: Tx>(tx: &mut T, host: &HostId, org: &OrgId) -> Result<(), StoreError> {
    let count =
        "SELECT COUNT(*) FROM snapshots WHERE org = ?1 AND host = ?2 AND deleted_at IS NULL";
    let own = tx.query(count, values![org, host]).await?;
    let own = own.first().map_or(Ok(0), |row| row.count(0))?;
    if own < SNAPSHOTS_ALWAYS {
        return Ok(());
    }
    let count = "SELECT COUNT(*) FROM snapshots WHERE host = ?1 AND deleted_at IS NULL";
    let all = tx.query(count, values![host]).await?;
    let all = all.first().map_or(Ok(0), |row| row.count(0))?;
    let left = SNAPSHOTS_OF_HOST.saturating_sub(all.saturating_sub(own));
    match own < left / 2 {
        true => Ok(()),
        false => Err(StoreError::TooMany { what: "snapshots" }),
    }
}

pub struct Create {
    pub record: SnapshotRecord,
    pub idempotency: Option<IdempotencyKey>,
}

impl Op for Create {
    type Out = SnapshotCreated;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<SnapshotCreated, StoreError> {
        let new = &self.record;
        let key = self.idempotency.as_ref();
        if let Some(earlier) = claim(tx, &new.org, key, &new.id, new.created_steady).await? {
            return Ok(earlier);
        }
        match new.held_disk_mb {
            0 => lock(tx, &new.org).await?,
            held => hold(tx, &new.org, &Holding::nothing(), &disk(held)).await?,
        }
        let count = "SELECT COUNT(*) FROM snapshots WHERE org = ?1 AND deleted_at IS NULL";
        let rows = tx.query(count, values![&new.org]).await?;
        if rows.first().map_or(Ok(0), |row| row.count(0))? >= cove_limits::SNAPSHOTS_MAX {
            return Err(StoreError::TooMany { what: "snapshots" });
        }
        leave_some(tx, &new.host, &new.org).await?;
        let sql = format!(
            "INSERT INTO snapshots ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, \
             ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)"
        );
        tx.execute(&sql, &row_values(new)?)
            .await
            .map_err(name_taken)?;
        still_there(tx, &new.host).await?;
        Ok(SnapshotCreated::New)
    }
}

pub enum Get {
    ById(OrgId, SnapshotId),
    ByName(OrgId, String),
    Any(SnapshotId),
}

impl Op for Get {
    type Out = Option<SnapshotRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let select = format!("SELECT {COLUMNS} FROM snapshots WHERE");
        let rows = match self {
            Self::ById(org, id) => {
                let sql = format!("{select} id = ?1 AND org = ?2 AND deleted_at IS NULL");
                tx.query(&sql, values![id, org]).await?
            }
            Self::ByName(org, name) => {
                let sql = format!("{select} name = ?1 AND org = ?2 AND deleted_at IS NULL");
                tx.query(&sql, values![name.as_str(), org]).await?
            }
            Self::Any(id) => tx.query(&format!("{select} id = ?1"), values![id]).await?,
        };
        rows.first().map(record).transpose()
    }
}

pub struct List {
    pub whose: Whose,
    pub filter: SnapshotFilter,
    pub page: PageRequest,
}

impl Op for List {
    type Out = Page<SnapshotRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let mut list = Newest::of(COLUMNS, "snapshots", &self.page)?;
        if !self.filter.gone_too {
            list.and("deleted_at IS NULL");
        }
        match &self.whose {
            Whose::Org(org) => list.equal("org", org),
            Whose::Host(host) => list.equal("host", host),
        }
        if let Some(sandbox) = &self.filter.sandbox {
            list.equal("sandbox", sandbox);
        }
        list.among("kind", self.filter.kinds.iter().map(|kind| kind.as_str()));
        list.read(tx, record, |record| {
            Position::new(micros(record.created_at), record.id.as_str())
        })
        .await
    }
}

pub struct Change {
    pub id: SnapshotId,
    pub change: SnapshotChange,
}

impl Op for Change {
    type Out = SnapshotRecord;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<SnapshotRecord, StoreError> {
        // Writing first takes the row's lock, so what is read stays true.
        let sql = format!(
            "UPDATE snapshots SET state = state WHERE id = ?1 AND deleted_at IS NULL \
             RETURNING {COLUMNS}"
        );
        let rows = tx.query(&sql, values![&self.id]).await?;
        let old = record(rows.first().ok_or(StoreError::NotFound {
            what: "the snapshot",
        })?)?;
        let elsewhere = self
            .change
            .only_on
            .as_ref()
            .is_some_and(|host| *host != old.host);
        let in_storage = old.object_copy == ObjectCopy::Stored && old.state == SnapshotState::Ready;
        let copied = self
            .change
            .only_copy
            .is_some_and(|copy| copy != old.object_copy);
        if elsewhere || copied || (self.change.host.is_some() && !in_storage) {
            return Err(StoreError::Stale);
        }
        let ends = self.change.state == Some(SnapshotState::Deleting);
        if ends && let Some((template, others)) = keeper(tx, &self.id).await? {
            return Err(StoreError::Kept { template, others });
        }
        let new = applied(&old, &self.change);
        hold_whatever(
            tx,
            &old.org,
            &disk(old.held_disk_mb),
            &disk(new.held_disk_mb),
        )
        .await?;
        tx.execute(
            "UPDATE snapshots SET org = ?2, name = ?3, sandbox = ?4, parent = ?5, kind = ?6, \
             state = ?7, memory = ?8, spec = ?9, rolled_back_to = ?10, facts = ?11, \
             held_disk_mb = ?12, created_at = ?13, deleted_at = ?14, created_steady = ?15, \
             host = ?16, object_copy = ?17, on_host = ?18 WHERE id = ?1",
            &row_values(&new)?,
        )
        .await?;
        if let Some(host) = &self.change.host {
            still_there(tx, host).await?;
        }
        Ok(new)
    }
}

fn applied(old: &SnapshotRecord, change: &SnapshotChange) -> SnapshotRecord {
    let mut change = change.clone();
    if change.host.is_some() {
        change.on_host = Some(false);
        change.held_disk_mb = Some(0);
    }
    let gone = change.deleted_at.is_some();
    SnapshotRecord {
        host: change.host.unwrap_or_else(|| old.host.clone()),
        state: change.state.unwrap_or(old.state),
        parent: change.parent.unwrap_or_else(|| old.parent.clone()),
        memory: change.memory.unwrap_or(old.memory),
        spec: change.spec.unwrap_or_else(|| old.spec.clone()),
        rolled_back_to: change
            .rolled_back_to
            .unwrap_or_else(|| old.rolled_back_to.clone()),
        facts: change.facts.unwrap_or_else(|| old.facts.clone()),
        held_disk_mb: match gone {
            true => 0,
            false => change.held_disk_mb.unwrap_or(old.held_disk_mb),
        },
        deleted_at: change.deleted_at.or(old.deleted_at),
        on_host: change.on_host.unwrap_or(old.on_host),
        ..old.clone()
    }
}

/// Takes a row away that never came to be, and lets its request be tried again.
pub struct Forget(pub SnapshotId);

impl Op for Forget {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let rows = tx
            .query(
                "DELETE FROM snapshots WHERE id = ?1 RETURNING org, held_disk_mb",
                values![&self.0],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        let org: OrgId = row.parse(0, "organisation id")?;
        hold_whatever(tx, &org, &disk(row.count(1)?), &Holding::nothing()).await?;
        tx.execute(
            "DELETE FROM idempotency WHERE org = ?1 AND sandbox = ?2",
            values![&org, &self.0],
        )
        .await
        .map(drop)
    }
}

/// Ids of the living sandboxes that began from a snapshot of this one.
pub struct Forks(pub SandboxId, pub i64);

impl Op for Forks {
    type Out = Vec<SandboxId>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT sandboxes.id FROM sandboxes JOIN snapshots \
                 ON snapshots.id = sandboxes.origin AND snapshots.org = sandboxes.org \
                 WHERE snapshots.sandbox = ?1 AND sandboxes.deleted_at IS NULL \
                 ORDER BY sandboxes.created_at, sandboxes.id LIMIT ?2",
                values![&self.0, self.1],
            )
            .await?;
        rows.iter().map(|row| row.parse(0, "sandbox id")).collect()
    }
}

/// Forgets snapshots that are long gone.
pub async fn bury<T: Tx>(
    tx: &mut T,
    before: OffsetDateTime,
    rows_max: i64,
) -> Result<u64, StoreError> {
    tx.execute(
        "DELETE FROM snapshots WHERE id IN (SELECT id FROM snapshots WHERE deleted_at IS NOT NULL \
         AND deleted_at < ?1 ORDER BY deleted_at, id LIMIT ?2)",
        values![before, rows_max],
    )
    .await
}
