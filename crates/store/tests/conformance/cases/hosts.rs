//! Which host has what.

use std::sync::Arc;

use cove_model::{HostId, ImageId, SandboxId};
use cove_store::{PageRequest, SandboxChange, SandboxRecord, SnapshotRecord, Store, StoreError};

use super::snapshots::snapshot;
use crate::rows::{at, host, org, sandbox};

pub async fn lists_of_a_host_have_nothing_of_another(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let (here, there) = (host(), HostId::random());
    let mut ids: Vec<(SandboxId, HostId)> = Vec::new();
    for on in [&here, &there, &here] {
        let made = SandboxRecord {
            host: on.clone(),
            ..sandbox(&ours, None)
        };
        store.create_sandbox(&made, None).await.unwrap();
        let taken: SnapshotRecord = snapshot(&made, None);
        assert_eq!(taken.host, *on);
        store.create_snapshot(&taken, None).await.unwrap();
        let found = store.any_snapshot(&taken.id).await.unwrap().unwrap();
        assert_eq!(found.host, *on);
        ids.push((made.id, on.clone()));
    }
    let page = PageRequest::default();
    for (on, count) in [(&here, 2), (&there, 1), (&HostId::random(), 0)] {
        let sandboxes = store.sandboxes_on(on, &page).await.unwrap().items;
        assert_eq!(sandboxes.len(), count);
        assert!(sandboxes.iter().all(|row| row.host == *on));
        let snapshots = store.snapshots_on(on, &page).await.unwrap().items;
        assert_eq!(snapshots.len(), count);
        assert!(snapshots.iter().all(|row| row.host == *on));
    }
    // A change leaves it where it is, and so does its end.
    for (id, on) in &ids {
        let gone = SandboxChange {
            deleted_at: Some(at(50)),
            ..SandboxChange::default()
        };
        let changed = store.change_sandbox(id, &gone, at(50)).await.unwrap();
        assert_eq!(changed.host, *on);
    }
    assert_eq!(store.buried_sandboxes(&here, 10).await.unwrap().len(), 2);
    assert_eq!(store.buried_sandboxes(&here, 1).await.unwrap().len(), 1);
    let buried = store.buried_sandboxes(&there, 10).await.unwrap();
    assert_eq!(buried.len(), 1);
    assert_eq!(buried[0].id, ids[1].0);
    assert!(
        store
            .sandboxes_on(&here, &page)
            .await
            .unwrap()
            .items
            .is_empty()
    );
}

pub async fn a_database_belongs_to_its_hosts(store: Arc<dyn Store>) {
    let (one, two) = (host(), HostId::random());
    store
        .register_hosts(std::slice::from_ref(&one), at(1))
        .await
        .unwrap();
    store
        .register_hosts(std::slice::from_ref(&one), at(2))
        .await
        .unwrap();
    assert_eq!(store.hosts().await.unwrap(), std::slice::from_ref(&one));
    let refused = store
        .register_hosts(std::slice::from_ref(&two), at(3))
        .await;
    match refused.unwrap_err() {
        StoreError::OtherHost { known } => assert_eq!(known, one),
        other => panic!("{other}"),
    }
    assert_eq!(
        store.hosts().await.unwrap(),
        std::slice::from_ref(&one),
        "nothing was added"
    );
    let mut both = vec![one.clone(), two.clone()];
    store.register_hosts(&both, at(4)).await.unwrap();
    both.sort();
    assert_eq!(store.hosts().await.unwrap(), both);
    let refused = store.register_hosts(&[one], at(5)).await.unwrap_err();
    assert!(matches!(refused, StoreError::OtherHost { known } if known == two));
}

pub async fn images_are_on_the_hosts_that_have_them(store: Arc<dyn Store>) {
    let (here, there) = (host(), HostId::random());
    let [a, b, c] = std::array::from_fn(|_| ImageId::random());
    let on = async |image: &ImageId| {
        let mut hosts = store.image_hosts(image).await.unwrap();
        hosts.sort();
        hosts
    };
    for _ in 0..2 {
        store.put_image_on(&here, &a).await.unwrap();
    }
    store.put_image_on(&there, &a).await.unwrap();
    let mut both = vec![here.clone(), there.clone()];
    both.sort();
    assert_eq!(on(&a).await, both);
    // What one host has is set without touching what the other has.
    store
        .set_images_on(&here, &[b.clone(), c.clone()])
        .await
        .unwrap();
    assert_eq!(on(&a).await, std::slice::from_ref(&there));
    assert_eq!(on(&b).await, std::slice::from_ref(&here));
    store
        .set_images_on(&here, std::slice::from_ref(&c))
        .await
        .unwrap();
    assert!(on(&b).await.is_empty());
    store.remove_image_from(&there, &a).await.unwrap();
    assert!(on(&a).await.is_empty());
    assert_eq!(on(&c).await, [here]);
    store.forget_image(&c).await.unwrap();
    assert!(on(&c).await.is_empty());
}
