//! Organisations and their keys.

use std::sync::Arc;

use cove_model::{KeyId, OrgId};
use cove_store::{Holding, Key, Organisation, PageRequest, Quota, Scope, Store, StoreError};

use crate::rows::{at, key, org};

pub async fn organisations_have_unique_names_and_pages(store: Arc<dyn Store>) {
    for number in 0..5 {
        org(&store, &format!("org-{number}")).await;
    }
    let twice = Organisation {
        id: OrgId::random(),
        name: "org-3".into(),
        quota: Quota::default(),
        used: Holding::default(),
        created_at: at(0),
    };
    let refused = store.create_organisation(&twice).await.unwrap_err();
    assert!(matches!(refused, StoreError::Exists { .. }), "{refused}");
    assert!(store.organisation(&twice.id).await.unwrap().is_none());

    let mut seen = Vec::new();
    let mut page = PageRequest {
        limit: 2,
        cursor: None,
    };
    loop {
        let found = store.organisations(&page).await.unwrap();
        assert!(found.items.len() <= 2);
        seen.extend(found.items.into_iter().map(|org| org.name));
        match found.next_cursor {
            Some(cursor) => page.cursor = Some(cursor),
            None => break,
        }
    }
    seen.sort();
    assert_eq!(seen, ["org-0", "org-1", "org-2", "org-3", "org-4"]);

    let found = store.organisation_by_name("org-1").await.unwrap().unwrap();
    let quota = Quota {
        sandboxes: 3,
        ..found.quota
    };
    let changed = store.set_quota(&found.id, None, quota).await.unwrap();
    assert_eq!(changed.quota, quota);
    assert_eq!(
        store.organisation(&found.id).await.unwrap().unwrap(),
        changed
    );
    let missing = store
        .set_quota(&OrgId::random(), None, quota)
        .await
        .unwrap_err();
    assert!(matches!(missing, StoreError::NotFound { .. }));
}

pub async fn keys_are_found_by_hash_and_revoked_for_good(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let made = key(&ours);
    store.create_key(&made, "aa").await.unwrap();
    assert_eq!(store.key_by_hash("aa").await.unwrap().unwrap(), made);
    assert!(store.key_by_hash("ab").await.unwrap().is_none());
    assert_eq!(store.key(&made.id).await.unwrap().unwrap(), made);
    assert!(store.key(&KeyId::random()).await.unwrap().is_none());
    let again = Key {
        name: "thief".into(),
        ..key(&theirs)
    };
    assert!(matches!(
        store.create_key(&again, "aa").await.unwrap_err(),
        StoreError::Exists { .. }
    ));

    assert!(
        store
            .keys(&theirs, &PageRequest::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let wrong_org = store
        .revoke_key(&theirs, &made.id, at(5))
        .await
        .unwrap_err();
    assert!(matches!(wrong_org, StoreError::NotFound { .. }));
    let revoked = store.revoke_key(&ours, &made.id, at(5)).await.unwrap();
    assert_eq!(revoked.revoked_at, Some(at(5)));
    let repeated = store.revoke_key(&ours, &made.id, at(9)).await.unwrap();
    assert_eq!(
        repeated.revoked_at,
        Some(at(5)),
        "the first revocation stands"
    );

    store.touch_keys(&[(made.id.clone(), at(7))]).await.unwrap();
    store.touch_keys(&[(made.id.clone(), at(6))]).await.unwrap();
    let listed = store
        .keys(&ours, &PageRequest::default())
        .await
        .unwrap()
        .items;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].last_used_at, Some(at(7)));
}

pub async fn a_new_root_key_replaces_the_old_one(store: Arc<dyn Store>) {
    let home = org(&store, "default").await;
    let root = |second| Key {
        root: true,
        sandbox: None,
        created_at: at(second),
        expires_at: None,
        ..key(&home)
    };
    let first = store.put_root_key(&root(1), "one").await.unwrap();
    let same = store.put_root_key(&root(2), "one").await.unwrap();
    assert_eq!(first.id, same.id);
    let second = store.put_root_key(&root(3), "two").await.unwrap();
    assert_ne!(first.id, second.id);
    assert!(
        store
            .key_by_hash("one")
            .await
            .unwrap()
            .unwrap()
            .revoked_at
            .is_some()
    );
    assert!(
        store
            .key_by_hash("two")
            .await
            .unwrap()
            .unwrap()
            .revoked_at
            .is_none()
    );
    let back = store.put_root_key(&root(4), "one").await.unwrap();
    assert_eq!((back.id, back.revoked_at), (first.id, None));
    assert!(
        store
            .key_by_hash("two")
            .await
            .unwrap()
            .unwrap()
            .revoked_at
            .is_some()
    );
}

pub async fn nobody_is_locked_out_by_a_revocation(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let root = Key {
        root: true,
        sandbox: None,
        scopes: Scope::ALL.to_vec(),
        ..key(&ours)
    };
    store.put_root_key(&root, "00").await.unwrap();
    let refused = store.revoke_key(&ours, &root.id, at(5)).await.unwrap_err();
    assert!(matches!(refused, StoreError::RootKey), "{refused}");

    let theirs = org(&store, "theirs").await;
    let admin = |expires_at| Key {
        scopes: vec![Scope::Admin],
        expires_at,
        ..key(&theirs)
    };
    let (one, two) = (admin(None), admin(None));
    let (expired, reader) = (
        admin(Some(at(4))),
        Key {
            scopes: vec![Scope::Read],
            ..key(&theirs)
        },
    );
    for (key, hash) in [
        (&one, "a1"),
        (&two, "a2"),
        (&expired, "a3"),
        (&reader, "a4"),
    ] {
        store.create_key(key, hash).await.unwrap();
    }
    let (first, second) = tokio::join!(
        store.revoke_key(&theirs, &one.id, at(5)),
        store.revoke_key(&theirs, &two.id, at(5))
    );
    let outcomes = [first, second];
    let gone = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(gone, 1, "one of the last two stays: {outcomes:?}");
    assert!(
        outcomes
            .iter()
            .any(|outcome| matches!(outcome, Err(StoreError::LastAdminKey)))
    );
    store.revoke_key(&theirs, &reader.id, at(5)).await.unwrap();
}
