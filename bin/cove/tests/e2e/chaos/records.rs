//! What the audit log and the events say of a round: everything that was acknowledged, in an unbroken chain.

use std::collections::HashMap;
use std::time::Instant;

use cove_api::PageQuery;
use cove_api::event::{Event, EventKind};
use cove_api::tenancy::{AuditLine, AuditRecord};

use super::super::harness::DEADLINE;
use super::{Acknowledged, Finder, insist};

/// Looks until everything is there: records of calls into sandboxes come to the database after the answer.
pub async fn check(finder: &Finder, results: &[Acknowledged]) {
    let started = Instant::now();
    loop {
        let records = records(finder).await;
        let events = events(finder).await;
        let missing = missing(&records, &events, results);
        if missing.is_empty() {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "not recorded: {missing:#?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let query = PageQuery::default();
    let chains = insist(finder, async |client| client.audit_chain(&query).await).await;
    for chain in chains.unwrap().items {
        assert_eq!(chain.broken_at, None, "{chain:?}");
    }
}

async fn records(finder: &Finder) -> Vec<AuditRecord> {
    let lines = insist(finder, async |client| {
        let mut lines = client.export_audit().await?;
        let mut records = Vec::new();
        while let Some(line) = lines.next().await? {
            if let AuditLine::Record(record) = line {
                records.push(record);
            }
        }
        Ok(records)
    });
    lines.await.unwrap()
}

async fn events(finder: &Finder) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    loop {
        let after = all.last().map_or(0, |event| event.id);
        let page = insist(finder, async |client| {
            client.events(None, Some(after)).await
        })
        .await;
        let page = page.unwrap().items;
        if page.is_empty() {
            return all;
        }
        for event in page {
            let last = all.last().map_or(0, |event| event.id);
            assert!(event.id > last, "{event:?} comes after event {last}");
            all.push(event);
        }
    }
}

fn missing(records: &[AuditRecord], events: &[Event], results: &[Acknowledged]) -> Vec<String> {
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    for record in records {
        let target = record.target.as_deref().unwrap_or_default();
        // Whether a call into a sandbox ended well may not be known after a kill; that it was made is.
        if record.result == "ok" || record.action == "file.write" {
            *counts.entry((&record.action, target)).or_default() += 1;
        }
    }
    let ran = |id: &str| {
        events.iter().any(|event| {
            let running = matches!(&event.kind, EventKind::State { state, .. } if state.as_str() == "running");
            event.sandbox == id && running
        })
    };
    let mut missing = Vec::new();
    let mut want = |action: &str, target: &str, least: usize| {
        let found = counts.get(&(action, target)).copied().unwrap_or_default();
        if found < least {
            missing.push(format!("{action} of {target}: {found} of {least} records"));
        }
    };
    for result in results {
        for id in &result.deleted {
            // Its delete may have been repeated after an answer that never came, and then found nothing.
            want("sandbox.create", id, 1);
        }
        for held in &result.held {
            want("sandbox.create", &held.id, 1);
            want("file.write", &held.id, held.files.len());
            for (snapshot, _) in &held.snapshots {
                want("snapshot.create", snapshot, 1);
            }
        }
    }
    let made = results.iter().flat_map(|result| {
        let held = result.held.iter().map(|held| &held.id);
        held.chain(&result.deleted)
    });
    missing.extend(
        made.filter(|id| !ran(id))
            .map(|id| format!("{id} has no event that it ran")),
    );
    missing
}
