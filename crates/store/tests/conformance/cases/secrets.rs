//! Secrets and the keys they are sealed to.

use std::sync::Arc;

use cove_model::secret::{OrgKeys, SecretBinding, WrappedKeys};
use cove_model::{OrgId, SandboxId, SecretId};
use cove_store::{PageRequest, SecretRecord, SecretUsage, Store, StoreError};

use crate::rows::{at, org};

fn secret(org: &OrgId, name: &str, version: u64) -> SecretRecord {
    SecretRecord {
        id: SecretId::random(),
        org: org.clone(),
        name: name.into(),
        version,
        binding: SecretBinding {
            hosts: vec!["api.example".parse().unwrap()],
            usage: "header:x-api-key".parse().unwrap(),
            ask: false,
        },
        sealed: format!("sealed {version}"),
        created_at: at(1),
        updated_at: at(version.cast_signed()),
        last_used_at: None,
        uses: 0,
    }
}

fn keys(org: &OrgId, public: &str, host_key: &str) -> OrgKeys {
    OrgKeys {
        org: org.clone(),
        public: public.into(),
        authority: "certificate".into(),
        wrapped: WrappedKeys {
            host_key: host_key.into(),
            bytes: "AAAA".into(),
        },
    }
}

pub async fn versions_of_a_secret_follow_each_other(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let theirs = org(&store, "theirs").await;
    let first = store.put_secret(&secret(&ours, "github", 1)).await.unwrap();
    let second = store.put_secret(&secret(&ours, "github", 2)).await.unwrap();
    assert_eq!(second.id, first.id);
    assert_eq!((second.created_at, second.updated_at), (at(1), at(2)));
    for stale in [1, 2, 4] {
        let refused = store.put_secret(&secret(&ours, "github", stale)).await;
        assert!(matches!(refused, Err(StoreError::Stale)), "{refused:?}");
    }
    // Another organisation has its own, and this one's does not exist for it.
    assert_eq!(store.secret(&theirs, "github").await.unwrap(), None);
    store
        .put_secret(&secret(&theirs, "github", 1))
        .await
        .unwrap();
    let page = store.secrets(&ours, &PageRequest::default()).await.unwrap();
    assert_eq!(page.items, [second]);
    store.remove_secret(&ours, "github").await.unwrap();
    let again = store.remove_secret(&ours, "github").await;
    assert!(
        matches!(again, Err(StoreError::NotFound { .. })),
        "{again:?}"
    );
    assert!(store.secret(&theirs, "github").await.unwrap().is_some());
}

pub async fn an_organisation_has_so_many_secrets_and_no_more(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let theirs = org(&store, "theirs").await;
    for number in 0..cove_limits::SECRETS_MAX {
        let one = secret(&ours, &format!("secret-{number}"), 1);
        store.put_secret(&one).await.unwrap();
    }
    let beyond = store.put_secret(&secret(&ours, "beyond", 1)).await;
    assert!(
        matches!(beyond, Err(StoreError::TooMany { .. })),
        "{beyond:?}"
    );
    // A new version of one that is there needs no room, and neighbours have their own.
    store
        .put_secret(&secret(&ours, "secret-0", 2))
        .await
        .unwrap();
    store
        .put_secret(&secret(&theirs, "first", 1))
        .await
        .unwrap();
}

pub async fn the_first_keys_of_an_organisation_stay(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    assert_eq!(store.secret_keys(&ours).await.unwrap(), None);
    let first = keys(&ours, "first", "host");
    assert_eq!(store.keep_secret_keys(&first).await.unwrap(), first);
    let second = keys(&ours, "second", "host");
    assert_eq!(store.keep_secret_keys(&second).await.unwrap(), first);
    let refused = store.rewrap_secret_keys(&second).await;
    assert!(matches!(refused, Err(StoreError::Stale)), "{refused:?}");
    let rewrapped = keys(&ours, "first", "newer");
    store.rewrap_secret_keys(&rewrapped).await.unwrap();
    assert_eq!(store.all_secret_keys().await.unwrap(), [rewrapped]);
}

pub async fn uses_of_a_secret_are_added_up(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let sandbox = SandboxId::random();
    let used = |count, seconds| SecretUsage {
        secret: "github".into(),
        sandbox: sandbox.clone(),
        count,
        last_used_at: at(seconds),
    };
    // What was removed meanwhile is left out.
    store.note_secret_uses(&ours, &[used(1, 1)]).await.unwrap();
    store.put_secret(&secret(&ours, "github", 1)).await.unwrap();
    let noted = [used(2, 3), used(3, 5)];
    store.note_secret_uses(&ours, &noted).await.unwrap();
    assert_eq!(
        store.secret_uses(&ours, "github").await.unwrap(),
        [used(5, 5)]
    );
    let found = store.secret(&ours, "github").await.unwrap().unwrap();
    assert_eq!((found.uses, found.last_used_at), (5, Some(at(5))));
    store.remove_secret(&ours, "github").await.unwrap();
    assert_eq!(store.secret_uses(&ours, "github").await.unwrap(), []);
}
