//! Volumes, and which sandboxes mount them.

use cove_model::{OrgId, VolumeId};
use time::OffsetDateTime;

use crate::cursor::Position;
use crate::newest::Newest;
use crate::ops::idempotency::claim;
use crate::ops::nodes::still_there;
use crate::ops::organisations::{hold, hold_whatever};
use crate::ops::sandboxes::Whose;
use crate::sql::{Op, Row, Tx, Value, micros, values};
use crate::{
    Holding, IdempotencyKey, Page, PageRequest, SandboxRecord, StoreError, VolumeCreated,
    VolumeDoomed, VolumeRecord, VolumeState, VolumeUser,
};

const COLUMNS: &str = "id, org, host, name, state, size_mb, read_only, origin, used_bytes, \
     created_at, deleted_at, created_steady";

const NAME_TAKEN: StoreError = StoreError::Exists {
    what: "a volume of this name",
};
const NO_VOLUME: StoreError = StoreError::NotFound { what: "the volume" };
/// Users of a volume that one look tells of.
const USERS_MAX: i64 = 100;

fn record(row: &Row) -> Result<VolumeRecord, StoreError> {
    Ok(VolumeRecord {
        id: row.parse(0, "volume id")?,
        org: row.parse(1, "organisation id")?,
        host: row.parse(2, "host id")?,
        name: row.text(3)?.to_owned(),
        state: VolumeState::parse(row.text(4)?).ok_or(StoreError::Corrupt {
            what: "state of a volume",
        })?,
        size_mb: row.count(5)?,
        read_only: row.int(6)? != 0,
        origin: row.optional_parse(7, "volume id")?,
        used_bytes: row.count(8)?,
        created_at: row.time(9)?,
        deleted_at: row.optional_time(10)?,
        created_steady: row.steady(11)?,
    })
}

fn row_values(record: &VolumeRecord) -> [Value; 12] {
    [
        (&record.id).into(),
        (&record.org).into(),
        (&record.host).into(),
        record.name.as_str().into(),
        record.state.as_str().into(),
        record.size_mb.into(),
        record.read_only.into(),
        record.origin.as_ref().into(),
        record.used_bytes.into(),
        record.created_at.into(),
        record.deleted_at.into(),
        record.created_steady.into(),
    ]
}

fn disk(mb: u64) -> Holding {
    Holding {
        disk_mb: mb,
        ..Holding::nothing()
    }
}

pub struct Create {
    pub record: VolumeRecord,
    pub idempotency: Option<IdempotencyKey>,
}

impl Op for Create {
    type Out = VolumeCreated;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<VolumeCreated, StoreError> {
        let new = &self.record;
        let key = self.idempotency.as_ref();
        if let Some(earlier) = claim(tx, &new.org, key, &new.id, new.created_steady).await? {
            return Ok(earlier);
        }
        // Takes the organisation's row, so that two requests cannot both count before either is there.
        hold(tx, &new.org, &Holding::nothing(), &disk(new.size_mb)).await?;
        let count = "SELECT COUNT(*) FROM volumes WHERE org = ?1 AND deleted_at IS NULL";
        let rows = tx.query(count, values![&new.org]).await?;
        if rows.first().map_or(Ok(0), |row| row.count(0))? >= cove_limits::VOLUMES_MAX {
            return Err(StoreError::TooMany { what: "volumes" });
        }
        let sql = format!(
            "INSERT INTO volumes ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
        );
        // A duplicate can only be the name: ids are random and the caller's own.
        let inserted = tx.execute(&sql, &row_values(new)).await;
        match inserted {
            Err(StoreError::Exists { .. }) => Err(NAME_TAKEN),
            Err(error) => Err(error),
            Ok(_) => {
                still_there(tx, &new.host).await?;
                Ok(VolumeCreated::New)
            }
        }
    }
}

pub enum Get {
    ById(OrgId, VolumeId),
    ByName(OrgId, String),
    Any(VolumeId),
}

impl Op for Get {
    type Out = Option<VolumeRecord>;
    const POINT: bool = true;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let select = format!("SELECT {COLUMNS} FROM volumes WHERE");
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
    pub page: PageRequest,
}

impl Op for List {
    type Out = Page<VolumeRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let mut list = Newest::of(COLUMNS, "volumes", &self.page)?;
        list.and("deleted_at IS NULL");
        match &self.whose {
            Whose::Org(org) => list.equal("org", org),
            Whose::Host(host) => list.equal("host", host),
        }
        list.read(tx, record, |record| {
            Position::new(micros(record.created_at), record.id.as_str())
        })
        .await
    }
}

/// It is on the host's disk.
pub struct Ready(pub VolumeId);

impl Op for Ready {
    type Out = VolumeRecord;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<VolumeRecord, StoreError> {
        turn(tx, &self.0, VolumeState::Making, VolumeState::Ready).await
    }
}

/// One step from one state to another, which others may have taken before.
async fn turn<T: Tx>(
    tx: &mut T,
    id: &VolumeId,
    from: VolumeState,
    to: VolumeState,
) -> Result<VolumeRecord, StoreError> {
    let sql = format!(
        "UPDATE volumes SET state = ?2 WHERE id = ?1 AND state = ?3 AND deleted_at IS NULL \
         RETURNING {COLUMNS}"
    );
    let rows = tx
        .query(&sql, values![id, to.as_str(), from.as_str()])
        .await?;
    record(rows.first().ok_or(NO_VOLUME)?)
}

/// Nobody makes it any more: from then on it can only go.
pub struct Abandon(pub VolumeId);

impl Op for Abandon {
    type Out = VolumeRecord;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<VolumeRecord, StoreError> {
        turn(tx, &self.0, VolumeState::Making, VolumeState::Deleting).await
    }
}

/// The host did not delete it: it is there as before.
pub struct Spare(pub VolumeId);

impl Op for Spare {
    type Out = VolumeRecord;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<VolumeRecord, StoreError> {
        turn(tx, &self.0, VolumeState::Deleting, VolumeState::Ready).await
    }
}

pub struct Measured(pub VolumeId, pub u64);

impl Op for Measured {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "UPDATE volumes SET used_bytes = ?2 WHERE id = ?1",
            values![&self.0, self.1],
        )
        .await
        .map(drop)
    }
}

/// Marks a volume for its end, unless a sandbox has it. From then on none can be made with it.
pub struct Doom(pub OrgId, pub VolumeId);

impl Op for Doom {
    type Out = VolumeDoomed;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<VolumeDoomed, StoreError> {
        // Writing first takes the row's lock, as a sandbox that mounts it does.
        let sql = format!(
            "UPDATE volumes SET state = state WHERE id = ?1 AND org = ?2 AND deleted_at IS NULL \
             RETURNING {COLUMNS}"
        );
        let rows = tx.query(&sql, values![&self.1, &self.0]).await?;
        let mut found = record(rows.first().ok_or(NO_VOLUME)?)?;
        let users = Users(self.1.clone()).run(tx).await?;
        if !users.is_empty() {
            return Ok(VolumeDoomed::InUse(users));
        }
        found.state = VolumeState::Deleting;
        tx.execute(
            "UPDATE volumes SET state = ?2 WHERE id = ?1",
            values![&self.1, found.state.as_str()],
        )
        .await?;
        Ok(VolumeDoomed::Marked(found))
    }
}

/// The row becomes a tombstone: its name is free again, and what it held of the quota.
pub struct Bury(pub VolumeId, pub OffsetDateTime);

impl Op for Bury {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let rows = tx
            .query(
                "UPDATE volumes SET deleted_at = ?2, state = ?3 WHERE id = ?1 AND deleted_at IS NULL \
                 RETURNING org, size_mb",
                values![&self.0, self.1, VolumeState::Deleting.as_str()],
            )
            .await?;
        give_back(tx, &rows).await
    }
}

async fn give_back<T: Tx>(tx: &mut T, rows: &[Row]) -> Result<(), StoreError> {
    for row in rows {
        let org: OrgId = row.parse(0, "organisation id")?;
        hold_whatever(tx, &org, &disk(row.count(1)?), &Holding::nothing()).await?;
    }
    Ok(())
}

/// Takes a row away that never came to be, and lets its request be tried again. One that is there stays.
pub struct Forget(pub VolumeId);

impl Op for Forget {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let rows = tx
            .query(
                "DELETE FROM volumes WHERE id = ?1 AND state <> ?2 AND deleted_at IS NULL \
                 RETURNING org, size_mb",
                values![&self.0, VolumeState::Ready.as_str()],
            )
            .await?;
        if rows.is_empty() {
            return Ok(());
        }
        give_back(tx, &rows).await?;
        tx.execute(
            "DELETE FROM idempotency WHERE sandbox = ?1",
            values![&self.0],
        )
        .await
        .map(drop)
    }
}

/// The sandboxes that have it, at most a hundred.
pub struct Users(pub VolumeId);

impl Op for Users {
    type Out = Vec<VolumeUser>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT sandboxes.id, sandboxes.name FROM sandbox_volumes JOIN sandboxes \
                 ON sandboxes.id = sandbox_volumes.sandbox WHERE sandbox_volumes.volume = ?1 \
                 AND sandboxes.deleted_at IS NULL ORDER BY sandboxes.created_at, sandboxes.id LIMIT ?2",
                values![&self.0, USERS_MAX],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(VolumeUser {
                    id: row.parse(0, "sandbox id")?,
                    name: row.optional_text(1)?,
                })
            })
            .collect()
    }
}

/// Notes which volumes a new sandbox has. Refused when one is not its organisation's, is not there or is about to
/// go; the row's lock keeps it from going meanwhile.
pub async fn mount<T: Tx>(tx: &mut T, record: &SandboxRecord) -> Result<(), StoreError> {
    let ready = VolumeState::Ready.as_str();
    for mount in &record.spec.volumes {
        let found = tx
            .execute(
                "UPDATE volumes SET state = state WHERE id = ?1 AND org = ?2 AND host = ?3 \
                 AND state = ?4 AND deleted_at IS NULL",
                values![&mount.volume, &record.org, &record.host, ready],
            )
            .await?;
        if found == 0 {
            return Err(NO_VOLUME);
        }
        // One volume may be mounted at several places.
        tx.execute(
            "INSERT INTO sandbox_volumes (sandbox, volume) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
            values![&record.id, &mount.volume],
        )
        .await?;
    }
    Ok(())
}

/// Forgets volumes that are long gone.
pub async fn bury<T: Tx>(
    tx: &mut T,
    before: OffsetDateTime,
    rows_max: i64,
) -> Result<u64, StoreError> {
    tx.execute(
        "DELETE FROM volumes WHERE id IN (SELECT id FROM volumes WHERE deleted_at IS NOT NULL \
         AND deleted_at < ?1 ORDER BY deleted_at, id LIMIT ?2)",
        values![before, rows_max],
    )
    .await
}
