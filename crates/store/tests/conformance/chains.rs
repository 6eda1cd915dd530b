//! What somebody who can write into the database does to audit records is found and named; and what
//! was there before there were chains stays.

use std::path::Path;

use cove_model::{EventKind, OrgId, SandboxId};
use cove_store::{ChainBreak, ChainCheck, NewEvent, Store};
use rusqlite::Connection;
use std::sync::Arc;

use crate::rows::{append, at, audit, open_sqlite, org};

async fn verify(store: &Arc<dyn Store>, org: &OrgId) -> Result<(), ChainBreak> {
    let head = store.audit_head(org).await.unwrap().unwrap();
    let mut check = ChainCheck::after(&head);
    for record in store
        .audit_after(org, check.sequence(), 1000)
        .await
        .unwrap()
    {
        check.take(&record)?;
    }
    check.ends_at(&head)
}

/// Ten records of two organisations, and then what the attacker does to those of the first.
async fn attacked(sql: &str) -> Result<(), ChainBreak> {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("store.db");
    let store = open_sqlite(&path).await;
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    append(&store, "ours", (0..10).map(|n| audit(&ours, n)).collect()).await;
    append(
        &store,
        "theirs",
        (0..10).map(|n| audit(&theirs, n)).collect(),
    )
    .await;
    assert_eq!(verify(&store, &ours).await, Ok(()));
    Connection::open(&path)
        .unwrap()
        .execute_batch(&sql.replace("OURS", &format!("org = '{ours}'")))
        .unwrap();
    assert_eq!(verify(&store, &theirs).await, Ok(()));
    verify(&store, &ours).await
}

#[tokio::test]
async fn records_changed_removed_moved_or_added_by_hand_are_named() {
    let missing = |sequence| Err(ChainBreak::Missing { sequence });
    let changed = |sequence| Err(ChainBreak::Changed { sequence });
    for (sql, told) in [
        ("DELETE FROM audit WHERE OURS AND sequence = 4", missing(4)),
        ("DELETE FROM audit WHERE OURS AND sequence > 7", missing(8)),
        ("DELETE FROM audit WHERE OURS AND sequence = 1", missing(1)),
        (
            "UPDATE audit SET result = 'ok ' WHERE OURS AND sequence = 5",
            changed(5),
        ),
        (
            "UPDATE audit SET target = NULL WHERE OURS AND sequence = 5",
            changed(5),
        ),
        (
            "UPDATE audit SET at = at + 1 WHERE OURS AND sequence = 10",
            changed(10),
        ),
        // A field's end moved into the next one.
        (
            "UPDATE audit SET target = target || source, source = '' WHERE OURS AND sequence = 3",
            changed(3),
        ),
        (
            "UPDATE audit SET hash = '' WHERE OURS AND sequence = 6",
            Err(ChainBreak::Unhashed { sequence: 6 }),
        ),
        // Two change places.
        (
            "UPDATE audit SET sequence = 100 WHERE OURS AND sequence = 2; \
          UPDATE audit SET sequence = 2 WHERE OURS AND sequence = 3; \
          UPDATE audit SET sequence = 3 WHERE OURS AND sequence = 100",
            changed(2),
        ),
        // Removed, and those after it closed up.
        (
            "DELETE FROM audit WHERE OURS AND sequence = 4; \
          UPDATE audit SET sequence = sequence - 1 WHERE OURS AND sequence > 4; \
          UPDATE audit_heads SET sequence = 9 WHERE OURS",
            changed(4),
        ),
        // Cut off, with the head moved back.
        (
            "DELETE FROM audit WHERE OURS AND sequence > 7; \
          UPDATE audit_heads SET sequence = 7 WHERE OURS",
            Err(ChainBreak::Head { sequence: 7 }),
        ),
        ("UPDATE audit SET result = result WHERE OURS", Ok(())),
    ] {
        assert_eq!(attacked(sql).await, told, "{sql}");
    }
}

/// The tables as the version before chains and heads had them.
fn old_database(path: &Path, ours: &OrgId, theirs: &OrgId) {
    let raw = Connection::open(path).unwrap();
    raw.execute_batch(&format!(
        "DROP TABLE steady_axes; DROP TABLE work; \
         ALTER TABLE schema_version DROP COLUMN compatible_from; \
         ALTER TABLE organisations DROP COLUMN removed_at; \
         ALTER TABLE organisations DROP COLUMN removed_name; \
         DROP TABLE fleet; DROP TABLE nodes; DROP TABLE join_tokens; \
         DROP TABLE secret_keys; DROP TABLE secrets; DROP TABLE secret_uses; DROP TABLE secret_spend; \
         ALTER TABLE organisations DROP COLUMN tolerations; \
         ALTER TABLE api_keys DROP COLUMN sandbox; DROP TABLE builds; DROP TABLE build_cache; \
         DROP INDEX snapshots_uploading; DROP INDEX snapshots_evictable; \
         ALTER TABLE snapshots DROP COLUMN object_copy; \
         ALTER TABLE snapshots DROP COLUMN on_host; DROP TABLE object_orgs; DROP TABLE objects; \
         DROP TABLE object_chunks; DROP TABLE object_uses; DROP TABLE object_condemned; \
         DROP TABLE templates; DROP TABLE template_names; DROP TABLE template_tags; \
         DROP TABLE volumes; DROP TABLE sandbox_volumes; \
         DROP TABLE hosts; DROP TABLE image_hosts; DROP TABLE event_positions; \
         DROP INDEX sandboxes_by_host; DROP INDEX snapshots_by_host; \
         ALTER TABLE sandboxes DROP COLUMN host; ALTER TABLE snapshots DROP COLUMN host; \
         ALTER TABLE image_jobs DROP COLUMN host; \
         CREATE INDEX sandboxes_alive ON sandboxes (created_at, id) WHERE deleted_at IS NULL; \
         CREATE INDEX snapshots_alive ON snapshots (created_at, id) WHERE deleted_at IS NULL; \
         DROP TABLE audit; DROP TABLE audit_heads; DROP TABLE audit_journals; \
         DROP TABLE events; DROP TABLE event_heads; \
         ALTER TABLE sandboxes DROP COLUMN created_steady; \
         ALTER TABLE sandboxes DROP COLUMN active_steady; \
         ALTER TABLE snapshots DROP COLUMN created_steady; \
         ALTER TABLE usage_hours DROP COLUMN estimated_ms; \
         CREATE TABLE events (sequence BIGINT PRIMARY KEY, org TEXT NOT NULL, sandbox TEXT NOT NULL, \
         at BIGINT NOT NULL, kind TEXT NOT NULL); \
         CREATE INDEX events_by_org ON events (org, sequence); \
         CREATE INDEX events_by_sandbox ON events (sandbox, sequence); \
         CREATE TABLE audit (sequence BIGINT PRIMARY KEY, at BIGINT NOT NULL, org TEXT NOT NULL, \
         key_id TEXT, action TEXT NOT NULL, target TEXT, source TEXT, request_id TEXT, \
         result TEXT NOT NULL, detail TEXT); \
         CREATE INDEX audit_by_org ON audit (org, sequence); \
         INSERT INTO counters VALUES ('events', 9), ('audit', 5); \
         UPDATE schema_version SET version = 7; \
         INSERT INTO audit VALUES (1, 10, '{ours}', NULL, 'a', NULL, NULL, NULL, 'ok', NULL), \
         (2, 11, '{theirs}', NULL, 'b', NULL, NULL, NULL, 'ok', NULL), \
         (5, 12, '{ours}', NULL, 'c', NULL, NULL, NULL, 'ok', NULL);"
    ))
    .unwrap();
    let kind = serde_json::to_string(&EventKind::Resized).unwrap();
    let sandbox = SandboxId::random();
    for (sequence, org) in [(3, ours), (4, theirs), (9, ours)] {
        raw.execute(
            "INSERT INTO events VALUES (?1, ?2, ?3, 1, ?4)",
            (sequence, org.as_str(), sandbox.as_str(), &kind),
        )
        .unwrap();
    }
}

#[tokio::test]
async fn a_database_from_before_keeps_its_records_events_and_cursors() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("store.db");
    let store = open_sqlite(&path).await;
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    drop(store);
    old_database(&path, &ours, &theirs);
    let store = open_sqlite(&path).await;
    let records = store.audit_after(&ours, 0, 10).await.unwrap();
    let kept: Vec<_> = records
        .iter()
        .map(|record| {
            (
                record.sequence,
                record.action.as_str(),
                record.hash.as_str(),
            )
        })
        .collect();
    assert_eq!(kept, [(1, "a", ""), (2, "c", "")]);
    assert_eq!(verify(&store, &ours).await, Ok(()));
    append(&store, "new", (0..3).map(|n| audit(&ours, n)).collect()).await;
    assert_eq!(verify(&store, &ours).await, Ok(()));
    let head = store.audit_head(&ours).await.unwrap().unwrap();
    assert_eq!((head.sequence, head.unchained), (5, 2));

    // Whoever saw number 3 misses neither what came before the change nor what comes after it.
    let event = NewEvent {
        org: ours.clone(),
        sandbox: SandboxId::random(),
        at: at(1),
        kind: EventKind::Resized,
    };
    store.append_events(&[event], None).await.unwrap();
    let seen = store.events(&ours, None, 3, 10).await.unwrap();
    let numbers: Vec<_> = seen.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, [9, 10]);
    assert_eq!(store.event_bounds(&ours).await.unwrap(), (Some(3), 10));
}
