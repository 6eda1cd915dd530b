//! Fetches of images: whose they are, and how they ended.

use cove_model::OrgId;

use crate::ops::organisations::lock;
use crate::sql::{Op, Row, Tx, values};
use crate::{ImageJobRecord, StoreError};

/// Fetches under way that are picked up again; a host runs far fewer at once.
const UNFINISHED_MAX: i64 = 1000;
const COLUMNS: &str = "id, org, name, shared, created_at, outcome, host";

/// Adds it, or writes how it ended. What ended once does not end differently.
pub struct Put(pub ImageJobRecord);

impl Op for Put {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let job = &self.0;
        lock(tx, &job.org).await?;
        tx.execute(
            "INSERT INTO image_jobs (id, org, name, shared, created_at, outcome, host) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id, org) DO UPDATE SET \
             outcome = COALESCE(image_jobs.outcome, excluded.outcome)",
            values![
                job.id.as_str(),
                &job.org,
                job.name.as_str(),
                i64::from(job.shared),
                job.created_at,
                job.outcome.clone(),
                &job.host
            ],
        )
        .await
        .map(drop)
    }
}

/// Of one organisation, or of whoever has it.
pub struct Get(pub Option<OrgId>, pub String);

impl Op for Get {
    type Out = Option<ImageJobRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = match &self.0 {
            Some(org) => {
                let sql = format!("SELECT {COLUMNS} FROM image_jobs WHERE id = ?1 AND org = ?2");
                tx.query(&sql, values![self.1.as_str(), org]).await?
            }
            None => {
                let sql = format!(
                    "SELECT {COLUMNS} FROM image_jobs WHERE id = ?1 ORDER BY created_at LIMIT 1"
                );
                tx.query(&sql, values![self.1.as_str()]).await?
            }
        };
        rows.first().map(record).transpose()
    }
}

pub struct Unfinished;

impl Op for Unfinished {
    type Out = Vec<ImageJobRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM image_jobs WHERE outcome IS NULL \
             ORDER BY created_at DESC LIMIT ?1"
        );
        let rows = tx.query(&sql, values![UNFINISHED_MAX]).await?;
        rows.iter().map(record).collect()
    }
}

fn record(row: &Row) -> Result<ImageJobRecord, StoreError> {
    Ok(ImageJobRecord {
        id: row.text(0)?.to_owned(),
        org: row.parse(1, "organisation id")?,
        name: row.text(2)?.to_owned(),
        shared: row.int(3)? != 0,
        created_at: row.time(4)?,
        outcome: row.optional_text(5)?,
        host: row.parse(6, "host id")?,
    })
}
