//! Refused calls: the first few of an organisation in each minute are recorded one by one, the others
//! are counted and kept in one record per key, action and reason. So a caller that asks for what it
//! may not have as fast as it can costs its organisation some rows a minute, and nobody else anything.

use std::collections::HashMap;

use cove_model::{KeyId, OrgId};
use cove_store::AuditRecord;
use time::OffsetDateTime;

/// Refusals of one organisation that are recorded one by one in a minute.
const RECORDED_MAX: u32 = 60;
/// Kinds of refusals of one organisation that are counted apart in a minute.
const KINDS_MAX: usize = 16;
/// Organisations that are counted apart; a key is needed to be refused as one.
const ORGANISATIONS_MAX: usize = 4096;
const MINUTE_S: i64 = 60;
/// The action of refusals of more kinds than are counted apart.
const VARIOUS: &str = "various";

#[derive(Default)]
pub struct Refusals {
    minute: i64,
    of: HashMap<OrgId, OfOne>,
}

#[derive(Default)]
struct OfOne {
    recorded: u32,
    counted: HashMap<Kind, (u64, AuditRecord)>,
}

#[derive(PartialEq, Eq, Hash)]
struct Kind {
    key: Option<KeyId>,
    action: String,
    result: String,
}

impl Refusals {
    /// Organisations that were refused something in this minute.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// The record, if it is to be recorded by itself. Only counted otherwise.
    pub fn take(&mut self, record: AuditRecord) -> Option<AuditRecord> {
        if self.of.len() >= ORGANISATIONS_MAX && !self.of.contains_key(&record.org) {
            return Some(record);
        }
        let of = self.of.entry(record.org.clone()).or_default();
        if of.recorded < RECORDED_MAX {
            of.recorded += 1;
            return Some(record);
        }
        let mut kind = Kind {
            key: record.key.clone(),
            action: record.action.clone(),
            result: record.result.clone(),
        };
        if of.counted.len() >= KINDS_MAX && !of.counted.contains_key(&kind) {
            kind = Kind {
                key: None,
                action: VARIOUS.into(),
                result: VARIOUS.into(),
            };
        }
        let (count, first) = of.counted.entry(kind).or_insert((0, record));
        *count += 1;
        // Those of many kinds have nothing in common but who asked.
        if *count > 1 {
            first.request_id = None;
        }
        None
    }

    /// What was counted in minutes that are over.
    pub fn over(&mut self, now: OffsetDateTime) -> Vec<AuditRecord> {
        let minute = now.unix_timestamp().div_euclid(MINUTE_S);
        if minute == self.minute {
            return Vec::new();
        }
        self.minute = minute;
        self.all()
    }

    /// What was counted so far.
    pub fn all(&mut self) -> Vec<AuditRecord> {
        let of = std::mem::take(&mut self.of);
        let counted = of.into_values().flat_map(|of| of.counted);
        let summed = counted.map(|(kind, (count, first))| AuditRecord {
            key: kind.key,
            action: kind.action,
            result: kind.result,
            target: None,
            request_id: None,
            source: None,
            detail: Some(format!("refused {count} more times in this minute")),
            ..first
        });
        summed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(org: &OrgId, action: &str) -> AuditRecord {
        AuditRecord {
            sequence: 0,
            at: OffsetDateTime::UNIX_EPOCH,
            org: org.clone(),
            key: None,
            action: action.into(),
            target: Some("x".into()),
            source: None,
            request_id: None,
            result: "forbidden".into(),
            detail: None,
            hash: String::new(),
        }
    }

    #[test]
    fn a_flood_is_counted_and_a_neighbour_is_recorded() {
        let (flooding, neighbour) = (OrgId::random(), OrgId::random());
        let mut refusals = Refusals::default();
        let mut recorded = 0;
        for n in 0..10_000 {
            let action = format!("action-{}", n % 100);
            recorded += u32::from(refusals.take(refusal(&flooding, &action)).is_some());
        }
        assert_eq!(recorded, RECORDED_MAX);
        assert!(
            refusals
                .take(refusal(&neighbour, "sandbox.create"))
                .is_some()
        );
        let later = OffsetDateTime::UNIX_EPOCH + time::Duration::minutes(5);
        let told = refusals.over(later);
        assert!(told.len() <= KINDS_MAX + 1, "{}", told.len());
        let counted: u64 = told
            .iter()
            .map(|record| {
                let text = record.detail.as_deref().unwrap();
                text.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
            })
            .sum();
        assert_eq!(counted, 10_000 - u64::from(RECORDED_MAX));
        assert!(told.iter().all(|record| record.org == flooding));
        assert!(refusals.over(later).is_empty());
        assert!(refusals.take(refusal(&flooding, "again")).is_some());
    }
}
