//! Work that one process does at a time: who does it, and a counter that shows that the process lives.
//!
//! No time is written. Another process that wants to take the work over watches the counter by its own clock.

use crate::sql::{Op, Tx, values};
use crate::{StoreError, WorkRecord};

pub struct Take {
    pub id: String,
    pub owner: String,
    pub token: String,
}

impl Op for Take {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "INSERT INTO work (id, owner, token, beats) VALUES (?1, ?2, ?3, 0) \
             ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, token = excluded.token, beats = 0",
            values![self.id.as_str(), self.owner.as_str(), self.token.as_str()],
        )
        .await
        .map(drop)
    }
}

/// Of the work and of the try.
pub struct Beat(pub String, pub String);

impl Op for Beat {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let beaten = tx
            .execute(
                "UPDATE work SET beats = beats + 1 WHERE id = ?1 AND token = ?2",
                values![self.0.as_str(), self.1.as_str()],
            )
            .await?;
        match beaten {
            0 => Err(StoreError::Stale),
            _ => Ok(()),
        }
    }
}

/// Of the work and of the try.
pub struct End(pub String, pub String);

impl Op for End {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "DELETE FROM work WHERE id = ?1 AND token = ?2",
            values![self.0.as_str(), self.1.as_str()],
        )
        .await
        .map(drop)
    }
}

pub struct Get(pub String);

impl Op for Get {
    type Out = Option<WorkRecord>;
    const POINT: bool = true;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT owner, token, beats FROM work WHERE id = ?1",
                values![self.0.as_str()],
            )
            .await?;
        rows.first()
            .map(|row| {
                Ok(WorkRecord {
                    owner: row.text(0)?.to_owned(),
                    token: row.text(1)?.to_owned(),
                    beats: row.count(2)?,
                })
            })
            .transpose()
    }
}
