//! Metering. Each sample charges what was used since the one before and moves the marks in the same
//! transaction, so a sample counts once however often the program dies around it.

use std::time::Duration;

use cove_model::{OrgId, SandboxId, Steady};

use crate::cursor::{self, Position};
use crate::sql::{Op, Row, Tx, micros, values};
use crate::{
    Moment, Page, PageRequest, Period, SandboxUsage, SnapshotSample, StoreError, Usage,
    UsageSample, VolumeSample,
};

const HOUR_MICROS: i64 = 3_600_000_000;
/// When nobody saw it end, memory is charged for at most this long after the last sample: what is
/// not known to have been used is not charged.
const UNSEEN_END_MICROS: i64 = 60_000_000;
/// Likewise the first figures are charged for at most this long before they were taken.
const UNSEEN_START_MICROS: i64 = 60_000_000;
/// Byte-microseconds in one MiB-millisecond.
const UNIT: u128 = (1 << 20) * 1000;

const SUMS: &str = "CAST(COALESCE(SUM(cpu_usec), 0) AS BIGINT), \
     CAST(COALESCE(SUM(memory_mib_ms), 0) AS BIGINT), \
     CAST(COALESCE(SUM(disk_mib_ms), 0) AS BIGINT), \
     CAST(COALESCE(SUM(egress_bytes), 0) AS BIGINT), \
     CAST(COALESCE(SUM(estimated_ms), 0) AS BIGINT)";

/// Where the last sample left off, on the axis of time that passed. The rests are what did not fill a whole unit yet.
struct Mark {
    at: i64,
    running: bool,
    cpu_usec: u64,
    memory_bytes: u64,
    disk_bytes: u64,
    egress_bytes: u64,
    memory_rest: u64,
    disk_rest: u64,
}

/// Counters run over a sandbox's whole life. One that went back has lost some of it, which was charged
/// when it was seen; what comes from now on is charged from where it stands.
fn grown(now: u64, before: u64) -> u64 {
    now.saturating_sub(before)
}

/// Whole units of `bytes` held for `micros`, and the rest to carry.
fn held(bytes: u64, micros: i64, rest: u64) -> (u64, u64) {
    let micros = u128::try_from(micros).unwrap_or(0);
    let total = u128::from(bytes) * micros + u128::from(rest);
    let units = u64::try_from(total / UNIT).unwrap_or(u64::MAX);
    (units, (total % UNIT) as u64)
}

/// What the time since `mark` cost, and the rests to keep. Between two samples the figures of the
/// earlier one hold.
fn charge(mark: &Mark, sample: &Figures<'_>) -> (Usage, u64, u64) {
    let now = sample.at;
    let ran_until = match sample.ran_until {
        Some(at) => at,
        None if sample.running => now,
        None => mark.at.saturating_add(UNSEEN_END_MICROS),
    };
    let ran_until = ran_until.clamp(mark.at, now);
    let ran = if mark.running { ran_until - mark.at } else { 0 };
    let (memory_mib_ms, memory_rest) = held(mark.memory_bytes, ran, mark.memory_rest);
    let (disk_mib_ms, disk_rest) = held(mark.disk_bytes, now - mark.at, mark.disk_rest);
    // The host was restarted since: how long that took only dates can tell.
    let estimated = mark.at < sample.exact_since && (memory_mib_ms > 0 || disk_mib_ms > 0);
    let spanned = u64::try_from((now - mark.at) / 1000).unwrap_or(0);
    let usage = Usage {
        estimated_ms: if estimated { spanned } else { 0 },
        cpu_usec: grown(sample.cpu_usec, mark.cpu_usec),
        memory_mib_ms,
        disk_mib_ms,
        egress_bytes: grown(sample.egress_bytes, mark.egress_bytes),
    };
    (usage, memory_rest, disk_rest)
}

pub struct Apply(pub Vec<UsageSample>);

impl Op for Apply {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for sample in &self.0 {
            let figures = Figures {
                mark: sample.sandbox.as_str(),
                counts_for: sample.sandbox.as_str(),
                org: &sample.org,
                at: sample.at.steady.micros(),
                date: micros(sample.at.at),
                exact_since: sample.exact_since.micros(),
                running: sample.running,
                running_for: sample.running_for,
                ran_until: sample.ran_until.map(Steady::micros),
                cpu_usec: sample.cpu_usec,
                memory_bytes: sample.memory_bytes,
                disk_bytes: sample.disk_bytes,
                egress_bytes: sample.egress_bytes,
            };
            apply(tx, &figures).await?;
        }
        Ok(())
    }
}

/// Marks are each snapshot's own; what they cost counts in the organisation's own name.
pub struct ApplySnapshots(pub Vec<SnapshotSample>);

impl Op for ApplySnapshots {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for sample in &self.0 {
            let kept = Kept {
                table: "snapshots",
                id: sample.snapshot.as_str(),
                org: &sample.org,
                at: sample.at,
                exact_since: sample.exact_since,
                disk_bytes: sample.disk_bytes,
            };
            apply_kept(tx, &kept).await?;
        }
        Ok(())
    }
}

/// Volumes are metered as snapshots are.
pub struct ApplyVolumes(pub Vec<VolumeSample>);

impl Op for ApplyVolumes {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for sample in &self.0 {
            let kept = Kept {
                table: "volumes",
                id: sample.volume.as_str(),
                org: &sample.org,
                at: sample.at,
                exact_since: sample.exact_since,
                disk_bytes: sample.disk_bytes,
            };
            apply_kept(tx, &kept).await?;
        }
        Ok(())
    }
}

/// Something that only takes disk, and counts for its organisation as a whole.
struct Kept<'a> {
    table: &'static str,
    id: &'a str,
    org: &'a OrgId,
    at: Moment,
    exact_since: Steady,
    disk_bytes: Option<u64>,
}

async fn apply_kept<T: Tx>(tx: &mut T, sample: &Kept<'_>) -> Result<(), StoreError> {
    let alive = format!(
        "SELECT id FROM {} WHERE id = ?1 AND deleted_at IS NULL",
        sample.table
    );
    let alive = tx.query(&alive, values![sample.id]).await?;
    // One that went while it was looked at has been settled by whoever buried it.
    if alive.is_empty() && sample.disk_bytes.is_some() {
        return Ok(());
    }
    let figures = Figures {
        mark: sample.id,
        counts_for: sample.org.as_str(),
        org: sample.org,
        at: sample.at.steady.micros(),
        date: micros(sample.at.at),
        exact_since: sample.exact_since.micros(),
        running: false,
        running_for: None,
        ran_until: None,
        cpu_usec: 0,
        memory_bytes: 0,
        disk_bytes: sample.disk_bytes.unwrap_or(0),
        egress_bytes: 0,
    };
    apply(tx, &figures).await?;
    if sample.disk_bytes.is_none() {
        tx.execute(
            "DELETE FROM usage_marks WHERE sandbox = ?1",
            values![sample.id],
        )
        .await?;
    }
    Ok(())
}

/// A sample of anything that is metered.
struct Figures<'a> {
    /// Whose marks are moved.
    mark: &'a str,
    /// Whose usage it is.
    counts_for: &'a str,
    org: &'a OrgId,
    at: i64,
    /// The same as a date.
    date: i64,
    exact_since: i64,
    running: bool,
    running_for: Option<Duration>,
    ran_until: Option<i64>,
    cpu_usec: u64,
    memory_bytes: u64,
    disk_bytes: u64,
    egress_bytes: u64,
}

async fn apply<T: Tx>(tx: &mut T, sample: &Figures<'_>) -> Result<(), StoreError> {
    let at = sample.at;
    // A first sample starts from nothing: counters begin with the sandbox.
    let inserted = tx
        .execute(
            "INSERT INTO usage_marks (sandbox, at, running, cpu_usec, memory_bytes, disk_bytes, egress_bytes, \
             memory_rest, disk_rest) VALUES (?1, ?2, 0, 0, 0, 0, 0, 0, 0) ON CONFLICT DO NOTHING",
            values![sample.mark, at - 1],
        )
        .await?;
    // The update that changes nothing takes the row's lock.
    let rows = tx
        .query(
            "UPDATE usage_marks SET at = at WHERE sandbox = ?1 RETURNING at, running, cpu_usec, \
             memory_bytes, disk_bytes, egress_bytes, memory_rest, disk_rest",
            values![sample.mark],
        )
        .await?;
    let row = rows.first().ok_or(StoreError::Stale)?;
    let mut mark = Mark {
        at: row.int(0)?,
        running: row.int(1)? != 0,
        cpu_usec: row.count(2)?,
        memory_bytes: row.count(3)?,
        disk_bytes: row.count(4)?,
        egress_bytes: row.count(5)?,
        memory_rest: row.count(6)?,
        disk_rest: row.count(7)?,
    };
    if inserted > 0
        && sample.running
        && let Some(running_for) = sample.running_for
    {
        // What it held before anybody looked is not known: its first figures stand for that, as far
        // as they can.
        let running = i64::try_from(running_for.as_micros()).unwrap_or(i64::MAX);
        mark.at = at - running.min(UNSEEN_START_MICROS);
        mark.running = true;
        mark.memory_bytes = sample.memory_bytes;
        mark.disk_bytes = sample.disk_bytes;
    }
    // Two at the same moment are both taken: no time lies between them, and the later one knows
    // better whether it runs.
    if at < mark.at {
        return Ok(());
    }
    let (usage, memory_rest, disk_rest) = charge(&mark, sample);
    tx.execute(
        "UPDATE usage_marks SET at = ?2, running = ?3, cpu_usec = ?4, memory_bytes = ?5, \
         disk_bytes = ?6, egress_bytes = ?7, memory_rest = ?8, disk_rest = ?9 WHERE sandbox = ?1",
        values![
            sample.mark,
            at,
            sample.running,
            sample.cpu_usec,
            sample.memory_bytes,
            sample.disk_bytes,
            sample.egress_bytes,
            memory_rest,
            disk_rest,
        ],
    )
    .await?;
    if usage == Usage::default() {
        return Ok(());
    }
    tx.execute(
        "INSERT INTO usage_hours (sandbox, hour, org, cpu_usec, memory_mib_ms, disk_mib_ms, egress_bytes, \
         estimated_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
         ON CONFLICT (sandbox, hour) DO UPDATE SET \
         cpu_usec = usage_hours.cpu_usec + excluded.cpu_usec, \
         memory_mib_ms = usage_hours.memory_mib_ms + excluded.memory_mib_ms, \
         disk_mib_ms = usage_hours.disk_mib_ms + excluded.disk_mib_ms, \
         egress_bytes = usage_hours.egress_bytes + excluded.egress_bytes, \
         estimated_ms = usage_hours.estimated_ms + excluded.estimated_ms",
        values![
            sample.counts_for,
            sample.date.div_euclid(HOUR_MICROS),
            sample.org,
            usage.cpu_usec,
            usage.memory_mib_ms,
            usage.disk_mib_ms,
            usage.egress_bytes,
            usage.estimated_ms,
        ],
    )
    .await?;
    Ok(())
}

fn usage(row: &Row, first: usize) -> Result<Usage, StoreError> {
    Ok(Usage {
        cpu_usec: row.count(first)?,
        memory_mib_ms: row.count(first + 1)?,
        disk_mib_ms: row.count(first + 2)?,
        egress_bytes: row.count(first + 3)?,
        estimated_ms: row.count(first + 4)?,
    })
}

fn hours(period: &Period) -> (i64, i64) {
    let first = micros(period.from).div_euclid(HOUR_MICROS);
    // An hour that has begun before `to` belongs to the period.
    let end = micros(period.to)
        .saturating_add(HOUR_MICROS - 1)
        .div_euclid(HOUR_MICROS);
    (first, end)
}

pub struct OfOrganisation(pub OrgId, pub Period);

impl Op for OfOrganisation {
    type Out = Usage;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Usage, StoreError> {
        let (from, to) = hours(&self.1);
        let sql =
            format!("SELECT {SUMS} FROM usage_hours WHERE org = ?1 AND hour >= ?2 AND hour < ?3");
        let rows = tx.query(&sql, values![&self.0, from, to]).await?;
        rows.first()
            .map_or(Ok(Usage::default()), |row| usage(row, 0))
    }
}

pub struct BySandbox {
    pub org: OrgId,
    pub period: Period,
    pub page: PageRequest,
}

impl Op for BySandbox {
    type Out = Page<SandboxUsage>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        // Rows in the organisation's own name stand for snapshots and volumes, and for sandboxes that are forgotten.
        let after = cursor::place(&self.page)?.unwrap_or(Position::new(0, ""));
        let (from, to) = hours(&self.period);
        let sql = format!(
            "SELECT sandbox, {SUMS} FROM usage_hours WHERE org = ?1 AND hour >= ?2 AND hour < ?3 \
             AND sandbox > ?4 AND sandbox <> org GROUP BY sandbox ORDER BY sandbox LIMIT ?5"
        );
        let wanted = cursor::rows_wanted(&self.page);
        let rows = tx
            .query(&sql, values![&self.org, from, to, after.id, wanted])
            .await?;
        let found = rows
            .iter()
            .map(|row| {
                Ok(SandboxUsage {
                    sandbox: row.parse(0, "sandbox id")?,
                    usage: usage(row, 1)?,
                })
            })
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(cursor::page(found, &self.page, |item: &SandboxUsage| {
            Position::new(0, item.sandbox.as_str())
        }))
    }
}

pub struct OfSandbox(pub SandboxId);

impl Op for OfSandbox {
    type Out = Usage;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Usage, StoreError> {
        let sql = format!("SELECT {SUMS} FROM usage_hours WHERE sandbox = ?1");
        let rows = tx.query(&sql, values![&self.0]).await?;
        rows.first()
            .map_or(Ok(Usage::default()), |row| usage(row, 0))
    }
}
