//! Events, numbered for each organisation in the order they commit: its head's row stays locked until
//! then, so a reader that has seen a number will never miss a smaller one. Nobody's numbers say anything
//! about another organisation.

use std::collections::BTreeMap;

use cove_model::{HostId, OrgId, SandboxId};

use crate::sql::{Op, Row, Tx, json, values};
use crate::{HostAdvance, HostPosition, NewEvent, PAGE_MAX, StoreError, StoredEvent};

/// Reserves `count` numbers and answers the last one before them.
pub async fn reserve<T: Tx>(tx: &mut T, org: &OrgId, count: u64) -> Result<u64, StoreError> {
    let rows = tx
        .query(
            "INSERT INTO event_heads (org, sequence) VALUES (?1, ?2) ON CONFLICT (org) DO UPDATE \
             SET sequence = event_heads.sequence + excluded.sequence RETURNING sequence",
            values![org, count],
        )
        .await?;
    let last = rows
        .first()
        .ok_or(StoreError::Corrupt { what: "head" })?
        .count(0)?;
    Ok(last.saturating_sub(count))
}

pub struct Append {
    pub events: Vec<NewEvent>,
    pub advance: Option<HostAdvance>,
}

impl Op for Append {
    type Out = Vec<StoredEvent>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        // First, and it locks the row: a reader that comes too late changes nothing.
        if let Some(advance) = &self.advance {
            move_position(tx, advance).await?;
        }
        let mut stored = Vec::with_capacity(self.events.len());
        if !self.events.is_empty() {
            // Always in the same order, so that two writers do not wait for each other.
            let mut last: BTreeMap<&OrgId, u64> = BTreeMap::new();
            for event in &self.events {
                *last.entry(&event.org).or_default() += 1;
            }
            for (org, count) in &mut last {
                *count = reserve(tx, org, *count).await?;
            }
            for event in &self.events {
                let sequence = last.entry(&event.org).or_default();
                *sequence += 1;
                let sequence = *sequence;
                tx.execute(
                    "INSERT INTO events (org, sequence, sandbox, at, kind) \
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                    values![
                        &event.org,
                        sequence,
                        &event.sandbox,
                        event.at,
                        json(&event.kind)?
                    ],
                )
                .await?;
                stored.push(StoredEvent {
                    sequence,
                    org: event.org.clone(),
                    sandbox: event.sandbox.clone(),
                    at: event.at,
                    kind: event.kind.clone(),
                });
            }
        }
        Ok(stored)
    }
}

/// From where the reader began, and from nowhere else.
async fn move_position<T: Tx>(tx: &mut T, advance: &HostAdvance) -> Result<(), StoreError> {
    let HostAdvance { host, from, to } = advance;
    let moved = tx
        .execute(
            "UPDATE event_positions SET sequence = ?2, life = ?3 \
             WHERE host = ?1 AND sequence = ?4 AND life = ?5",
            values![
                host,
                to.sequence,
                to.life.as_str(),
                from.sequence,
                from.life.as_str()
            ],
        )
        .await?;
    if moved > 0 {
        return Ok(());
    }
    if *from != HostPosition::default() {
        return Err(StoreError::Stale);
    }
    let added = tx
        .execute(
            "INSERT INTO event_positions (host, sequence, life) VALUES (?1, ?2, ?3) \
             ON CONFLICT (host) DO NOTHING",
            values![host, to.sequence, to.life.as_str()],
        )
        .await?;
    match added {
        0 => Err(StoreError::Stale),
        _ => Ok(()),
    }
}

pub struct Position(pub HostId);

impl Op for Position {
    type Out = Option<HostPosition>;
    const POINT: bool = true;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT sequence, life FROM event_positions WHERE host = ?1",
                values![&self.0],
            )
            .await?;
        rows.first()
            .map(|row| {
                Ok(HostPosition {
                    sequence: row.count(0)?,
                    life: row.text(1)?.to_owned(),
                })
            })
            .transpose()
    }
}

pub struct After {
    pub org: OrgId,
    pub sandbox: Option<SandboxId>,
    pub after: u64,
    pub limit: u32,
}

impl Op for After {
    type Out = Vec<StoredEvent>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let limit = i64::from(self.limit.min(PAGE_MAX));
        let select =
            "SELECT sequence, org, sandbox, at, kind FROM events WHERE org = ?1 AND sequence > ?2";
        let rows = match &self.sandbox {
            Some(sandbox) => {
                let sql = format!("{select} AND sandbox = ?4 ORDER BY sequence LIMIT ?3");
                tx.query(&sql, values![&self.org, self.after, limit, sandbox])
                    .await?
            }
            None => {
                let sql = format!("{select} ORDER BY sequence LIMIT ?3");
                tx.query(&sql, values![&self.org, self.after, limit])
                    .await?
            }
        };
        rows.iter().map(stored).collect()
    }
}

fn stored(row: &Row) -> Result<StoredEvent, StoreError> {
    Ok(StoredEvent {
        sequence: row.count(0)?,
        org: row.parse(1, "organisation id")?,
        sandbox: row.parse(2, "sandbox id")?,
        at: row.time(3)?,
        kind: row.json(4, "event")?,
    })
}

/// Of one sandbox, newest first, whoever owns it.
pub struct Latest(pub SandboxId, pub u32);

impl Op for Latest {
    type Out = Vec<StoredEvent>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT sequence, org, sandbox, at, kind FROM events WHERE sandbox = ?1 \
                 ORDER BY sequence DESC LIMIT ?2",
                values![&self.0, i64::from(self.1.min(PAGE_MAX))],
            )
            .await?;
        rows.iter().map(stored).collect()
    }
}

pub struct Bounds(pub OrgId);

impl Op for Bounds {
    type Out = (Option<u64>, u64);
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let last = tx
            .query(
                "SELECT sequence FROM event_heads WHERE org = ?1",
                values![&self.0],
            )
            .await?;
        let oldest = tx
            .query(
                "SELECT sequence FROM events WHERE org = ?1 ORDER BY sequence LIMIT 1",
                values![&self.0],
            )
            .await?;
        let oldest = oldest.first().map(|row| row.count(0)).transpose()?;
        let last = last.first().map(|row| row.count(0)).transpose()?;
        Ok((oldest, last.unwrap_or(0)))
    }
}

pub struct Setting(pub String);

impl Op for Setting {
    type Out = Option<String>;
    const POINT: bool = true;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT value FROM settings WHERE name = ?1",
                values![self.0.as_str()],
            )
            .await?;
        rows.first()
            .map(|row| Ok(row.text(0)?.to_owned()))
            .transpose()
    }
}

pub struct PutSetting(pub String, pub String);

impl Op for PutSetting {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "INSERT INTO settings (name, value) VALUES (?1, ?2) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            values![self.0.as_str(), self.1.as_str()],
        )
        .await
        .map(drop)
    }
}
