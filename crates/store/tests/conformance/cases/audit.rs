//! Audit records: their chains, and how journals are moved.

use std::sync::Arc;

use cove_model::OrgId;
use cove_store::{
    AUDIT_GENESIS, AuditHead, AuditRecord, ChainBreak, ChainCheck, JournalEntry, PageRequest,
    Retention, Store,
};

use crate::rows::{append, at, audit, journal, org, steady};

pub async fn records_page_newest_first(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let records: Vec<_> = (0..27).map(|number| audit(&ours, number)).collect();
    append(&store, "one", records[..3].to_vec()).await;
    append(&store, "two", records[3..].to_vec()).await;
    append(&store, "two", Vec::new()).await;
    let mut page = PageRequest {
        limit: 3,
        cursor: None,
    };
    let mut seen = Vec::new();
    loop {
        let found = store.audit(&ours, &page).await.unwrap();
        seen.extend(found.items);
        match found.next_cursor {
            Some(cursor) => page.cursor = Some(cursor),
            None => break,
        }
    }
    seen.reverse();
    let numbers: Vec<_> = seen.iter().map(|record| record.sequence).collect();
    assert_eq!(numbers, (1..=27).collect::<Vec<_>>());
    let without: Vec<_> = seen
        .into_iter()
        .map(|r| AuditRecord {
            sequence: 0,
            hash: String::new(),
            ..r
        })
        .collect();
    assert_eq!(without, records);
    let other = store.audit(&theirs, &PageRequest::default()).await.unwrap();
    assert!(other.items.is_empty());
    assert_eq!(store.audit_head(&theirs).await.unwrap(), None);
}

async fn head(store: &Arc<dyn Store>, org: &OrgId) -> AuditHead {
    store.audit_head(org).await.unwrap().unwrap()
}

/// How many records hold together up to the head.
async fn verify(store: &Arc<dyn Store>, org: &OrgId) -> Result<u64, ChainBreak> {
    let head = head(store, org).await;
    let mut check = ChainCheck::after(&head);
    let mut seen = 0;
    loop {
        let records = store.audit_after(org, check.sequence(), 7).await.unwrap();
        if records.is_empty() {
            check.ends_at(&head)?;
            return Ok(seen);
        }
        for record in &records {
            check.take(record)?;
            seen += 1;
        }
    }
}

pub async fn chains_hold_with_writers_at_the_same_time(store: Arc<dyn Store>) {
    const WRITERS: u64 = 6;
    const EACH: u64 = 12;
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (store, ours, theirs) = (Arc::clone(&store), ours.clone(), theirs.clone());
            tokio::spawn(async move {
                let journal = journal(&format!("writer-{writer}"));
                for n in 0..EACH {
                    let entry = |position, org: &OrgId| JournalEntry {
                        position,
                        record: audit(org, 1),
                    };
                    let entries = match n % 2 {
                        0 => [entry(2 * n + 1, &ours), entry(2 * n + 2, &theirs)],
                        _ => [entry(2 * n + 1, &theirs), entry(2 * n + 2, &ours)],
                    };
                    store.append_audit(&journal, &entries).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    for org in [&ours, &theirs] {
        assert_eq!(verify(&store, org).await, Ok(WRITERS * EACH));
        assert_eq!(head(&store, org).await.sequence, WRITERS * EACH);
    }
}

pub async fn a_journal_is_moved_exactly_once_however_often_it_is_given(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let entry = |position: u64| JournalEntry {
        position,
        record: AuditRecord {
            target: Some(format!("at-{position}")),
            detail: Some("nul \0 inside".into()),
            ..audit(&ours, 1)
        },
    };
    // Positions may be missing: intents have some too.
    let all: Vec<_> = [2, 3, 7, 8, 11].map(entry).to_vec();
    let journal_one = journal("one");
    for batch in [&all[..2], &all[..2], &all[1..4], &all[..], &all[..1]] {
        store.append_audit(&journal_one, batch).await.unwrap();
    }
    let found = store.audit_after(&ours, 0, 100).await.unwrap();
    let targets: Vec<_> = found
        .iter()
        .map(|record| record.target.clone().unwrap())
        .collect();
    assert_eq!(targets, ["at-2", "at-3", "at-7", "at-8", "at-11"]);
    assert_eq!(verify(&store, &ours).await, Ok(5));
    // Another journal counts by itself.
    store
        .append_audit(&journal("two"), &all[..1])
        .await
        .unwrap();
    assert_eq!(verify(&store, &ours).await, Ok(6));
}

pub async fn pruning_keeps_an_anchor_and_one_organisation_does_not_push_out_another(
    store: Arc<dyn Store>,
) {
    let (loud, quiet) = (org(&store, "loud").await, org(&store, "quiet").await);
    append(&store, "quiet", (0..3).map(|n| audit(&quiet, n)).collect()).await;
    append(&store, "loud", (0..40).map(|n| audit(&loud, n)).collect()).await;
    let keep = Retention {
        idempotency_before: steady(-100),
        jobs_before: at(-100),
        events_before: at(-100),
        events_max: 100,
        audit_before: at(-100),
        audit_max: 10,
        tombstones_before: at(-100),
        tombstones_max: 100,
    };
    let before = head(&store, &loud).await;
    assert_eq!(store.sweep(&keep).await.unwrap(), 30);
    assert_eq!(store.sweep(&keep).await.unwrap(), 0);
    assert_eq!(verify(&store, &loud).await, Ok(10));
    assert_eq!(verify(&store, &quiet).await, Ok(3));
    let after = head(&store, &loud).await;
    assert_eq!(
        (after.sequence, &after.hash),
        (before.sequence, &before.hash)
    );
    assert_eq!(
        (before.anchor_sequence, before.anchor_hash.as_str()),
        (0, AUDIT_GENESIS)
    );
    assert_eq!(after.anchor_sequence, 30);
    // By age, and then on with the chain.
    let old = Retention {
        audit_before: at(35),
        ..keep
    };
    // Five of one, three of the other, and the mark of a journal that was not heard of since.
    assert_eq!(store.sweep(&old).await.unwrap(), 9);
    assert_eq!(head(&store, &quiet).await.anchor_sequence, 3);
    append(&store, "later", vec![audit(&loud, 50), audit(&quiet, 50)]).await;
    assert_eq!(verify(&store, &loud).await, Ok(6));
    assert_eq!(verify(&store, &quiet).await, Ok(1));
}
