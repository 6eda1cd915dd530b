//! The axis of time that passed, over boots and over the machines that use the database.
//!
//! Each machine has a row: where its boot lies on the axis, and its last reading. Within a boot the axis follows the
//! clock that counts since the boot. A machine that starts, or comes back after others have brought the axis further,
//! continues at the furthest reading of theirs. Only where no other machine read meanwhile, its own wall clock says how
//! long it was away, and never less than nothing. The wall clocks of two machines are never compared.

use cove_model::Steady;
use serde::Deserialize;

use crate::sql::{Op, Tx, micros, values};
use crate::{BootReading, SteadyAxis, StoreError};

/// The setting whose row is the lock. Before there were rows of machines it had the one reading.
const AXIS: &str = "steady_axis";
/// How far the axis of a boot may be from the last reading of another machine. Machines that are there read about
/// twice a minute; one that is further off was away or hung.
const APART_MAX_US: i64 = 5 * 60 * 1_000_000;
/// A few rounds of reading.
const GONE_MIN_US: i64 = 2 * 60 * 1_000_000;
/// Rows of machines that are kept, those that read last.
const MACHINES_MAX: i64 = 64;

#[derive(Deserialize)]
struct Kept {
    boot: String,
    /// Where the axis was when the boot began.
    #[serde(rename = "offset")]
    offset_us: i64,
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
        let before = lock(tx).await?;
        let own = own(tx, &self.0.machine).await?;
        let others = others(tx, &self.0.machine).await?;
        // What an earlier program left is this machine's: there was one.
        let own = own.or(before.filter(|_| others.is_none()));
        let boot = &self.0.boot_time.boot;
        let (offset_us, began) = place(own.as_ref(), others, boot, since, wall);
        let last_steady = offset_us.saturating_add(since);
        tx.execute(
            "INSERT INTO steady_axes (machine, boot, offset_us, began, last_steady, last_wall) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (machine) DO UPDATE SET boot = excluded.boot, \
             offset_us = excluded.offset_us, began = excluded.began, \
             last_steady = excluded.last_steady, last_wall = excluded.last_wall",
            values![
                self.0.machine.as_str(),
                boot.as_str(),
                offset_us,
                began,
                last_steady,
                wall
            ],
        )
        .await?;
        tx.execute(
            "DELETE FROM steady_axes WHERE machine NOT IN \
             (SELECT machine FROM steady_axes ORDER BY last_steady DESC, machine LIMIT ?1)",
            values![MACHINES_MAX],
        )
        .await?;
        Ok(SteadyAxis {
            boot: boot.clone(),
            offset_us,
            began: Steady::from_micros(began),
        })
    }
}

/// Where the axis was at the boot, and since when it is exact. `others` is the furthest reading of another machine.
fn place(own: Option<&Kept>, others: Option<i64>, boot: &str, since: i64, wall: i64) -> (i64, i64) {
    let begins = |now: i64| (now.saturating_sub(since), now);
    let Some(own) = own else {
        return begins(others.unwrap_or(wall));
    };
    // Another machine was there while this one was not.
    let further = others.filter(|others| *others > own.last_steady);
    if own.boot == boot {
        let now = own.offset_us.saturating_add(since);
        // Both may have been without the database. The other one was there meanwhile if it read on for long.
        let gone = further.filter(|others| {
            others.saturating_sub(own.last_steady) > GONE_MIN_US
                && now.abs_diff(*others) > APART_MAX_US.unsigned_abs()
        });
        return match gone {
            Some(others) => begins(others),
            None => (own.offset_us, own.began),
        };
    }
    let away = wall.saturating_sub(own.last_wall).max(0);
    begins(further.unwrap_or_else(|| own.last_steady.saturating_add(away)))
}

/// Holds off other readings until the end of the transaction, and answers what an earlier program left.
async fn lock<T: Tx>(tx: &mut T) -> Result<Option<Kept>, StoreError> {
    tx.execute(
        "INSERT INTO settings (name, value) VALUES (?1, '') ON CONFLICT (name) DO NOTHING",
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
    match rows.first().ok_or(StoreError::Stale)?.text(0)? {
        "" => Ok(None),
        text => serde_json::from_str(text)
            .map(Some)
            .map_err(|_| StoreError::Corrupt {
                what: "steady axis",
            }),
    }
}

async fn own<T: Tx>(tx: &mut T, machine: &str) -> Result<Option<Kept>, StoreError> {
    let rows = tx
        .query(
            "SELECT boot, offset_us, began, last_steady, last_wall FROM steady_axes WHERE machine = ?1",
            values![machine],
        )
        .await?;
    rows.first()
        .map(|row| {
            Ok(Kept {
                boot: row.text(0)?.to_owned(),
                offset_us: row.int(1)?,
                began: row.int(2)?,
                last_steady: row.int(3)?,
                last_wall: row.int(4)?,
            })
        })
        .transpose()
}

async fn others<T: Tx>(tx: &mut T, machine: &str) -> Result<Option<i64>, StoreError> {
    let rows = tx
        .query(
            "SELECT last_steady FROM steady_axes WHERE machine <> ?1 ORDER BY last_steady DESC LIMIT 1",
            values![machine],
        )
        .await?;
    rows.first().map(|row| row.int(0)).transpose()
}
