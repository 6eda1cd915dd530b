//! Audit records.

use std::sync::Arc;

use cove_model::KeyId;
use cove_store::{AuditRecord, PageRequest, Store};

use crate::rows::{at, org};

pub async fn records_page_newest_first(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let record = |number: i64| AuditRecord {
        sequence: 0,
        at: at(number),
        org: ours.clone(),
        key: (number % 2 == 0).then(KeyId::random),
        action: "sandbox.create".into(),
        target: Some(format!("agent-{number}")),
        source: Some("192.0.2.7".into()),
        request_id: None,
        result: "ok".into(),
        detail: Some("näme 'quoted' \"twice\"".into()),
    };
    let records: Vec<_> = (0..7).map(record).collect();
    store.append_audit(&records[..3]).await.unwrap();
    store.append_audit(&records[3..]).await.unwrap();
    store.append_audit(&[]).await.unwrap();
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
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
    let without: Vec<_> = seen
        .into_iter()
        .map(|r| AuditRecord { sequence: 0, ..r })
        .collect();
    assert_eq!(without, records);
    let other = store.audit(&theirs, &PageRequest::default()).await.unwrap();
    assert!(other.items.is_empty());
}
