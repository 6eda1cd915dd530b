//! Sandboxes as rows: names, lists, changes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use cove_model::{ImageId, SandboxId, SandboxSpec, State};
use cove_store::{
    Created, Desired, Holding, HostFacts, PageRequest, SandboxChange, SandboxFilter, SandboxRef,
    Store, StoreError,
};

use crate::rows::{at, host, moment, org, sandbox, sandbox_of, small};

fn deleted() -> SandboxChange {
    SandboxChange {
        desired: Some(Desired::Deleted),
        state: Some(State::Gone),
        holds: Some(Holding::nothing()),
        deleted_at: Some(at(50)),
        ..SandboxChange::default()
    }
}

pub async fn names_are_unique_among_the_living_of_one_organisation(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let first = sandbox(&ours, Some("agent"));
    assert_eq!(
        store.create_sandbox(&first, None).await.unwrap(),
        Created::New
    );
    let used = store.organisation(&ours).await.unwrap().unwrap().used;
    let second = sandbox(&ours, Some("agent"));
    let refused = store.create_sandbox(&second, None).await.unwrap_err();
    assert!(matches!(refused, StoreError::Exists { .. }), "{refused}");
    let after = store.organisation(&ours).await.unwrap().unwrap().used;
    assert_eq!(used, after, "a refused create holds nothing");

    store
        .create_sandbox(&sandbox(&theirs, Some("agent")), None)
        .await
        .unwrap();
    let unnamed = (sandbox(&ours, None), sandbox(&ours, None));
    store.create_sandbox(&unnamed.0, None).await.unwrap();
    store.create_sandbox(&unnamed.1, None).await.unwrap();

    let rename = SandboxChange {
        spec: Some(SandboxSpec {
            name: Some("agent".into()),
            ..unnamed.0.spec.clone()
        }),
        ..SandboxChange::default()
    };
    let refused = store
        .change_sandbox(&unnamed.0.id, &rename, at(20))
        .await
        .unwrap_err();
    assert!(matches!(refused, StoreError::Exists { .. }), "{refused}");

    store
        .change_sandbox(&first.id, &deleted(), at(50))
        .await
        .unwrap();
    store.create_sandbox(&second, None).await.unwrap();
    let found = store
        .sandbox(&ours, SandboxRef::Name("agent"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found, second);
    assert!(
        store
            .sandbox(&ours, SandboxRef::Id(&first.id))
            .await
            .unwrap()
            .is_none()
    );
    let tombstone = store.any_sandbox(&first.id).await.unwrap().unwrap();
    assert_eq!(tombstone.deleted_at, Some(at(50)));
}

pub async fn another_organisation_sees_nothing(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let made = sandbox(&ours, Some("agent"));
    store.create_sandbox(&made, None).await.unwrap();
    assert!(
        store
            .sandbox(&theirs, SandboxRef::Id(&made.id))
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        store
            .sandbox(&theirs, SandboxRef::Name("agent"))
            .await
            .unwrap()
            .is_none()
    );
    let listed = store
        .sandboxes(&theirs, &SandboxFilter::default(), &PageRequest::default())
        .await
        .unwrap();
    assert!(listed.items.is_empty());
    // A cursor of one list shows nothing of another organisation either.
    for _ in 0..3 {
        store
            .create_sandbox(&sandbox(&ours, None), None)
            .await
            .unwrap();
    }
    let ours_page = store
        .sandboxes(
            &ours,
            &SandboxFilter::default(),
            &PageRequest {
                limit: 1,
                cursor: None,
            },
        )
        .await
        .unwrap();
    let borrowed = PageRequest {
        limit: 10,
        cursor: ours_page.next_cursor,
    };
    let listed = store
        .sandboxes(&theirs, &SandboxFilter::default(), &borrowed)
        .await
        .unwrap();
    assert!(listed.items.is_empty());
}

pub async fn lists_filter_and_page_while_rows_come_and_go(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let mut made = Vec::new();
    for number in 0..20 {
        let labels = BTreeMap::from([
            ("team".to_owned(), format!("t{}", number % 2)),
            ("task".to_owned(), format!("{}", number % 5)),
        ]);
        let spec = SandboxSpec {
            labels,
            name: Some(format!("s{number}")),
            ..SandboxSpec::default()
        };
        // Several share a moment, so that ids have to break ties.
        let record = sandbox_of(&ours, spec, at(number / 4));
        store.create_sandbox(&record, None).await.unwrap();
        made.push(record);
    }
    let filter = SandboxFilter {
        labels: BTreeMap::from([("team".into(), "t1".into()), ("task".into(), "3".into())]),
        ..SandboxFilter::default()
    };
    let found = store
        .sandboxes(&ours, &filter, &PageRequest::default())
        .await
        .unwrap();
    let names: HashSet<_> = found
        .items
        .iter()
        .map(|s| s.spec.name.clone().unwrap())
        .collect();
    assert_eq!(names, HashSet::from(["s3".to_owned(), "s13".to_owned()]));

    let running = SandboxChange {
        state: Some(State::Running),
        ..SandboxChange::default()
    };
    store
        .change_sandbox(&made[7].id, &running, at(30))
        .await
        .unwrap();
    let filter = SandboxFilter {
        states: vec![State::Running, State::Stopped],
        name: Some("s7".into()),
        ..SandboxFilter::default()
    };
    let found = store
        .sandboxes(&ours, &filter, &PageRequest::default())
        .await
        .unwrap();
    assert_eq!(found.items.len(), 1);

    let mut page = PageRequest {
        limit: 6,
        cursor: None,
    };
    let mut seen = Vec::new();
    loop {
        let found = store
            .sandboxes(&ours, &SandboxFilter::default(), &page)
            .await
            .unwrap();
        seen.extend(found.items.iter().map(|s| (s.created_at, s.id.clone())));
        if page.cursor.is_none() {
            // Between pages one that was shown goes and a newer one comes.
            store
                .change_sandbox(&found.items[5].id, &deleted(), at(50))
                .await
                .unwrap();
            store
                .create_sandbox(&sandbox_of(&ours, SandboxSpec::default(), at(40)), None)
                .await
                .unwrap();
        }
        match found.next_cursor {
            Some(cursor) => page.cursor = Some(cursor),
            None => break,
        }
    }
    assert_eq!(seen.len(), 20, "each of the first twenty once");
    assert!(
        seen.windows(2).all(|pair| pair[0] > pair[1]),
        "newest first"
    );
    let oldest_first = SandboxFilter {
        oldest_first: true,
        ..SandboxFilter::default()
    };
    let mut page = PageRequest {
        limit: 7,
        cursor: None,
    };
    let mut all = Vec::new();
    loop {
        let found = store.sandboxes(&ours, &oldest_first, &page).await.unwrap();
        all.extend(found.items.iter().map(|s| (s.created_at, s.id.clone())));
        // A list goes on behind any row of it, not only where the database ended a page.
        let last = found.items.last().unwrap();
        let behind = cove_store::cursor_behind(last.created_at, last.id.as_str());
        if found.next_cursor.is_none() {
            break;
        }
        assert_eq!(found.next_cursor.as_ref(), Some(&behind));
        page.cursor = Some(behind);
    }
    assert_eq!(all.len(), 20);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "oldest first");
    let bad = PageRequest {
        limit: 5,
        cursor: Some("%%%".into()),
    };
    let refused = store
        .sandboxes(&ours, &SandboxFilter::default(), &bad)
        .await
        .unwrap_err();
    assert!(matches!(refused, StoreError::BadCursor));
    let page = PageRequest::default();
    let all = store.sandboxes_on(&host(), &page).await.unwrap();
    assert_eq!(all.items.len(), 20);
}

pub async fn a_stale_writer_loses(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let made = sandbox(&ours, None);
    store.create_sandbox(&made, None).await.unwrap();
    let change = |state| SandboxChange {
        expected_generation: Some(made.generation),
        state: Some(state),
        ..SandboxChange::default()
    };
    let attempts = (0..8).map(|_| {
        let (store, id) = (Arc::clone(&store), made.id.clone());
        let change = change(State::Running);
        tokio::spawn(async move { store.change_sandbox(&id, &change, at(20)).await })
    });
    let mut won = 0;
    for attempt in attempts.collect::<Vec<_>>() {
        match attempt.await.unwrap() {
            Ok(record) => {
                won += 1;
                assert_eq!(record.generation, made.generation + 1);
            }
            Err(error) => assert!(matches!(error, StoreError::Stale), "{error}"),
        }
    }
    assert_eq!(won, 1);
    let missing = store
        .change_sandbox(&SandboxId::random(), &change(State::Stopped), at(20))
        .await
        .unwrap_err();
    assert!(matches!(missing, StoreError::NotFound { .. }));
}

pub async fn changes_are_complete_and_only_what_was_asked(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let made = sandbox(&ours, Some("agent"));
    store.create_sandbox(&made, None).await.unwrap();
    let facts = HostFacts {
        image: Some(ImageId::random()),
        image_env: vec![("PATH".into(), "/bin".into())],
        image_user: Some("node".into()),
        image_workdir: None,
        limits: Some(small()),
        placeholders: [("token".into(), "cove-secret-x".into())].into(),
    };
    let change = SandboxChange {
        state: Some(State::Running),
        reason: Some(Some("it said \"hello\" \u{1f44b}".into())),
        facts: Some(facts.clone()),
        started_at: Some(Some(at(11))),
        ..SandboxChange::default()
    };
    let changed = store
        .change_sandbox(&made.id, &change, at(12))
        .await
        .unwrap();
    assert_eq!(store.any_sandbox(&made.id).await.unwrap().unwrap(), changed);
    assert_eq!(changed.facts, facts);
    assert_eq!(changed.spec, made.spec);
    assert_eq!(changed.desired, Desired::Running);
    assert_eq!(
        (changed.updated_at, changed.created_at),
        (at(12), made.created_at)
    );
    let cleared = SandboxChange {
        reason: Some(None),
        ..SandboxChange::default()
    };
    let changed = store
        .change_sandbox(&made.id, &cleared, at(13))
        .await
        .unwrap();
    assert_eq!((changed.reason, changed.state), (None, State::Running));
}

pub async fn the_moment_of_a_stop_is_kept_until_the_next_start(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let made = sandbox(&ours, None);
    store.create_sandbox(&made, None).await.unwrap();
    for (state, moment, expected) in [
        (Some(State::Running), 10, None),
        (Some(State::Stopping), 20, None),
        (Some(State::Stopped), 30, Some(at(30))),
        // Changes of anything else, and a second word for the same, leave it as it is.
        (None, 40, Some(at(30))),
        (Some(State::Failed), 50, Some(at(30))),
        (Some(State::Creating), 60, None),
        (Some(State::Failed), 70, Some(at(70))),
        (Some(State::Deleting), 80, Some(at(70))),
    ] {
        let change = SandboxChange {
            state,
            ..SandboxChange::default()
        };
        let changed = store.change_sandbox(&made.id, &change, at(moment)).await;
        assert_eq!(
            changed.unwrap().stopped_at,
            expected,
            "{state:?} at {moment}"
        );
        let found = store.any_sandbox(&made.id).await.unwrap().unwrap();
        assert_eq!(found.stopped_at, expected, "{state:?} at {moment}");
    }
}

pub async fn activity_only_moves_forward(store: Arc<dyn Store>) {
    let ours = org(&store, "ours").await;
    let made = sandbox(&ours, None);
    store.create_sandbox(&made, None).await.unwrap();
    store
        .touch_sandboxes(&[(made.id.clone(), moment(100))])
        .await
        .unwrap();
    store
        .touch_sandboxes(&[(made.id.clone(), moment(90))])
        .await
        .unwrap();
    let found = store.any_sandbox(&made.id).await.unwrap().unwrap();
    assert_eq!(found.last_active_at, at(100));
    assert_eq!(
        found.generation, made.generation,
        "being used is not a change"
    );
}
