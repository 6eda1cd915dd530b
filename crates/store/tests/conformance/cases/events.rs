//! Events: order and completeness.

use std::sync::Arc;

use cove_model::{EventKind, HostId, OrgId, SandboxId, State};
use cove_store::{HostAdvance, NewEvent, Store, StoreError};

use crate::rows::{at, host, org};

fn advance(
    host: &HostId,
    from: cove_store::HostPosition,
    to: cove_store::HostPosition,
) -> Option<HostAdvance> {
    Some(HostAdvance {
        host: host.clone(),
        from,
        to,
    })
}

fn nowhere() -> cove_store::HostPosition {
    cove_store::HostPosition::default()
}

fn place(sequence: u64, life: &str) -> cove_store::HostPosition {
    cove_store::HostPosition {
        sequence,
        life: life.into(),
    }
}

fn event(org: &OrgId, sandbox: &SandboxId) -> NewEvent {
    NewEvent {
        org: org.clone(),
        sandbox: sandbox.clone(),
        at: at(1),
        kind: EventKind::State {
            state: State::Running,
            reason: Some("because".into()),
        },
    }
}

pub async fn readers_never_miss_what_commits_concurrently(store: Arc<dyn Store>) {
    const WRITERS: u64 = 6;
    const EACH: u64 = 15;
    let ours = org(&store, "ours").await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (store, ours) = (Arc::clone(&store), ours.clone());
            tokio::spawn(async move {
                let sandbox = SandboxId::random();
                for _ in 0..EACH {
                    let two = [event(&ours, &sandbox), event(&ours, &sandbox)];
                    let stored = store.append_events(&two, None).await.unwrap();
                    assert_eq!(stored[1].sequence, stored[0].sequence + 1);
                }
            })
        })
        .collect();
    // A reader that resumes from the last number it saw, while the writers are at it.
    let mut seen = Vec::new();
    while (seen.len() as u64) < WRITERS * EACH * 2 {
        let after = seen.last().copied().unwrap_or(0);
        let batch = store.events(&ours, None, after, 7).await.unwrap();
        seen.extend(batch.iter().map(|event| event.sequence));
        if batch.is_empty() && writers.iter().all(|writer| writer.is_finished()) {
            let rest = store.events(&ours, None, after, 1000).await.unwrap();
            seen.extend(rest.iter().map(|event| event.sequence));
            break;
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let expected: Vec<u64> = (1..=WRITERS * EACH * 2).collect();
    assert_eq!(seen, expected);
}

pub async fn positions_move_with_their_events(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let (here, there) = (host(), HostId::random());
    let position = async |host: &HostId| store.host_position(host).await.unwrap();
    assert_eq!(position(&here).await, None);
    assert_eq!(store.event_bounds(&ours).await.unwrap(), (None, 0));
    let (one, two) = (SandboxId::random(), SandboxId::random());
    let told = [event(&ours, &one), event(&theirs, &two), event(&ours, &two)];
    let stored = store
        .append_events(&told, advance(&here, nowhere(), place(17, "a")))
        .await
        .unwrap();
    assert_eq!(position(&here).await, Some(place(17, "a")));
    assert_eq!(position(&there).await, None);
    store
        .append_events(&[], advance(&there, nowhere(), place(3, "z")))
        .await
        .unwrap();
    store
        .append_events(&[], advance(&here, place(17, "a"), place(19, "b c")))
        .await
        .unwrap();
    assert_eq!(position(&here).await, Some(place(19, "b c")));
    assert_eq!(position(&there).await, Some(place(3, "z")));
    assert_eq!(store.event_bounds(&ours).await.unwrap(), (Some(1), 2));
    assert_eq!(store.event_bounds(&theirs).await.unwrap(), (Some(1), 1));

    let mine = store.events(&ours, None, 0, 10).await.unwrap();
    assert_eq!(mine, [stored[0].clone(), stored[2].clone()]);
    assert_eq!(
        store
            .events(&ours, None, stored[0].sequence, 10)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        store.events(&ours, Some(&one), 0, 10).await.unwrap().len(),
        1
    );
    assert_eq!(
        store
            .events(&theirs, Some(&one), 0, 10)
            .await
            .unwrap()
            .len(),
        0
    );
}

/// A reader that stalls between reading and keeping, and wakes up after another one has read further.
pub async fn a_reader_that_wakes_up_late_changes_nothing(store: Arc<dyn Store>) {
    let (ours, here) = (org(&store, "ours").await, host());
    let sandbox = SandboxId::random();
    let told = [event(&ours, &sandbox), event(&ours, &sandbox)];
    let keep = async |from, to| store.append_events(&told, advance(&here, from, to)).await;
    let count = async || store.events(&ours, None, 0, 100).await.unwrap().len();
    keep(nowhere(), place(2, "a")).await.unwrap();
    let late = [
        // It began before there was a position,
        (nowhere(), place(2, "a")),
        (nowhere(), place(1, "a")),
        // before the position that another has reached,
        (place(1, "a"), place(3, "a")),
        // and with another start of the host's process.
        (place(2, "z"), place(3, "z")),
    ];
    for (from, to) in late {
        let refused = keep(from, to).await.unwrap_err();
        assert!(matches!(refused, StoreError::Stale), "{refused}");
    }
    assert_eq!(count().await, 2);
    assert_eq!(
        store.event_bounds(&ours).await.unwrap(),
        (Some(1), 2),
        "no number was used"
    );
    // The host's process starts again and is read from its beginning.
    keep(place(2, "a"), place(1, "b")).await.unwrap();
    let refused = keep(place(2, "a"), place(4, "a")).await.unwrap_err();
    assert!(matches!(refused, StoreError::Stale), "{refused}");
    assert_eq!(
        store.host_position(&here).await.unwrap(),
        Some(place(1, "b"))
    );
    // Of many at once from the same place, one keeps its events.
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (store, here, told) = (Arc::clone(&store), here.clone(), told.clone());
            let advance = advance(&here, place(1, "b"), place(3, "b"));
            tokio::spawn(async move { store.append_events(&told, advance).await.is_ok() })
        })
        .collect();
    let mut kept = 0;
    for reader in readers {
        kept += usize::from(reader.await.unwrap());
    }
    assert_eq!(kept, 1);
    assert_eq!(count().await, 6);
}

pub async fn numbers_say_nothing_of_other_organisations(store: Arc<dyn Store>) {
    let (ours, theirs) = (org(&store, "ours").await, org(&store, "theirs").await);
    let sandbox = SandboxId::random();
    for round in 1..=5 {
        let mine = store
            .append_events(&[event(&ours, &sandbox)], None)
            .await
            .unwrap();
        assert_eq!(mine[0].sequence, round);
        let many: Vec<_> = (0..round * 3).map(|_| event(&theirs, &sandbox)).collect();
        store.append_events(&many, None).await.unwrap();
    }
    let seen = store.events(&ours, None, 0, 100).await.unwrap();
    let numbers: Vec<_> = seen.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_eq!(store.event_bounds(&ours).await.unwrap(), (Some(1), 5));
}
