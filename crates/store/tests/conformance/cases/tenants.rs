//! Organisations and their keys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cove_limits::ORG_TOLERATIONS_MAX;
use cove_model::{BuildState, ImageId, KeyId, OrgId};
use cove_store::{
    BuildRecord, Holding, ImageJobRecord, Key, Organisation, OrganisationHolding,
    OrganisationRemoval, PageRequest, Quota, SandboxChange, SandboxRef, Scope, SnapshotChange,
    SnapshotKind, SnapshotRecord, Store, StoreError, TemplatesDoomed, VolumeRef,
};

use super::builds::build;
use super::secrets::{keys, secret};
use super::snapshots::snapshot;
use super::ssh_keys;
use super::templates::{ready_snapshot, template};
use super::volumes::volume;
use crate::rows::{append, at, audit, host, key, org, sandbox};

pub async fn organisations_have_unique_names_and_pages(store: Arc<dyn Store>) {
    for number in 0..5 {
        org(&store, &format!("org-{number}")).await;
    }
    let twice = Organisation {
        id: OrgId::random(),
        name: "org-3".into(),
        quota: Quota::default(),
        used: Holding::default(),
        tolerations: Default::default(),
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

pub async fn tolerations_of_an_organisation_are_its_own(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let change = |names: &[(&str, bool)]| -> BTreeMap<String, bool> {
        let names = names.iter();
        names.map(|(name, may)| ((*name).into(), *may)).collect()
    };
    let first = change(&[("gpu", true), ("team", true), ("never", false)]);
    let changed = store.tolerate(&ours, &first).await.unwrap();
    assert_eq!(
        changed.tolerations,
        BTreeSet::from(["gpu".into(), "team".into()])
    );
    let second = change(&[("gpu", false)]);
    let changed = store.tolerate(&ours, &second).await.unwrap();
    assert_eq!(changed.tolerations, BTreeSet::from(["team".into()]));
    assert_eq!(store.organisation(&ours).await.unwrap().unwrap(), changed);
    let other = store.organisation(&theirs).await.unwrap().unwrap();
    assert!(other.tolerations.is_empty());
    let many: BTreeMap<_, _> = (0..ORG_TOLERATIONS_MAX)
        .map(|number| (number.to_string(), true))
        .collect();
    let refused = store.tolerate(&ours, &many).await;
    assert!(matches!(refused, Err(StoreError::TooMany { .. })));
    assert_eq!(store.organisation(&ours).await.unwrap().unwrap(), changed);
    // A change of something else leaves them.
    let quota = store.set_quota(&ours, None, Quota::default()).await;
    assert_eq!(quota.unwrap().tolerations, changed.tolerations);
    let unknown = store.tolerate(&OrgId::random(), &first).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })));
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

fn pull(org: &OrgId, outcome: Option<&str>) -> ImageJobRecord {
    ImageJobRecord {
        id: "job_1".into(),
        org: org.clone(),
        host: host(),
        name: "app".into(),
        shared: false,
        created_at: at(5),
        outcome: outcome.map(str::to_owned),
    }
}

/// What holds the removal of an organisation off, with how many of each.
async fn holds(store: &Arc<dyn Store>, org: &OrgId) -> Vec<(OrganisationHolding, u64)> {
    match store.remove_organisation(org, at(50)).await.unwrap() {
        OrganisationRemoval::Holds(holds) => holds,
        removed => panic!("{removed:?}"),
    }
}

pub async fn an_organisation_is_removed_once_it_has_nothing(store: Arc<dyn Store>) {
    use OrganisationHolding::*;
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let token = Key {
        sandbox: None,
        expires_at: None,
        ..key(&ours)
    };
    store.create_key(&token, "0a").await.unwrap();
    let other = Key {
        expires_at: None,
        ..key(&theirs)
    };
    store.create_key(&other, "0b").await.unwrap();
    for (org, name) in [(&ours, "laptop"), (&theirs, "other")] {
        let one = ssh_keys::key(org, name, "SHA256:a");
        store.create_ssh_key(&one).await.unwrap();
        // What others have holds nobody off.
        store.put_secret(&secret(org, "github", 1)).await.unwrap();
        let sealed_to = keys(org, name, "host");
        store.keep_secret_keys(&sealed_to).await.unwrap();
    }
    append(&store, "one", vec![audit(&ours, 1), audit(&ours, 2)]).await;

    let box_ = sandbox(&ours, Some("box"));
    store.create_sandbox(&box_, None).await.unwrap();
    let kept = ready_snapshot(&store, &ours).await;
    let made = template(&ours, &kept, "web", &["latest"]);
    store.create_template(&made, None).await.unwrap();
    let data = volume(&ours, "data");
    store.create_volume(&data, None).await.unwrap();
    let image = ImageId::random();
    store
        .grant_image(Some(&ours), "app", &image, 10)
        .await
        .unwrap();
    let running = build(&ours, 3);
    store.put_build(&running, 3).await.unwrap();
    store.put_image_job(&pull(&ours, None)).await.unwrap();
    let all = [
        (Sandboxes, 1),
        (Snapshots, 1),
        (Templates, 1),
        (Volumes, 1),
        (Secrets, 1),
        (Images, 1),
        (Builds, 1),
        (Pulls, 1),
    ];
    assert_eq!(holds(&store, &ours).await, all);
    // Nothing was touched.
    let found = store.key_by_hash("0a").await.unwrap().unwrap();
    assert_eq!(found.revoked_at, None);

    let gone = SandboxChange {
        holds: Some(Holding::nothing()),
        deleted_at: Some(at(40)),
        ..SandboxChange::default()
    };
    store.change_sandbox(&box_.id, &gone, at(40)).await.unwrap();
    assert_eq!(holds(&store, &ours).await, all[1..]);
    let all_of = TemplatesDoomed::All("web".into());
    store.delete_templates(&ours, &all_of).await.unwrap();
    let gone = SnapshotChange {
        deleted_at: Some(at(40)),
        held_disk_mb: Some(0),
        ..SnapshotChange::default()
    };
    store.change_snapshot(&kept, &gone).await.unwrap();
    store.forget_volume(&data.id).await.unwrap();
    store.remove_secret(&ours, "github").await.unwrap();
    store.withdraw_image(Some(&ours), &image).await.unwrap();
    let over = BuildRecord {
        state: BuildState::Failed,
        finished_at: Some(at(4)),
        ..running
    };
    store.put_build(&over, 3).await.unwrap();
    assert_eq!(holds(&store, &ours).await, [(Pulls, 1)]);
    let ended = pull(&ours, Some("done"));
    store.put_image_job(&ended).await.unwrap();
    // A step of a build goes by itself.
    let step = SnapshotRecord {
        kind: SnapshotKind::Build,
        ..snapshot(&sandbox(&ours, None), None)
    };
    store.create_snapshot(&step, None).await.unwrap();
    let listed = |page: PageRequest| {
        let store = Arc::clone(&store);
        async move { store.organisations(&page).await.unwrap().items }
    };
    assert_eq!(listed(PageRequest::default()).await.len(), 2);

    let removed = store.remove_organisation(&ours, at(60)).await.unwrap();
    let name = "ours".to_owned();
    assert_eq!(removed, OrganisationRemoval::Removed { name });
    let again = store.remove_organisation(&ours, at(61)).await;
    assert!(
        matches!(again, Err(StoreError::NotFound { .. })),
        "{again:?}"
    );
    assert_eq!(store.organisation(&ours).await.unwrap(), None);
    assert_eq!(store.organisation_by_name("ours").await.unwrap(), None);
    let by_id = store.organisation_by_name(ours.as_str()).await.unwrap();
    assert_eq!(by_id, None);
    let quota = store.set_quota(&ours, None, Quota::default()).await;
    assert!(
        matches!(quota, Err(StoreError::NotFound { .. })),
        "{quota:?}"
    );
    let found = store.key_by_hash("0a").await.unwrap().unwrap();
    assert_eq!(found.revoked_at, Some(at(60)));
    let holders = store.ssh_keys_by_fingerprint("SHA256:a").await.unwrap();
    assert!(
        holders.iter().all(|holder| holder.org == theirs),
        "{holders:?}"
    );
    assert_eq!(store.secret_keys(&ours).await.unwrap(), None);
    // What it did stays, and can be checked.
    let head = store.audit_head(&ours).await.unwrap().unwrap();
    assert_eq!(head.sequence, 2);
    let ever = store.organisations_ever(&PageRequest::default()).await;
    let mut ever: Vec<_> = ever
        .unwrap()
        .items
        .into_iter()
        .map(|org| org.name)
        .collect();
    ever.sort();
    assert_eq!(ever, ["ours", "theirs"]);
    // What goes by itself goes from a removed one too.
    let gone = SnapshotChange {
        deleted_at: Some(at(70)),
        held_disk_mb: Some(0),
        ..SnapshotChange::default()
    };
    store.change_snapshot(&step.id, &gone).await.unwrap();
    store.release_image(&ours, &image).await.unwrap();

    // Others have what they had.
    let found = store.key_by_hash("0b").await.unwrap().unwrap();
    assert_eq!(found.revoked_at, None);
    assert!(store.secret_keys(&theirs).await.unwrap().is_some());
    assert_eq!(listed(PageRequest::default()).await.len(), 1);

    // The name is free, and whoever takes it finds nothing.
    let fresh = org(&store, "ours").await;
    let page = PageRequest::default();
    assert_eq!(store.keys(&fresh, &page).await.unwrap().items, []);
    assert_eq!(store.ssh_keys(&fresh, &page).await.unwrap().items, []);
    assert_eq!(store.audit_head(&fresh).await.unwrap(), None);
    let name = SandboxRef::Name("box");
    assert_eq!(store.sandbox(&fresh, name).await.unwrap(), None);
    let name = VolumeRef::Name("data");
    assert_eq!(store.volume(&fresh, name).await.unwrap(), None);
    let named = store.organisation_by_name("ours").await.unwrap().unwrap();
    assert_eq!((named.id, named.used), (fresh.clone(), Holding::nothing()));
    let removed = store.remove_organisation(&fresh, at(80)).await.unwrap();
    assert!(matches!(removed, OrganisationRemoval::Removed { .. }));
}

pub async fn nothing_is_made_in_a_removed_organisation(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let removed = store.remove_organisation(&ours, at(60)).await.unwrap();
    assert!(matches!(removed, OrganisationRemoval::Removed { .. }));
    let image = ImageId::random();
    let nothing_held = SnapshotRecord {
        held_disk_mb: 0,
        ..snapshot(&sandbox(&ours, None), None)
    };
    let (box_, data) = (sandbox(&ours, None), volume(&ours, "data"));
    let made = [
        store.create_sandbox(&box_, None).await.map(drop),
        store.create_snapshot(&nothing_held, None).await.map(drop),
        store.create_volume(&data, None).await.map(drop),
        store.create_key(&key(&ours), "0a").await,
        store
            .create_ssh_key(&ssh_keys::key(&ours, "a", "SHA256:a"))
            .await,
        store.put_secret(&secret(&ours, "a", 1)).await.map(drop),
        store
            .keep_secret_keys(&keys(&ours, "a", "host"))
            .await
            .map(drop),
        store.put_build(&build(&ours, 1), 3).await,
        store.put_image_job(&pull(&ours, None)).await,
        store
            .grant_image(Some(&ours), "app", &image, 0)
            .await
            .map(drop),
    ];
    for (number, made) in made.into_iter().enumerate() {
        assert!(
            matches!(made, Err(StoreError::NotFound { .. })),
            "{number}: {made:?}"
        );
    }
    // Not even a part of it.
    assert_eq!(store.any_sandbox(&box_.id).await.unwrap(), None);
    assert_eq!(store.any_volume(&data.id).await.unwrap(), None);
    assert!(!store.image_is_granted(&image).await.unwrap());
}

pub async fn making_something_and_removing_at_once_have_one_winner(store: Arc<dyn Store>) {
    for number in 0..10 {
        let ours = org(&store, &format!("ours-{number}")).await;
        let one = secret(&ours, "github", 1);
        let (made, removed) = tokio::join!(
            store.put_secret(&one),
            store.remove_organisation(&ours, at(60))
        );
        let is_there = store.secret(&ours, "github").await.unwrap().is_some();
        let is_removed = matches!(removed, Ok(OrganisationRemoval::Removed { .. }));
        assert_eq!(made.is_ok(), is_there, "{made:?}");
        assert_eq!(is_removed, !is_there, "{made:?} {removed:?}");
    }
}
