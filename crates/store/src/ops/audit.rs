//! Audit records: added, read, never changed. Each organisation's form a chain, see [`crate::chain`]: the
//! head's row stays locked until the records are committed, so that writers at the same time take turns.

use std::collections::{BTreeMap, BTreeSet};

use cove_model::OrgId;

use crate::chain::{AUDIT_GENESIS, AuditHead, audit_hash};
use crate::cursor::{self, Position};
use crate::sql::{Op, Row, Tx, Value, values};
use crate::{
    AuditJournal, AuditRecord, JournalEntry, PAGE_MAX, Page, PageRequest, Retention, StoreError,
};

const COLUMNS: &str =
    "sequence, at, org, key_id, action, target, source, request_id, result, detail, hash";
const COLUMNS_COUNT: usize = 11;
/// Records that one statement inserts.
const ROWS_AT_ONCE: usize = 8;
/// Organisations whose old records one transaction removes, and how many of each.
const PRUNED_ORGANISATIONS_MAX: i64 = 16;
const PRUNED_MAX: i64 = 1000;

pub struct Append {
    pub journal: AuditJournal,
    pub entries: Vec<JournalEntry>,
}

impl Op for Append {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let Some(last) = self.entries.last() else {
            return Ok(());
        };
        let rows = tx
            .query(
                "INSERT INTO audit_journals (host, journal, position, earlier, moved_at) \
                 VALUES (?1, ?2, ?3, 0, ?4) ON CONFLICT (host, journal) DO UPDATE SET \
                 earlier = audit_journals.position, moved_at = excluded.moved_at, \
                 position = CASE WHEN audit_journals.position > excluded.position \
                 THEN audit_journals.position ELSE excluded.position END RETURNING earlier",
                values![
                    self.journal.host.as_str(),
                    self.journal.journal.as_str(),
                    last.position,
                    last.record.at,
                ],
            )
            .await?;
        let row = rows.first();
        let moved = row
            .ok_or(StoreError::Corrupt { what: "journal" })?
            .count(0)?;
        let new: Vec<&JournalEntry> = self
            .entries
            .iter()
            .filter(|entry| entry.position > moved)
            .collect();
        // Always in the same order, so that two writers do not wait for each other.
        let organisations: BTreeSet<&OrgId> = new.iter().map(|entry| &entry.record.org).collect();
        let mut heads = BTreeMap::new();
        for org in organisations {
            heads.insert(org, lock_head(tx, org).await?);
        }
        let mut chained = Vec::with_capacity(new.len());
        for entry in new {
            let Some((sequence, hash)) = heads.get_mut(&entry.record.org) else {
                continue;
            };
            *sequence += 1;
            let mut record = as_kept(&entry.record);
            record.sequence = *sequence;
            *hash = audit_hash(hash, &record);
            record.hash.clone_from(hash);
            chained.push(record);
        }
        insert(tx, &chained).await?;
        for (org, (sequence, hash)) in heads {
            tx.execute(
                "UPDATE audit_heads SET sequence = ?2, hash = ?3 WHERE org = ?1",
                values![org, sequence, hash],
            )
            .await?;
        }
        Ok(())
    }
}

/// Sequence and hash of the last record.
async fn lock_head<T: Tx>(tx: &mut T, org: &OrgId) -> Result<(u64, String), StoreError> {
    let rows = tx
        .query(
            "INSERT INTO audit_heads (org, sequence, hash, anchor_sequence, anchor_hash, unchained) \
             VALUES (?1, 0, ?2, 0, ?2, 0) ON CONFLICT (org) DO UPDATE SET \
             sequence = audit_heads.sequence RETURNING sequence, hash",
            values![org, AUDIT_GENESIS],
        )
        .await?;
    let row = rows.first().ok_or(StoreError::Corrupt { what: "head" })?;
    Ok((row.count(0)?, row.text(1)?.to_owned()))
}

/// As it will be read back: texts without NUL, times in microseconds.
fn as_kept(record: &AuditRecord) -> AuditRecord {
    let clean = |text: &String| match text.contains('\0') {
        true => text.replace('\0', "\u{fffd}"),
        false => text.clone(),
    };
    AuditRecord {
        action: clean(&record.action),
        target: record.target.as_ref().map(clean),
        source: record.source.as_ref().map(clean),
        request_id: record.request_id.as_ref().map(clean),
        result: clean(&record.result),
        detail: record.detail.as_ref().map(clean),
        ..record.clone()
    }
}

async fn insert<T: Tx>(tx: &mut T, records: &[AuditRecord]) -> Result<(), StoreError> {
    let mut left = records;
    while !left.is_empty() {
        // Two shapes of the statement, so that both stay prepared.
        let count = match left.len() >= ROWS_AT_ONCE {
            true => ROWS_AT_ONCE,
            false => 1,
        };
        let (now, later) = left.split_at(count);
        left = later;
        let places: Vec<String> = (0..count)
            .map(|row| {
                let numbers = (1..=COLUMNS_COUNT).map(|column| row * COLUMNS_COUNT + column);
                let numbers: Vec<String> = numbers.map(|number| format!("?{number}")).collect();
                format!("({})", numbers.join(", "))
            })
            .collect();
        let sql = format!("INSERT INTO audit ({COLUMNS}) VALUES {}", places.join(", "));
        let values: Vec<Value> = now.iter().flat_map(row_of).collect();
        tx.execute(&sql, &values).await?;
    }
    Ok(())
}

fn row_of(record: &AuditRecord) -> [Value; COLUMNS_COUNT] {
    [
        record.sequence.into(),
        record.at.into(),
        (&record.org).into(),
        record.key.as_ref().into(),
        record.action.as_str().into(),
        record.target.as_deref().into(),
        record.source.as_deref().into(),
        record.request_id.as_deref().into(),
        record.result.as_str().into(),
        record.detail.as_deref().into(),
        record.hash.as_str().into(),
    ]
}

fn record(row: &Row) -> Result<AuditRecord, StoreError> {
    Ok(AuditRecord {
        sequence: row.count(0)?,
        at: row.time(1)?,
        org: row.parse(2, "organisation id")?,
        key: row.optional_parse(3, "key id")?,
        action: row.text(4)?.to_owned(),
        target: row.optional_text(5)?,
        source: row.optional_text(6)?,
        request_id: row.optional_text(7)?,
        result: row.text(8)?.to_owned(),
        detail: row.optional_text(9)?,
        hash: row.text(10)?.to_owned(),
    })
}

pub struct List(pub OrgId, pub PageRequest);

impl Op for List {
    type Out = Page<AuditRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let before = cursor::place(&self.1)?.map_or(i64::MAX, |place| place.number);
        let wanted = cursor::rows_wanted(&self.1);
        let sql = format!(
            "SELECT {COLUMNS} FROM audit WHERE org = ?1 AND sequence < ?2 \
             ORDER BY sequence DESC LIMIT ?3"
        );
        let rows = tx.query(&sql, values![&self.0, before, wanted]).await?;
        let found = rows.iter().map(record).collect::<Result<Vec<_>, _>>()?;
        Ok(cursor::page(found, &self.1, |record: &AuditRecord| {
            Position::new(i64::try_from(record.sequence).unwrap_or(i64::MAX), "")
        }))
    }
}

pub struct After {
    pub org: OrgId,
    pub sequence: u64,
    pub limit: u32,
}

impl Op for After {
    type Out = Vec<AuditRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let limit = i64::from(self.limit.min(PAGE_MAX));
        let sql = format!(
            "SELECT {COLUMNS} FROM audit WHERE org = ?1 AND sequence > ?2 \
             ORDER BY sequence LIMIT ?3"
        );
        let rows = tx
            .query(&sql, values![&self.org, self.sequence, limit])
            .await?;
        rows.iter().map(record).collect()
    }
}

pub struct Head(pub OrgId);

impl Op for Head {
    type Out = Option<AuditHead>;
    const POINT: bool = true;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT sequence, hash, anchor_sequence, anchor_hash, unchained \
                 FROM audit_heads WHERE org = ?1",
                values![&self.0],
            )
            .await?;
        let head = rows.first().map(|row| {
            Ok(AuditHead {
                sequence: row.count(0)?,
                hash: row.text(1)?.to_owned(),
                anchor_sequence: row.count(2)?,
                anchor_hash: row.text(3)?.to_owned(),
                unchained: row.count(4)?,
            })
        });
        head.transpose()
    }
}

/// Removes the oldest records of each organisation: those before a time, and those beyond its number.
/// The last one that goes stays as the anchor that the next one's hash follows from.
pub async fn prune<T: Tx>(tx: &mut T, keep: &Retention) -> Result<u64, StoreError> {
    let found = tx
        .query(
            "SELECT heads.org, heads.sequence, heads.anchor_sequence FROM audit_heads AS heads \
             JOIN audit ON audit.org = heads.org AND audit.sequence = heads.anchor_sequence + 1 \
             WHERE audit.at < ?1 OR heads.sequence - heads.anchor_sequence > ?2 \
             ORDER BY heads.org LIMIT ?3",
            values![keep.audit_before, keep.audit_max, PRUNED_ORGANISATIONS_MAX],
        )
        .await?;
    let mut removed = 0;
    for row in &found {
        let (org, last, anchor) = (row.text(0)?, row.int(1)?, row.int(2)?);
        let max = i64::try_from(keep.audit_max).unwrap_or(i64::MAX);
        let oldest = tx
            .query(
                "SELECT sequence, at, hash FROM audit WHERE org = ?1 AND sequence > ?2 \
                 ORDER BY sequence LIMIT ?3",
                values![org, anchor, PRUNED_MAX],
            )
            .await?;
        let before = crate::sql::micros(keep.audit_before);
        let mut edge = None;
        for (expected, row) in (anchor + 1..).zip(&oldest) {
            // A gap is evidence, and stays.
            let gone = row.int(1)? < before || row.int(0)? <= last.saturating_sub(max);
            if row.int(0)? != expected || !gone {
                break;
            }
            edge = Some((row.int(0)?, row.text(2)?.to_owned()));
        }
        let Some((sequence, hash)) = edge else {
            continue;
        };
        removed += tx
            .execute(
                "DELETE FROM audit WHERE org = ?1 AND sequence <= ?2",
                values![org, sequence],
            )
            .await?;
        let anchor_hash = match hash.is_empty() {
            true => AUDIT_GENESIS,
            false => &hash,
        };
        tx.execute(
            "UPDATE audit_heads SET anchor_sequence = ?2, anchor_hash = ?3 WHERE org = ?1",
            values![org, sequence, anchor_hash],
        )
        .await?;
    }
    Ok(removed)
}
