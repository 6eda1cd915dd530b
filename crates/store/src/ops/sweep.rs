//! Removes what is past its time, a bounded number of rows per transaction so that nobody waits long
//! behind it.

use crate::ops::{audit, snapshots, volumes};
use crate::sql::{Op, Tx, values};
use crate::{Retention, StoreError};

/// Rows removed per table in one go.
const ROWS_MAX: i64 = 1000;
/// Organisations with too many events that one transaction looks at.
const ORGANISATIONS_MAX: i64 = 16;

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
        // Fetches are remembered as long as answers are.
        removed += tx
            .execute(
                "DELETE FROM image_jobs WHERE (id, org) IN (SELECT id, org FROM image_jobs \
                 WHERE created_at < ?1 LIMIT ?2)",
                values![keep.jobs_before, ROWS_MAX],
            )
            .await?;
        removed += trim_events(tx, keep).await?;
        removed += audit::prune(tx, keep).await?;
        // A journal that was not heard of for as long as records are kept is gone with its host.
        removed += tx
            .execute(
                "DELETE FROM audit_journals WHERE (host, journal) IN (SELECT host, journal \
                 FROM audit_journals WHERE moved_at < ?1 LIMIT ?2)",
                values![keep.audit_before, ROWS_MAX],
            )
            .await?;
        // Work that ended with its process, and that nobody took over.
        removed += tx
            .execute(
                "DELETE FROM work WHERE id IN (SELECT id FROM builds WHERE finished_at IS NOT NULL) \
                 OR id IN (SELECT id FROM snapshots WHERE object_copy <> 'uploading')",
                &[],
            )
            .await?;
        removed += snapshots::bury(tx, keep.tombstones_before, ROWS_MAX).await?;
        removed += volumes::bury(tx, keep.tombstones_before, ROWS_MAX).await?;
        Ok(removed + bury(tx, keep).await?)
    }
}

/// Takes the oldest events off: those before a time, and those of an organisation beyond its number.
async fn trim_events<T: Tx>(tx: &mut T, keep: &Retention) -> Result<u64, StoreError> {
    let mut removed = tx
        .execute(
            "DELETE FROM events WHERE (org, sequence) IN (SELECT org, sequence FROM events \
             WHERE at < ?1 ORDER BY at LIMIT ?2)",
            values![keep.events_before, ROWS_MAX],
        )
        .await?;
    let many = tx
        .query(
            "SELECT org FROM events GROUP BY org HAVING COUNT(*) > ?1 LIMIT ?2",
            values![keep.events_max, ORGANISATIONS_MAX],
        )
        .await?;
    for row in &many {
        let org = row.text(0)?;
        // Counted, not calculated: numbers are passed over after a reboot.
        removed += tx
            .execute(
                "DELETE FROM events WHERE org = ?1 AND sequence IN (SELECT sequence FROM events \
                 WHERE org = ?1 AND sequence <= (SELECT sequence FROM events WHERE org = ?1 \
                 ORDER BY sequence DESC LIMIT 1 OFFSET ?2) ORDER BY sequence LIMIT ?3)",
                values![org, keep.events_max, ROWS_MAX],
            )
            .await?;
    }
    Ok(removed)
}

/// Forgets sandboxes that are long gone. What they used stays, as their organisation's.
async fn bury<T: Tx>(tx: &mut T, keep: &Retention) -> Result<u64, StoreError> {
    let overflow = tx
        .query(
            "SELECT deleted_at FROM sandboxes WHERE deleted_at IS NOT NULL \
             ORDER BY deleted_at DESC LIMIT 1 OFFSET ?1",
            values![keep.tombstones_max],
        )
        .await?;
    let overflow = overflow.first().map(|row| row.int(0)).transpose()?;
    // The one at the edge goes too, hence the next microsecond.
    let before = crate::sql::micros(keep.tombstones_before)
        .max(overflow.map_or(i64::MIN, |at| at.saturating_add(1)));
    let dead = "SELECT id FROM sandboxes WHERE deleted_at IS NOT NULL AND deleted_at < ?1 \
                ORDER BY deleted_at, id LIMIT ?2";
    let which = values![before, ROWS_MAX];
    let fold = format!(
        "INSERT INTO usage_hours (sandbox, hour, org, cpu_usec, memory_mib_ms, disk_mib_ms, \
         egress_bytes, estimated_ms) SELECT org, hour, org, CAST(SUM(cpu_usec) AS BIGINT), \
         CAST(SUM(memory_mib_ms) AS BIGINT), CAST(SUM(disk_mib_ms) AS BIGINT), \
         CAST(SUM(egress_bytes) AS BIGINT), CAST(SUM(estimated_ms) AS BIGINT) FROM usage_hours WHERE sandbox IN ({dead}) \
         GROUP BY org, hour ON CONFLICT (sandbox, hour) DO UPDATE SET \
         cpu_usec = usage_hours.cpu_usec + excluded.cpu_usec, \
         memory_mib_ms = usage_hours.memory_mib_ms + excluded.memory_mib_ms, \
         disk_mib_ms = usage_hours.disk_mib_ms + excluded.disk_mib_ms, \
         egress_bytes = usage_hours.egress_bytes + excluded.egress_bytes, \
         estimated_ms = usage_hours.estimated_ms + excluded.estimated_ms"
    );
    tx.execute(&fold, which).await?;
    for table in ["usage_hours", "usage_marks", "port_shares", "secret_spend"] {
        let sql = format!("DELETE FROM {table} WHERE sandbox IN ({dead})");
        tx.execute(&sql, which).await?;
    }
    let sql = format!("DELETE FROM sandboxes WHERE id IN ({dead})");
    tx.execute(&sql, which).await
}
