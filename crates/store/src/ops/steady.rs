//! The axis of time that passed, over boots of the host.
//!
//! Within a boot it follows the clock that counts since the boot. Between the last reading of one boot and
//! the first of the next it follows the wall clock, and never goes back.

use cove_model::Steady;
use serde::{Deserialize, Serialize};

use crate::sql::{Op, Tx, json, micros, values};
use crate::{BootReading, SteadyAxis, StoreError};

const AXIS: &str = "steady_axis";

#[derive(Serialize, Deserialize)]
struct Kept {
    boot: String,
    /// Where the axis was when the boot began.
    offset: i64,
    /// Where it was when this boot was first seen.
    began: i64,
    last_steady: i64,
    last_wall: i64,
}

/// Notes a reading and answers how readings of this boot lie on the axis.
pub struct Read(pub BootReading);

impl Op for Read {
    type Out = SteadyAxis;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<SteadyAxis, StoreError> {
        let (wall, since) = (micros(self.0.at), self.0.boot_time.micros);
        let since = i64::try_from(since).unwrap_or(i64::MAX);
        tx.execute(
            "INSERT INTO settings VALUES (?1, '') ON CONFLICT (name) DO NOTHING",
            values![AXIS],
        )
        .await?;
        // The update that changes nothing takes the row's lock.
        let rows = tx
            .query(
                "UPDATE settings SET value = value WHERE name = ?1 RETURNING value",
                values![AXIS],
            )
            .await?;
        let kept: Option<Kept> = match rows.first().ok_or(StoreError::Stale)?.text(0)? {
            "" => None,
            text => Some(serde_json::from_str(text).map_err(|_| StoreError::Corrupt {
                what: "steady axis",
            })?),
        };
        let (offset, began) = match &kept {
            Some(kept) if kept.boot == self.0.boot_time.boot => (kept.offset, kept.began),
            Some(kept) => {
                let gap = wall.saturating_sub(kept.last_wall).max(0);
                let now = kept.last_steady.saturating_add(gap);
                (now.saturating_sub(since), now)
            }
            None => (wall.saturating_sub(since), wall),
        };
        let now = Kept {
            boot: self.0.boot_time.boot.clone(),
            offset,
            began,
            last_steady: offset.saturating_add(since),
            last_wall: wall,
        };
        tx.execute(
            "UPDATE settings SET value = ?2 WHERE name = ?1",
            values![AXIS, json(&now)?],
        )
        .await?;
        Ok(SteadyAxis {
            boot: now.boot,
            offset_us: offset,
            began: Steady::from_micros(began),
        })
    }
}
