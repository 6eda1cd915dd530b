//! Events, numbered in the order they commit: the counter's row stays locked until then, so a reader
//! that has seen a number will never miss a smaller one.

use cove_model::{OrgId, SandboxId};

use crate::sql::{Op, Tx, json, values};
use crate::{NewEvent, PAGE_MAX, StoreError, StoredEvent};

const POSITION: &str = "host_event_position";

/// Reserves `count` numbers and answers the last one before them.
pub async fn reserve<T: Tx>(tx: &mut T, counter: &str, count: usize) -> Result<u64, StoreError> {
    let count = count as u64;
    let rows = tx
        .query(
            "UPDATE counters SET value = value + ?2 WHERE name = ?1 RETURNING value",
            values![counter, count],
        )
        .await?;
    let last = rows
        .first()
        .ok_or(StoreError::Corrupt { what: "counter" })?
        .count(0)?;
    Ok(last.saturating_sub(count))
}

pub struct Append {
    pub events: Vec<NewEvent>,
    pub host_position: Option<u64>,
}

impl Op for Append {
    type Out = Vec<StoredEvent>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let mut stored = Vec::with_capacity(self.events.len());
        if !self.events.is_empty() {
            let mut sequence = reserve(tx, "events", self.events.len()).await?;
            for event in &self.events {
                sequence += 1;
                tx.execute(
                    "INSERT INTO events VALUES (?1, ?2, ?3, ?4, ?5)",
                    values![
                        sequence,
                        &event.org,
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
        if let Some(position) = self.host_position {
            PutSetting(POSITION.to_owned(), position.to_string())
                .run(tx)
                .await?;
        }
        Ok(stored)
    }
}

pub struct Position;

impl Op for Position {
    type Out = Option<u64>;
    const POINT: bool = true;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let text = Setting(POSITION.to_owned()).run(tx).await?;
        text.map(|text| {
            text.parse().map_err(|_| StoreError::Corrupt {
                what: "event position",
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
        rows.iter()
            .map(|row| {
                Ok(StoredEvent {
                    sequence: row.count(0)?,
                    org: row.parse(1, "organisation id")?,
                    sandbox: row.parse(2, "sandbox id")?,
                    at: row.time(3)?,
                    kind: row.json(4, "event")?,
                })
            })
            .collect()
    }
}

pub struct Bounds;

impl Op for Bounds {
    type Out = (Option<u64>, u64);
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let last = tx
            .query("SELECT value FROM counters WHERE name = 'events'", &[])
            .await?;
        let oldest = tx
            .query("SELECT sequence FROM events ORDER BY sequence LIMIT 1", &[])
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
            "INSERT INTO settings VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            values![self.0.as_str(), self.1.as_str()],
        )
        .await
        .map(drop)
    }
}
