//! Ports that may be visited without a key.

use std::sync::Arc;

use cove_model::{OrgId, SandboxId};
use cove_store::{Holding, PortShare, Retention, SandboxChange, Store, StoreError};

use crate::rows::{at, org, sandbox, steady};

fn share(org: &OrgId, sandbox: &SandboxId, port: u16) -> PortShare {
    PortShare {
        sandbox: sandbox.clone(),
        port,
        org: org.clone(),
        epoch: 0,
        public: false,
        public_until: None,
    }
}

pub async fn taking_a_share_back_makes_its_links_worthless_and_closes_the_port(
    store: Arc<dyn Store>,
) {
    let ours = org(&store, "ours").await;
    let id = SandboxId::random();
    let by_links = share(&ours, &id, 3000);
    assert_eq!(store.share_port(&by_links).await.unwrap(), by_links);
    let open = PortShare {
        public: true,
        public_until: Some(at(90)),
        ..by_links.clone()
    };
    assert_eq!(store.share_port(&open).await.unwrap(), open);
    assert_eq!(
        store.share_port(&by_links).await.unwrap(),
        open,
        "another link does not close it"
    );
    store.share_port(&share(&ours, &id, 80)).await.unwrap();
    store.unshare_port(&id, 3000).await.unwrap();
    let closed = PortShare {
        epoch: 1,
        ..by_links.clone()
    };
    assert_eq!(
        store.port_shares(&id, Some(3000)).await.unwrap(),
        std::slice::from_ref(&closed)
    );
    assert_eq!(
        store.share_port(&by_links).await.unwrap(),
        closed,
        "a share after it does not bring old links back"
    );
    assert_eq!(
        store.port_shares(&id, None).await.unwrap(),
        [share(&ours, &id, 80), closed]
    );
    store.unshare_port(&id, 9).await.unwrap();
    assert_eq!(store.port_shares(&id, Some(9)).await.unwrap(), []);
}

pub async fn shared_ports_are_bounded_and_go_with_their_sandbox(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let record = sandbox(&ours, None);
    store.create_sandbox(&record, None).await.unwrap();
    for port in 1..=256 {
        store
            .share_port(&share(&ours, &record.id, port))
            .await
            .unwrap();
    }
    let refused = store.share_port(&share(&ours, &record.id, 257)).await;
    assert!(matches!(refused, Err(StoreError::TooMany { .. })));
    store
        .share_port(&share(&ours, &record.id, 256))
        .await
        .expect("one that is there takes no more room");
    let gone = SandboxChange {
        holds: Some(Holding::nothing()),
        deleted_at: Some(at(20)),
        ..SandboxChange::default()
    };
    store
        .change_sandbox(&record.id, &gone, at(20))
        .await
        .unwrap();
    let keep = Retention {
        idempotency_before: steady(0),
        jobs_before: at(0),
        events_before: at(0),
        events_max: 1000,
        audit_before: at(0),
        audit_max: 1000,
        tombstones_before: at(100),
        tombstones_max: 1000,
    };
    store.sweep(&keep).await.unwrap();
    assert_eq!(store.port_shares(&record.id, None).await.unwrap(), []);
}
