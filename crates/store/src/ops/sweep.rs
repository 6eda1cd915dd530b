//! Removes what is past its time, a bounded number of rows per transaction so that nobody waits long
//! behind it.

use crate::sql::{Op, Tx, values};
use crate::{Retention, StoreError};

/// Rows removed per table in one go.
const ROWS_MAX: i64 = 1000;

pub struct Sweep(pub Retention);

impl Op for Sweep {
    type Out = u64;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<u64, StoreError> {
        let keep = &self.0;
        let mut removed = tx
            .execute(
                "DELETE FROM idempotency WHERE (org, key) IN (SELECT org, key FROM idempotency \
                 WHERE created_at < ?1 LIMIT ?2)",
                values![keep.idempotency_before, ROWS_MAX],
            )
            .await?;
        removed += tx
            .execute(
                "DELETE FROM events WHERE sequence IN (SELECT sequence FROM events \
                 WHERE at < ?1 ORDER BY sequence LIMIT ?2)",
                values![keep.events_before, ROWS_MAX],
            )
            .await?;
        removed += tx
            .execute(
                "DELETE FROM events WHERE sequence IN (SELECT sequence FROM events \
                 WHERE sequence <= (SELECT value FROM counters WHERE name = 'events') - ?1 \
                 ORDER BY sequence LIMIT ?2)",
                values![keep.events_max, ROWS_MAX],
            )
            .await?;
        let dead = "SELECT id FROM sandboxes WHERE deleted_at IS NOT NULL AND deleted_at < ?1 \
                    ORDER BY deleted_at, id LIMIT ?2";
        tx.execute(
            &format!("DELETE FROM usage_marks WHERE sandbox IN ({dead})"),
            values![keep.tombstones_before, ROWS_MAX],
        )
        .await?;
        removed += tx
            .execute(
                &format!("DELETE FROM sandboxes WHERE id IN ({dead})"),
                values![keep.tombstones_before, ROWS_MAX],
            )
            .await?;
        Ok(removed)
    }
}
