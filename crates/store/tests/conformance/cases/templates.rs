//! Templates: versions, tags, and the snapshots that they keep.

use std::collections::BTreeMap;
use std::sync::Arc;

use cove_model::{OrgId, SandboxSpec, SnapshotId, TemplateId};
use cove_store::{
    IdempotencyKey, NewTemplate, PageRequest, SnapshotChange, SnapshotState, Store, StoreError,
    TemplateCreated, TemplateHint, TemplateKey, TemplateRecord, TemplatesDoomed,
};

use super::snapshots::snapshot;
use crate::rows::{at, org, sandbox, steady};

pub async fn ready_snapshot(store: &Arc<dyn Store>, org: &OrgId) -> SnapshotId {
    let row = snapshot(&sandbox(org, None), None);
    store.create_snapshot(&row, None).await.unwrap();
    let ready = SnapshotChange {
        state: Some(SnapshotState::Ready),
        ..SnapshotChange::default()
    };
    store.change_snapshot(&row.id, &ready).await.unwrap().id
}

pub fn template(org: &OrgId, snapshot: &SnapshotId, name: &str, tags: &[&str]) -> NewTemplate {
    NewTemplate {
        id: TemplateId::random(),
        org: org.clone(),
        name: name.into(),
        snapshot: snapshot.clone(),
        memory: true,
        spec: SandboxSpec {
            workdir: Some("/srv".into()),
            ..SandboxSpec::default()
        },
        config: None,
        tags: tags.iter().map(|tag| (*tag).into()).collect(),
        created_at: at(30),
        created_steady: steady(30),
    }
}

async fn made(store: &Arc<dyn Store>, new: &NewTemplate) -> TemplateRecord {
    let created = store.create_template(new, None).await.unwrap();
    assert_eq!(created, TemplateCreated::New);
    let key = TemplateKey::Id(new.id.clone());
    store.template(&new.org, &key).await.unwrap().unwrap()
}

fn tag(name: &str, tag: &str) -> TemplateKey {
    TemplateKey::Tag(name.into(), tag.into())
}

pub async fn versions_count_up_and_tags_move(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let snapshot = ready_snapshot(&store, &ours).await;
    let first = made(
        &store,
        &template(&ours, &snapshot, "web", &["latest", "v1"]),
    )
    .await;
    let second = made(&store, &template(&ours, &snapshot, "web", &["latest"])).await;
    assert_eq!((first.version, second.version), (1, 2));
    assert_eq!(first.tags, ["latest", "v1"]);
    assert_eq!(first.spec.workdir.as_deref(), Some("/srv"));
    let found = store.template(&ours, &tag("web", "latest")).await.unwrap();
    assert_eq!(found.as_ref(), Some(&second));
    let old = store.template(&ours, &tag("web", "v1")).await.unwrap();
    assert_eq!(old.unwrap().tags, ["v1"]);
    for key in [
        tag("web", "latest"),
        TemplateKey::Version("web".into(), 1),
        TemplateKey::Id(first.id.clone()),
    ] {
        assert_eq!(store.template(&theirs, &key).await.unwrap(), None);
    }
    let none = TemplateKey::Version("web".into(), u64::MAX);
    assert_eq!(store.template(&ours, &none).await.unwrap(), None);
    let moved = store.tag_template(&ours, &first.id, "latest").await;
    assert_eq!(moved.unwrap().tags, ["latest", "v1"]);
    let stranger = store.tag_template(&theirs, &first.id, "x").await;
    assert!(matches!(stranger, Err(StoreError::NotFound { .. })));
    let elsewhere = store.untag_template(&ours, "web", "latest", Some(2)).await;
    assert!(matches!(elsewhere, Err(StoreError::NotFound { .. })));
    let hint = store.template_hint(&ours, "web", 1).await.unwrap();
    let (newest, tags) = (2, vec!["latest".to_owned()]);
    assert_eq!(hint, Some(TemplateHint { newest, tags }));
    assert_eq!(store.template_hint(&theirs, "web", 1).await.unwrap(), None);
    let untag = |version| store.untag_template(&ours, "web", "latest", version);
    untag(Some(1)).await.unwrap();
    let again = untag(None).await;
    assert!(matches!(again, Err(StoreError::NotFound { .. })));
    let page = PageRequest::default();
    let listed = store.templates(&ours, Some("web"), &page).await.unwrap();
    assert_eq!(listed.items.len(), 2);
    let none = store.templates(&ours, Some("other"), &page).await.unwrap();
    assert_eq!(none.items, []);
    let none = store.templates(&theirs, None, &page).await.unwrap();
    assert_eq!(none.items, []);
}

pub async fn numbers_of_versions_are_not_used_again(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let snapshot = ready_snapshot(&store, &ours).await;
    made(&store, &template(&ours, &snapshot, "web", &[])).await;
    let second = made(&store, &template(&ours, &snapshot, "web", &["latest"])).await;
    let only = TemplatesDoomed::Only("web".into());
    let several = store.delete_templates(&ours, &only).await;
    assert!(matches!(
        several,
        Err(StoreError::SeveralVersions { versions: 2 })
    ));
    let one = TemplatesDoomed::Version(second.id.clone());
    let gone = store.delete_templates(&ours, &one).await.unwrap();
    assert_eq!(gone, [(second.id, snapshot.clone())]);
    assert_eq!(
        store.template(&ours, &tag("web", "latest")).await.unwrap(),
        None
    );
    let third = made(&store, &template(&ours, &snapshot, "web", &[])).await;
    assert_eq!(third.version, 3);
    let web = TemplatesDoomed::All("web".into());
    let all = store.delete_templates(&ours, &web).await.unwrap();
    assert_eq!(all.len(), 2);
    for again in [&web, &only, &one] {
        let again = store.delete_templates(&ours, again).await;
        assert!(matches!(again, Err(StoreError::NotFound { .. })));
    }
    // Whoever wrote down `web:1` never gets something else by it.
    let anew = made(&store, &template(&ours, &snapshot, "web", &[])).await;
    assert_eq!(anew.version, 4);
}

pub async fn names_that_are_gone_take_bounded_room_and_their_numbers_stay_used(
    store: Arc<dyn Store>,
) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let snapshot = ready_snapshot(&store, &ours).await;
    made(&store, &template(&ours, &snapshot, "alive", &[])).await;
    let old = TemplatesDoomed::All("old".into());
    for _ in 0..2 {
        made(&store, &template(&ours, &snapshot, "old", &[])).await;
        store.delete_templates(&ours, &old).await.unwrap();
    }
    for number in 0..cove_limits::TEMPLATE_NAMES_REMEMBERED {
        let name = format!("n{number}");
        let one = made(&store, &template(&ours, &snapshot, &name, &[])).await;
        assert_eq!(one.version, 1);
        let gone = TemplatesDoomed::Only(name);
        store.delete_templates(&ours, &gone).await.unwrap();
    }
    for (name, version) in [("old", 3), ("n0", 3), ("never-seen", 3), ("alive", 2)] {
        let one = made(&store, &template(&ours, &snapshot, name, &[])).await;
        assert_eq!(one.version, version, "{name}");
    }
    let snapshot = ready_snapshot(&store, &theirs).await;
    let other = made(&store, &template(&theirs, &snapshot, "old", &[])).await;
    assert_eq!(other.version, 1);
}

pub async fn a_long_list_has_its_tags_and_ends_its_pages_by_bytes(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let snapshot = ready_snapshot(&store, &ours).await;
    let count = 150;
    for number in 0..count {
        let name = format!("n{number}");
        let mut new = template(&ours, &snapshot, &name, &["latest", &name]);
        if number % 2 == 0 {
            new.spec.env.insert("BIG".into(), "x".repeat(100 << 10));
        }
        store.create_template(&new, None).await.unwrap();
    }
    let mut page = PageRequest {
        limit: cove_store::PAGE_MAX,
        cursor: None,
    };
    let (mut seen, mut pages) = (BTreeMap::new(), 0);
    loop {
        let found = store.templates(&ours, None, &page).await.unwrap();
        pages += 1;
        let bytes: usize = found
            .items
            .iter()
            .flat_map(|one| one.spec.env.values().map(String::len))
            .sum();
        assert!(
            bytes <= cove_limits::PAGE_BYTES_MAX + (100 << 10),
            "{bytes}"
        );
        for one in found.items {
            assert_eq!(one.tags, ["latest", &one.name]);
            assert!(!one.lost);
            assert!(seen.insert(one.name, one.version).is_none());
        }
        page.cursor = match found.next_cursor {
            Some(cursor) => Some(cursor),
            None => break,
        };
    }
    assert_eq!((seen.len(), pages), (count, 2));
    let gone = SnapshotChange {
        deleted_at: Some(at(40)),
        ..SnapshotChange::default()
    };
    store.change_snapshot(&snapshot, &gone).await.unwrap();
    let one = store.template(&ours, &tag("n1", "latest")).await.unwrap();
    assert!(one.unwrap().lost);
}

/// In different orders of their locks, these wait for each other, and PostgreSQL ends one of them after a second.
pub async fn pinning_and_measuring_a_snapshot_at_once_do_not_wait_for_each_other(
    store: Arc<dyn Store>,
) {
    let ours = org(&store, "ours").await;
    let snapshot = ready_snapshot(&store, &ours).await;
    for number in 0..30u64 {
        let name = |half: u8| format!("web-{number}-{half}");
        let (one, two) = (
            template(&ours, &snapshot, &name(1), &[]),
            template(&ours, &snapshot, &name(2), &[]),
        );
        let change = |held_disk_mb| SnapshotChange {
            held_disk_mb: Some(held_disk_mb),
            ..SnapshotChange::default()
        };
        let (more, less) = (change(2 * number + 1), change(2 * number));
        let (one, more, two, less) = tokio::join!(
            store.create_template(&one, None),
            store.change_snapshot(&snapshot, &more),
            store.create_template(&two, None),
            store.change_snapshot(&snapshot, &less),
        );
        for outcome in [one.map(drop), more.map(drop), two.map(drop), less.map(drop)] {
            outcome.unwrap();
        }
    }
}

pub async fn a_snapshot_stays_while_a_template_begins_from_it(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let snapshot = ready_snapshot(&store, &ours).await;
    // Somebody else's is as good as none.
    let stolen = store
        .create_template(&template(&theirs, &snapshot, "web", &[]), None)
        .await;
    assert!(matches!(stolen, Err(StoreError::NotFound { .. })));
    made(&store, &template(&ours, &snapshot, "web", &[])).await;
    let doom = SnapshotChange {
        state: Some(SnapshotState::Deleting),
        ..SnapshotChange::default()
    };
    let kept = store.change_snapshot(&snapshot, &doom).await;
    match kept {
        Err(StoreError::Kept { template, others }) => {
            assert_eq!((template.as_str(), others), ("web:1", 0));
        }
        other => panic!("{other:?}"),
    }
    made(&store, &template(&ours, &snapshot, "web", &[])).await;
    let kept = store.change_snapshot(&snapshot, &doom).await.unwrap_err();
    assert!(kept.to_string().contains("web:1 and one other"), "{kept}");
    let row = store.any_snapshot(&snapshot).await.unwrap().unwrap();
    assert_eq!(row.state, SnapshotState::Ready);
    let all = TemplatesDoomed::All("web".into());
    store.delete_templates(&ours, &all).await.unwrap();
    store.change_snapshot(&snapshot, &doom).await.unwrap();
    let late = store
        .create_template(&template(&ours, &snapshot, "web", &[]), None)
        .await;
    assert!(matches!(late, Err(StoreError::NotFound { .. })));
}

pub async fn pinning_and_deleting_a_snapshot_at_once_have_one_winner(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    for round in 0..8 {
        let snapshot = ready_snapshot(&store, &ours).await;
        let new = template(&ours, &snapshot, &format!("web-{round}"), &[]);
        let doom = SnapshotChange {
            state: Some(SnapshotState::Deleting),
            ..SnapshotChange::default()
        };
        let (pinned, doomed) = tokio::join!(
            store.create_template(&new, None),
            store.change_snapshot(&snapshot, &doom)
        );
        assert_ne!(pinned.is_ok(), doomed.is_ok(), "{pinned:?} {doomed:?}");
    }
}

pub async fn templates_and_tags_have_limits_and_repeats_are_known(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let snapshot = ready_snapshot(&store, &ours).await;
    let new = template(&ours, &snapshot, "web", &[]);
    let key = IdempotencyKey {
        key: "k".into(),
        request_hash: "h".into(),
    };
    let created = store.create_template(&new, Some(&key)).await.unwrap();
    assert_eq!(created, TemplateCreated::New);
    let repeat = template(&ours, &snapshot, "web", &[]);
    let again = store.create_template(&repeat, Some(&key)).await.unwrap();
    assert_eq!(again, TemplateCreated::Replayed(new.id.clone()));
    for number in 0..cove_limits::TEMPLATE_TAGS_MAX {
        let tag = format!("t{number}");
        store.tag_template(&ours, &new.id, &tag).await.unwrap();
    }
    let repeated = vec!["a"; cove_limits::TEMPLATE_TAGS_MAX + 1];
    let repeated = template(&ours, &snapshot, "many", &repeated);
    let repeated = store.create_template(&repeated, None).await;
    assert!(matches!(repeated, Err(StoreError::TooMany { .. })));
    let beyond = store.tag_template(&ours, &new.id, "more").await;
    assert!(matches!(beyond, Err(StoreError::TooMany { .. })));
    // One that is there may still be moved.
    store.tag_template(&ours, &new.id, "t0").await.unwrap();
}
