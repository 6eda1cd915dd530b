//! Two requests with one key are one.

use std::collections::HashSet;
use std::sync::Arc;

use cove_model::SandboxId;
use cove_store::{Created, IdempotencyKey, PageRequest, SandboxFilter, Store};

use crate::rows::{org, sandbox};

fn claim(key: &str, hash: &str) -> IdempotencyKey {
    IdempotencyKey {
        key: key.into(),
        request_hash: hash.into(),
    }
}

pub async fn concurrent_requests_with_one_key_make_one_sandbox(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let attempts: Vec<_> = (0..12)
        .map(|_| {
            let (store, record) = (Arc::clone(&store), sandbox(&ours, Some("agent")));
            tokio::spawn(async move {
                let outcome = store
                    .create_sandbox(&record, Some(&claim("k", "h")))
                    .await
                    .unwrap();
                (record.id, outcome)
            })
        })
        .collect();
    let mut named: HashSet<SandboxId> = HashSet::new();
    let mut new = 0;
    for attempt in attempts {
        let (id, outcome) = attempt.await.unwrap();
        match outcome {
            Created::New => {
                new += 1;
                named.insert(id);
            }
            Created::Replayed(first) => drop(named.insert(first)),
            Created::KeyReused => panic!("the request is the same"),
        }
    }
    assert_eq!((new, named.len()), (1, 1));
    let listed = store
        .sandboxes(&ours, &SandboxFilter::default(), &PageRequest::default())
        .await
        .unwrap();
    assert_eq!(listed.items.len(), 1);
}

pub async fn a_key_is_bound_to_its_request(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let first = sandbox(&ours, None);
    let key = claim("k", "h");
    assert_eq!(
        store.create_sandbox(&first, Some(&key)).await.unwrap(),
        Created::New
    );
    let other = claim("k", "another");
    let outcome = store
        .create_sandbox(&sandbox(&ours, None), Some(&other))
        .await
        .unwrap();
    assert_eq!(outcome, Created::KeyReused);
    let outcome = store
        .create_sandbox(&sandbox(&theirs, None), Some(&other))
        .await
        .unwrap();
    assert_eq!(
        outcome,
        Created::New,
        "keys of two organisations never meet"
    );
    store.forget_idempotency(&ours, &first.id).await.unwrap();
    let outcome = store
        .create_sandbox(&sandbox(&ours, None), Some(&other))
        .await
        .unwrap();
    assert_eq!(outcome, Created::New);
}
