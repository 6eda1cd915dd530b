//! Sandboxes: what their owners want of them and what they are.

use cove_model::{HostId, OrgId, SandboxId, State};
use time::OffsetDateTime;

use crate::cursor::Position;
use crate::newest::Newest;
use crate::ops::idempotency::claim;
use crate::ops::nodes::still_there;
use crate::ops::organisations::hold;
use crate::ops::volumes;
use crate::sql::{Op, Row, Tx, Value, json, micros, values};
use crate::{
    Created, Desired, Holding, IdempotencyKey, Moment, Page, PageRequest, SandboxChange,
    SandboxFilter, SandboxRecord, StoreError,
};

const COLUMNS: &str = "id, org, spec, desired, state, reason, generation, facts, held_sandboxes, \
     held_cpu_milli, held_memory_mb, held_disk_mb, created_at, updated_at, started_at, \
     last_active_at, deleted_at, origin, head, stopped_at, created_steady, active_steady, host";

const NAME_TAKEN: StoreError = StoreError::Exists {
    what: "a sandbox of this name",
};

fn state_of(text: &str) -> Result<State, StoreError> {
    State::ALL
        .into_iter()
        .find(|state| state.as_str() == text)
        .ok_or(StoreError::Corrupt { what: "state" })
}

fn record(row: &Row) -> Result<SandboxRecord, StoreError> {
    Ok(SandboxRecord {
        id: row.parse(0, "sandbox id")?,
        org: row.parse(1, "organisation id")?,
        spec: row.json(2, "sandbox spec")?,
        desired: Desired::parse(row.text(3)?).ok_or(StoreError::Corrupt {
            what: "desired state",
        })?,
        state: state_of(row.text(4)?)?,
        reason: row.optional_text(5)?,
        generation: row.count(6)?,
        facts: row.json(7, "host facts")?,
        holds: Holding {
            sandboxes: row.count(8)?,
            cpu_milli: row.count(9)?,
            memory_mb: row.count(10)?,
            disk_mb: row.count(11)?,
        },
        created_at: row.time(12)?,
        updated_at: row.time(13)?,
        started_at: row.optional_time(14)?,
        last_active_at: row.time(15)?,
        deleted_at: row.optional_time(16)?,
        origin: row.optional_parse(17, "snapshot id")?,
        head: row.optional_parse(18, "snapshot id")?,
        stopped_at: row.optional_time(19)?,
        created_steady: row.steady(20)?,
        active_steady: row.steady(21)?,
        host: row.parse(22, "host id")?,
    })
}

async fn put_labels<T: Tx>(tx: &mut T, record: &SandboxRecord) -> Result<(), StoreError> {
    for (label, value) in &record.spec.labels {
        tx.execute(
            "INSERT INTO sandbox_labels (sandbox, label, value) VALUES (?1, ?2, ?3)",
            values![&record.id, label.as_str(), value.as_str()],
        )
        .await?;
    }
    Ok(())
}

/// A duplicate can only be the name: ids are random and the caller's own.
fn name_taken(error: StoreError) -> StoreError {
    match error {
        StoreError::Exists { .. } => NAME_TAKEN,
        other => other,
    }
}

pub struct Create {
    pub record: SandboxRecord,
    pub idempotency: Option<IdempotencyKey>,
}

impl Op for Create {
    type Out = Created;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Created, StoreError> {
        let new = &self.record;
        let key = self.idempotency.as_ref();
        if let Some(earlier) = claim(tx, &new.org, key, &new.id, new.created_steady).await? {
            return Ok(earlier);
        }
        hold(tx, &new.org, &Holding::nothing(), &new.holds).await?;
        tx.execute(
            "INSERT INTO sandboxes (id, org, name, spec, desired, state, reason, generation, facts, \
             held_sandboxes, held_cpu_milli, held_memory_mb, held_disk_mb, created_at, updated_at, \
             started_at, last_active_at, deleted_at, origin, head, stopped_at, created_steady, \
             active_steady, host) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, \
             ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24)",
            &row_values(new)?,
        )
        .await
        .map_err(name_taken)?;
        put_labels(tx, new).await?;
        volumes::mount(tx, new).await?;
        still_there(tx, &new.host).await?;
        Ok(Created::New)
    }
}

fn row_values(record: &SandboxRecord) -> Result<[Value; 24], StoreError> {
    Ok([
        (&record.id).into(),
        (&record.org).into(),
        record.spec.name.as_deref().into(),
        json(&record.spec)?.into(),
        record.desired.as_str().into(),
        record.state.as_str().into(),
        record.reason.as_deref().into(),
        record.generation.into(),
        json(&record.facts)?.into(),
        record.holds.sandboxes.into(),
        record.holds.cpu_milli.into(),
        record.holds.memory_mb.into(),
        record.holds.disk_mb.into(),
        record.created_at.into(),
        record.updated_at.into(),
        record.started_at.into(),
        record.last_active_at.into(),
        record.deleted_at.into(),
        record.origin.as_ref().into(),
        record.head.as_ref().into(),
        record.stopped_at.into(),
        record.created_steady.into(),
        record.active_steady.into(),
        (&record.host).into(),
    ])
}

pub enum Get {
    ById(OrgId, SandboxId),
    ByName(OrgId, String),
    Any(SandboxId),
}

impl Op for Get {
    type Out = Option<SandboxRecord>;
    const POINT: bool = true;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let select = format!("SELECT {COLUMNS} FROM sandboxes WHERE");
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

/// Whose sandboxes a list has.
pub enum Whose {
    Org(OrgId),
    /// Of every organisation, on one host.
    Host(HostId),
}

pub struct List {
    pub whose: Whose,
    pub filter: SandboxFilter,
    pub page: PageRequest,
}

impl Op for List {
    type Out = Page<SandboxRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let oldest_first = self.filter.oldest_first;
        let mut list = Newest::ordered(COLUMNS, "sandboxes", &self.page, oldest_first)?;
        list.and("deleted_at IS NULL");
        match &self.whose {
            Whose::Org(org) => list.equal("org", org),
            Whose::Host(host) => list.equal("host", host),
        }
        if let Some(name) = &self.filter.name {
            list.equal("name", name.as_str());
        }
        list.among(
            "state",
            self.filter.states.iter().map(|state| state.as_str()),
        );
        for (label, value) in &self.filter.labels {
            let (label, value) = (list.bind(label.as_str()), list.bind(value.as_str()));
            list.and(&format!(
                "EXISTS (SELECT 1 FROM sandbox_labels WHERE sandbox = sandboxes.id \
                 AND label = {label} AND value = {value})"
            ));
        }
        list.read(tx, record, |record| {
            Position::new(micros(record.created_at), record.id.as_str())
        })
        .await
    }
}

pub struct Change {
    pub id: SandboxId,
    pub change: SandboxChange,
    pub at: OffsetDateTime,
}

impl Op for Change {
    type Out = SandboxRecord;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<SandboxRecord, StoreError> {
        let change = &self.change;
        // Counting the generation up first takes the row's lock, so what is read stays true.
        let sql = format!(
            "UPDATE sandboxes SET generation = generation + 1 WHERE id = ?1 AND deleted_at IS NULL \
             RETURNING {COLUMNS}"
        );
        let rows = tx.query(&sql, values![&self.id]).await?;
        let old = record(rows.first().ok_or(StoreError::NotFound {
            what: "the sandbox",
        })?)?;
        if change
            .expected_generation
            .is_some_and(|expected| expected.checked_add(1) != Some(old.generation))
        {
            return Err(StoreError::Stale);
        }
        let new = applied(&old, change, self.at);
        hold(tx, &old.org, &old.holds, &new.holds).await?;
        tx.execute(
            "UPDATE sandboxes SET org = ?2, name = ?3, spec = ?4, desired = ?5, state = ?6, \
             reason = ?7, generation = ?8, facts = ?9, held_sandboxes = ?10, held_cpu_milli = ?11, \
             held_memory_mb = ?12, held_disk_mb = ?13, created_at = ?14, updated_at = ?15, \
             started_at = ?16, last_active_at = ?17, deleted_at = ?18, origin = ?19, head = ?20, \
             stopped_at = ?21, created_steady = ?22, active_steady = ?23, host = ?24 WHERE id = ?1",
            &row_values(&new)?,
        )
        .await
        .map_err(name_taken)?;
        if new.deleted_at.is_some() && !old.spec.volumes.is_empty() {
            tx.execute(
                "DELETE FROM sandbox_volumes WHERE sandbox = ?1",
                values![&self.id],
            )
            .await?;
        }
        if new.spec.labels != old.spec.labels || new.deleted_at.is_some() {
            tx.execute(
                "DELETE FROM sandbox_labels WHERE sandbox = ?1",
                values![&self.id],
            )
            .await?;
            if new.deleted_at.is_none() {
                put_labels(tx, &new).await?;
            }
        }
        Ok(new)
    }
}

fn applied(old: &SandboxRecord, change: &SandboxChange, at: OffsetDateTime) -> SandboxRecord {
    let change = change.clone();
    let state = change.state.unwrap_or(old.state);
    let before = Moment {
        at: old.last_active_at,
        steady: old.active_steady,
    };
    // The later one by time that passed: the date may have been set back.
    let active = change.last_active.filter(|new| new.steady > before.steady);
    let active = active.unwrap_or(before);
    SandboxRecord {
        spec: change.spec.unwrap_or_else(|| old.spec.clone()),
        desired: change.desired.unwrap_or(old.desired),
        stopped_at: stopped_at(old, state, at),
        state,
        reason: change.reason.unwrap_or_else(|| old.reason.clone()),
        facts: change.facts.unwrap_or_else(|| old.facts.clone()),
        holds: change.holds.unwrap_or(old.holds),
        started_at: change.started_at.unwrap_or(old.started_at),
        last_active_at: active.at,
        active_steady: active.steady,
        deleted_at: change.deleted_at.or(old.deleted_at),
        head: change.head.unwrap_or_else(|| old.head.clone()),
        origin: old.origin.clone(),
        updated_at: at,
        id: old.id.clone(),
        org: old.org.clone(),
        generation: old.generation,
        created_at: old.created_at,
        created_steady: old.created_steady,
        host: old.host.clone(),
    }
}

/// Since when it has no processes and keeps no memory.
fn stopped_at(old: &SandboxRecord, state: State, at: OffsetDateTime) -> Option<OffsetDateTime> {
    let is_over = |state| matches!(state, State::Stopped | State::Failed);
    match state {
        _ if is_over(state) && !is_over(old.state) => Some(at),
        // What is being deleted says how it was until then.
        State::Stopped | State::Failed | State::Deleting | State::Gone => old.stopped_at,
        _ => None,
    }
}

/// Those of a host that are gone, the last first.
pub struct Buried(pub HostId, pub u32);

impl Op for Buried {
    type Out = Vec<SandboxRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM sandboxes WHERE deleted_at IS NOT NULL \
             AND host = ?1 ORDER BY deleted_at DESC LIMIT ?2"
        );
        let rows = tx.query(&sql, values![&self.0, i64::from(self.1)]).await?;
        rows.iter().map(record).collect()
    }
}

pub struct Touch(pub Vec<(SandboxId, Moment)>);

impl Op for Touch {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for (id, at) in &self.0 {
            tx.execute(
                "UPDATE sandboxes SET last_active_at = ?2, active_steady = ?3 \
                 WHERE id = ?1 AND active_steady < ?3",
                values![id, at.at, at.steady],
            )
            .await?;
        }
        Ok(())
    }
}

pub struct ForgetIdempotency(pub OrgId, pub SandboxId);

impl Op for ForgetIdempotency {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "DELETE FROM idempotency WHERE org = ?1 AND sandbox = ?2",
            values![&self.0, &self.1],
        )
        .await
        .map(drop)
    }
}
