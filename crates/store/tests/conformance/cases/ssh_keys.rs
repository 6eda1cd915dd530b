//! Public keys that may log in over SSH.

use std::sync::Arc;

use cove_model::{KeyId, OrgId};
use cove_store::{PageRequest, SshKey, Store, StoreError};

use crate::rows::{at, org};

pub fn key(org: &OrgId, name: &str, fingerprint: &str) -> SshKey {
    SshKey {
        id: KeyId::random(),
        org: org.clone(),
        name: name.into(),
        public_key: format!("ssh-ed25519 {name}"),
        fingerprint: fingerprint.into(),
        created_at: at(1),
        expires_at: Some(at(9)),
    }
}

pub async fn ssh_keys_are_found_by_fingerprint_and_belong_to_one_organisation(
    store: Arc<dyn Store>,
) {
    let ours = org(&store, "ours").await;
    let theirs = org(&store, "theirs").await;
    let laptop = key(&ours, "laptop", "SHA256:a");
    let same = key(&theirs, "same person", "SHA256:a");
    for one in [&laptop, &same] {
        store.create_ssh_key(one).await.unwrap();
    }
    let again = store.create_ssh_key(&key(&ours, "again", "SHA256:a")).await;
    assert!(matches!(again, Err(StoreError::Exists { .. })), "{again:?}");
    let mut holders = store.ssh_keys_by_fingerprint("SHA256:a").await.unwrap();
    holders.sort_by_key(|holder| holder.org != ours);
    assert_eq!(holders, [laptop.clone(), same.clone()]);
    assert_eq!(store.ssh_keys_by_fingerprint("a").await.unwrap(), []);
    let page = store
        .ssh_keys(&ours, &PageRequest::default())
        .await
        .unwrap();
    assert_eq!(page.items, std::slice::from_ref(&laptop));
    let foreign = store.remove_ssh_key(&ours, &same.id).await;
    assert!(
        matches!(foreign, Err(StoreError::NotFound { .. })),
        "{foreign:?}"
    );
    store.remove_ssh_key(&ours, &laptop.id).await.unwrap();
    assert_eq!(
        store.ssh_keys_by_fingerprint("SHA256:a").await.unwrap(),
        [same]
    );
}
