//! Events: live, replayed, never doubled.

use std::sync::Arc;

use cove_control::testing::{Call, Fault};
use cove_control::{EventItem, EventSubscription};
use cove_model::{EventKind, State};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::support::{DEADLINE, Plane, named};

async fn next_state(events: &mut EventSubscription) -> (u64, State) {
    loop {
        let item = timeout(DEADLINE, events.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        match item {
            EventItem::Event(event) => {
                if let EventKind::State { state, .. } = event.kind {
                    return (event.sequence, state);
                }
            }
            EventItem::Lost { .. } => panic!("nothing was lost"),
        }
    }
}

#[tokio::test]
async fn whoever_was_answered_finds_what_came_of_it_once() {
    let mut plane = Plane::new().await;
    plane.go();
    for round in 1..=20 {
        plane.sandbox(&format!("agent-{round}")).await;
        let lists = || plane.control.list_events(&plane.root, None, 0, 1000);
        let (first, second) = tokio::join!(lists(), lists());
        for listed in [first.unwrap(), second.unwrap()] {
            let running = |kind: &EventKind| {
                matches!(
                    kind,
                    EventKind::State {
                        state: State::Running,
                        ..
                    }
                )
            };
            let found = listed.iter().filter(|event| running(&event.kind)).count();
            assert_eq!(found, round);
        }
    }
}

#[tokio::test]
async fn a_host_that_is_stuck_does_not_keep_lists_from_being_answered() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    let gate = Arc::new(Semaphore::new(0));
    plane
        .runner
        .inject(Call::Events, Fault::Hold(Arc::clone(&gate)));
    let list = || plane.control.list_events(&plane.root, None, 0, 10);
    // The second one waits for its turn behind the first, which is still held.
    for _ in 0..2 {
        let listed = timeout(DEADLINE, list()).await.expect("an answer").unwrap();
        assert!(listed.is_empty());
    }
    gate.add_permits(1);
    assert_eq!(list().await.unwrap().len(), 2);
}

#[tokio::test]
async fn listeners_hear_live_and_resume_where_they_were() {
    let mut plane = Plane::new().await;
    plane.go();
    let mut live = plane.control.events(&plane.root, None, None).await.unwrap();
    plane.sandbox("agent").await;
    assert_eq!(next_state(&mut live).await.1, State::Creating);
    let (seen, state) = next_state(&mut live).await;
    assert_eq!(state, State::Running);
    drop(live);
    plane
        .control
        .stop_sandbox(&plane.root, "agent", None)
        .await
        .unwrap();
    plane
        .control
        .start_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    let mut resumed = plane
        .control
        .events(&plane.root, Some("agent"), Some(seen))
        .await
        .unwrap();
    assert_eq!(next_state(&mut resumed).await.1, State::Stopped);
    let (seen, state) = next_state(&mut resumed).await;
    assert_eq!(state, State::Running);

    // A new control plane goes on in the host's log where the old one was: nothing twice.
    plane.halt().await;
    assert!(
        timeout(DEADLINE, resumed.next())
            .await
            .unwrap()
            .unwrap()
            .is_none(),
        "ended"
    );
    plane.crash().await;
    plane.go();
    let mut resumed = plane
        .control
        .events(&plane.root, None, Some(seen))
        .await
        .unwrap();
    plane
        .control
        .delete_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(next_state(&mut resumed).await.1, State::Gone);
}

#[tokio::test]
async fn each_organisation_hears_its_own() {
    let mut plane = Plane::new().await;
    let tenant = plane.tenant("tenant", None).await;
    let mut theirs = plane.control.events(&tenant, None, Some(0)).await.unwrap();
    plane.go();
    plane.sandbox("ours").await;
    let made = plane
        .create(&tenant, named("theirs"))
        .await
        .unwrap()
        .sandbox;
    let item = timeout(DEADLINE, theirs.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let EventItem::Event(event) = item else {
        panic!("{item:?}")
    };
    assert_eq!((event.sandbox, event.org), (made.id, tenant.org));
}

#[tokio::test]
async fn a_listener_from_before_what_is_kept_or_from_nowhere_is_told() {
    let mut plane = Plane::new().await;
    let ahead = plane
        .control
        .events(&plane.root, None, Some(1_000_000))
        .await;
    let mut ahead = ahead.unwrap();
    assert_eq!(
        ahead.next().await.unwrap(),
        Some(EventItem::Lost { before: 1 })
    );
    plane.go();
    plane.sandbox("agent").await;
    assert_eq!(next_state(&mut ahead).await.1, State::Creating);
    plane.halt().await;
    let everything = cove_store::Retention {
        idempotency_before: cove_model::Steady::default(),
        jobs_before: time::OffsetDateTime::UNIX_EPOCH,
        events_before: time::OffsetDateTime::UNIX_EPOCH,
        events_max: 1,
        audit_before: time::OffsetDateTime::UNIX_EPOCH,
        audit_max: u64::MAX,
        tombstones_max: u64::MAX,
        tombstones_before: time::OffsetDateTime::UNIX_EPOCH,
    };
    plane.store.sweep(&everything).await.unwrap();
    plane.crash().await;
    let mut behind = plane
        .control
        .events(&plane.root, None, Some(0))
        .await
        .unwrap();
    assert_eq!(
        behind.next().await.unwrap(),
        Some(EventItem::Lost { before: 2 })
    );
    assert_eq!(next_state(&mut behind).await, (2, State::Running));
}

async fn told(plane: &Plane, which: &str) -> Vec<State> {
    let listed = plane.control.list_events(&plane.root, Some(which), 0, 1000);
    let listed = listed.await.unwrap();
    assert!(
        listed
            .windows(2)
            .all(|two| two[0].sequence < two[1].sequence)
    );
    listed
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::State { state, .. } => Some(state),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn what_a_killed_host_had_not_told_yet_is_told_once() {
    for control_dies_too in [false, true] {
        let mut plane = Plane::new().await;
        let running = plane.sandbox("running").await;
        plane.sandbox("stopped").await;
        // Nobody has read a single event.
        plane.runner.restart();
        if control_dies_too {
            plane.crash().await;
        }
        assert_eq!(told(&plane, "running").await, [State::Running]);
        // Known to the listener by now, and told again and again by the host.
        for _ in 0..3 {
            plane.runner.restart();
            assert_eq!(told(&plane, "running").await, [State::Running]);
        }
        // Several changes are lost together: the last one is told.
        let control = plane.control.clone();
        plane.clock.advance(std::time::Duration::from_secs(1));
        control
            .stop_sandbox(&plane.root, "stopped", None)
            .await
            .unwrap();
        plane.runner.restart_sandbox(&running.id);
        plane.runner.restart();
        if control_dies_too {
            plane.crash().await;
        }
        assert_eq!(
            told(&plane, "stopped").await,
            [State::Running, State::Stopped]
        );
        assert_eq!(
            told(&plane, "running").await,
            [State::Running, State::Running],
            "started anew"
        );
    }
}

#[tokio::test]
async fn the_end_of_a_sandbox_is_told_also_when_the_host_was_killed_after_it() {
    let mut plane = Plane::new().await;
    let one = plane.sandbox("agent").await;
    assert_eq!(
        told(&plane, "agent").await,
        [State::Creating, State::Running]
    );
    plane
        .control
        .delete_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    plane.runner.restart();
    for _ in 0..2 {
        let all = plane.control.list_events(&plane.root, None, 0, 1000).await;
        let ends = all.unwrap().into_iter().filter(|event| {
            let gone = EventKind::State {
                state: State::Gone,
                reason: None,
            };
            event.sandbox == one.id && event.kind == gone
        });
        assert_eq!(ends.count(), 1);
        plane.crash().await;
    }
}

#[tokio::test]
async fn events_go_on_whatever_is_done_to_the_clock() {
    let mut plane = Plane::new().await;
    plane.go();
    let mut live = plane.control.events(&plane.root, None, None).await.unwrap();
    for (round, set) in [0, -3600, 7200, -86_400].into_iter().enumerate() {
        plane.clock.set_by(set);
        plane.runner.restart();
        plane.sandbox(&format!("agent-{round}")).await;
        assert_eq!(next_state(&mut live).await.1, State::Creating);
        assert_eq!(next_state(&mut live).await.1, State::Running);
    }
}
