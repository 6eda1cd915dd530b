//! Quotas under concurrency.

use std::sync::Arc;

use cove_model::{OrgId, SandboxSpec};
use cove_store::{Holding, PageRequest, Quota, SandboxChange, SandboxFilter, Store, StoreError};

use crate::rows::{at, org_with, sandbox_of, small};

async fn held(store: &Arc<dyn Store>, org: &OrgId) -> (Holding, Holding) {
    let rows = store
        .sandboxes(
            org,
            &SandboxFilter::default(),
            &PageRequest {
                limit: 1000,
                cursor: None,
            },
        )
        .await
        .unwrap();
    let sum = rows
        .items
        .iter()
        .fold(Holding::default(), |sum, row| Holding {
            sandboxes: sum.sandboxes + row.holds.sandboxes,
            cpu_milli: sum.cpu_milli + row.holds.cpu_milli,
            memory_mb: sum.memory_mb + row.holds.memory_mb,
            disk_mb: sum.disk_mb + row.holds.disk_mb,
        });
    (sum, store.organisation(org).await.unwrap().unwrap().used)
}

fn spec() -> SandboxSpec {
    SandboxSpec {
        resources: small(),
        ..SandboxSpec::default()
    }
}

pub async fn never_exceeded_by_concurrent_creates(store: Arc<dyn Store>) {
    let quota = Quota {
        sandboxes: 1000,
        cpu_milli: 5_000,
        memory_mb: 700,
        disk_mb: 10_000,
    };
    let ours = org_with(&store, "ours", quota).await;
    let attempts: Vec<_> = (0..40)
        .map(|_| {
            let (store, record) = (Arc::clone(&store), sandbox_of(&ours, spec(), at(1)));
            tokio::spawn(async move { store.create_sandbox(&record, None).await })
        })
        .collect();
    let mut made = 0;
    for attempt in attempts {
        match attempt.await.unwrap() {
            Ok(_) => made += 1,
            Err(StoreError::Quota {
                resource,
                limit: 700,
                ..
            }) => assert!(resource.contains("memory")),
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(made, 7, "seven times 100 MiB fit into 700");
    let (sum, used) = held(&store, &ours).await;
    assert_eq!(sum, used);
}

pub async fn stopping_gives_back_and_starting_takes_again(store: Arc<dyn Store>) {
    let quota = Quota {
        sandboxes: 10,
        cpu_milli: 10_000,
        memory_mb: 250,
        disk_mb: 10_000,
    };
    let ours = org_with(&store, "ours", quota).await;
    let records = [(); 3].map(|()| sandbox_of(&ours, spec(), at(1)));
    store.create_sandbox(&records[0], None).await.unwrap();
    store.create_sandbox(&records[1], None).await.unwrap();
    store.create_sandbox(&records[2], None).await.unwrap_err();
    let hold = |holds| SandboxChange {
        holds: Some(holds),
        ..SandboxChange::default()
    };
    let stopped = hold(Holding::stopped(&small()));
    store
        .change_sandbox(&records[0].id, &stopped, at(2))
        .await
        .unwrap();
    store.create_sandbox(&records[2], None).await.unwrap();
    let again = hold(Holding::running(&small()));
    let refused = store
        .change_sandbox(&records[0].id, &again, at(3))
        .await
        .unwrap_err();
    assert!(matches!(refused, StoreError::Quota { .. }), "{refused}");
    let (sum, used) = held(&store, &ours).await;
    assert_eq!(sum, used);
    assert_eq!(
        (used.sandboxes, used.memory_mb, used.disk_mb),
        (3, 200, 600)
    );
    // A quota lowered below what is held still lets everything be given back.
    let none = Quota {
        sandboxes: 0,
        cpu_milli: 0,
        memory_mb: 0,
        disk_mb: 0,
    };
    store.set_quota(&ours, None, none).await.unwrap();
    let gone = SandboxChange {
        deleted_at: Some(at(9)),
        ..hold(Holding::nothing())
    };
    for record in &records {
        store
            .change_sandbox(&record.id, &gone, at(9))
            .await
            .unwrap();
    }
    assert_eq!(held(&store, &ours).await.1, Holding::default());
}

pub async fn refusals_say_what_is_short(store: Arc<dyn Store>) {
    let plenty = Quota {
        sandboxes: 9,
        cpu_milli: 9_000,
        memory_mb: 9_000,
        disk_mb: 9_000,
    };
    for (name, quota, word) in [
        (
            "none",
            Quota {
                sandboxes: 0,
                ..plenty
            },
            "sandboxes",
        ),
        (
            "slow",
            Quota {
                cpu_milli: 499,
                ..plenty
            },
            "cpu",
        ),
        (
            "forgetful",
            Quota {
                memory_mb: 99,
                ..plenty
            },
            "memory",
        ),
        (
            "full",
            Quota {
                disk_mb: 199,
                ..plenty
            },
            "disk",
        ),
    ] {
        let org = org_with(&store, name, quota).await;
        let record = sandbox_of(&org, spec(), at(1));
        let refused = store.create_sandbox(&record, None).await.unwrap_err();
        assert!(refused.to_string().contains(word), "{refused}");
        assert!(store.any_sandbox(&record.id).await.unwrap().is_none());
    }
}
