//! Events: live, replayed, never doubled.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_control::testing::{Call, Fault, GuestKind, ScriptedGuest};
use cove_control::{ControlConfig, EventItem, EventSubscription, GuestAction};
use cove_model::{EventKind, State};
use cove_protocol::message::OutputFrom;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::support::{DEADLINE, Plane, named, quick, wait};

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
    let plane = Plane::with(ControlConfig {
        events_wait: Duration::from_secs(1),
        ..quick()
    })
    .await;
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
    wait(|| async { (list().await.unwrap().len() == 2).then_some(()) }).await;
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
    assert_eq!((&event.sandbox, &event.org), (&made.id, &tenant.org));
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
        // Known to the listener by now, and reported again and again by the host.
        for _ in 0..3 {
            plane.runner.restart();
            assert_eq!(told(&plane, "running").await, [State::Running]);
        }
        // Several changes are lost together: the last one is reported.
        let control = plane.control.clone();
        plane.clock.advance(Duration::from_secs(1));
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
async fn what_ran_and_ended_between_two_readings_is_told_after_the_host_was_killed() {
    let mut plane = Plane::new().await;
    let one = plane.sandbox("agent").await;
    let deleted = plane.control.delete_sandbox(&plane.root, "agent").await;
    deleted.unwrap();
    // Nobody has read a single event.
    plane.runner.restart();
    for _ in 0..2 {
        let all = plane.control.list_events(&plane.root, None, 0, 1000).await;
        let all = all.unwrap().into_iter();
        let states: Vec<State> = all
            .filter(|event| event.sandbox == one.id)
            .filter_map(|event| match event.kind {
                EventKind::State { state, .. } => Some(state),
                _ => None,
            })
            .collect();
        assert_eq!(states, [State::Running, State::Gone]);
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

/// Streams of one organisation.
const STREAMS: usize = 200;

/// Readings of the store until all of these heard that something runs.
async fn readings(plane: &Plane, mut streams: Vec<EventSubscription>) -> u64 {
    let before = plane.store.operations().reads;
    for events in &mut streams {
        while next_state(events).await.1 != State::Running {}
    }
    plane.store.operations().reads - before
}

#[tokio::test]
async fn however_many_follow_an_event_is_read_for_all_of_them_together() {
    let plane = Plane::new().await;
    let seen = plane.sandbox("first").await;
    let listed = plane.control.list_events(&plane.root, None, 0, 10).await;
    let last = listed.unwrap().last().unwrap().sequence;
    let follow = async |sandbox: Option<&str>, after: Option<u64>| {
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let events = plane.control.events(&plane.root, sandbox, after).await;
            streams.push(events.unwrap());
        }
        streams
    };
    // What was there before: the first who comes reads it for all.
    let behind = readings(&plane, follow(None, Some(0)).await).await;
    assert!(
        behind <= 2,
        "{behind} readings for {STREAMS} that are behind"
    );
    // What is new is read by nobody, whether all is followed or one sandbox.
    let (live, resumed) = (follow(None, None).await, follow(None, Some(last)).await);
    let one = follow(Some(seen.id.as_str()), None).await;
    plane.sandbox("second").await;
    let control = &plane.control;
    control
        .stop_sandbox(&plane.root, "first", None)
        .await
        .unwrap();
    control.start_sandbox(&plane.root, "first").await.unwrap();
    control.list_events(&plane.root, None, 0, 1).await.unwrap();
    for (name, streams) in [("live", live), ("resumed", resumed), ("of one", one)] {
        let read = readings(&plane, streams).await;
        assert!(read <= 2, "{read} readings for {STREAMS} {name}");
    }
    assert_eq!(
        control
            .table_sizes()
            .iter()
            .find(|(name, _)| *name == "listeners"),
        Some(&("listeners", 0))
    );
}

#[tokio::test]
async fn a_stream_far_behind_reads_all_it_missed_in_order() {
    let plane = Plane::new().await;
    let control = &plane.control;
    let watched = plane.sandbox("watched").await;
    plane.sandbox("busy").await;
    // More than is read at once, and more than a feed keeps.
    for _ in 0..400 {
        control.freeze_sandbox(&plane.root, "busy").await.unwrap();
        control.resume_sandbox(&plane.root, "busy").await.unwrap();
    }
    let mut total = 0;
    while let Some(last) = control
        .list_events(&plane.root, None, total, 1000)
        .await
        .unwrap()
        .last()
    {
        total = last.sequence;
    }
    assert!(total > 700, "{total}");
    let mut all = control.events(&plane.root, None, Some(0)).await.unwrap();
    for expected in 1..=total {
        let item = timeout(DEADLINE, all.next()).await.unwrap().unwrap();
        let Some(EventItem::Event(event)) = item else {
            panic!("{item:?}")
        };
        assert_eq!(event.sequence, expected);
    }
    let which = Some(watched.id.as_str());
    let mut one = control.events(&plane.root, which, Some(0)).await.unwrap();
    assert_eq!(next_state(&mut one).await.1, State::Creating);
    assert_eq!(next_state(&mut one).await.1, State::Running);
    control
        .stop_sandbox(&plane.root, "watched", None)
        .await
        .unwrap();
    control.list_events(&plane.root, None, 0, 1).await.unwrap();
    assert_eq!(next_state(&mut one).await.1, State::Stopped);
    let before = plane.store.operations().reads;
    assert!(
        timeout(Duration::from_millis(200), one.next())
            .await
            .is_err()
    );
    assert_eq!(
        plane.store.operations().reads,
        before,
        "nothing new, nothing read"
    );
}

#[tokio::test]
async fn whoever_waits_for_a_sandbox_at_rest_is_woken_by_its_events_alone() {
    const FOLLOWERS: usize = 20;
    const LOOKS_EVERY_S: u64 = 10;
    let mut plane = Plane::new().await;
    let guest = ScriptedGuest::default();
    plane.runner.set_guest(GuestKind::Scripted(guest));
    let resting = plane.sandbox("resting").await;
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let mut waiting = tokio::task::JoinSet::new();
    let mut followers = Vec::new();
    for _ in 0..FOLLOWERS {
        let access = control
            .guest(&root, "resting", GuestAction::ProcessRead)
            .await;
        followers.push(access.unwrap());
    }
    control.freeze_sandbox(&root, "resting").await.unwrap();
    control.list_events(&root, None, 0, 1).await.unwrap();
    let asked = || plane.runner.count(Call::Get, Some(&resting.id));
    let (before, began) = (asked(), Instant::now());
    for access in followers {
        waiting.spawn(async move { access.follow_again(OutputFrom::default()).await.is_ok() });
    }
    wait(|| async { (asked() >= before + FOLLOWERS).then_some(()) }).await;
    let quiet = asked();
    let neighbour = plane.tenant("neighbour", None).await;
    for round in 0..10 {
        let name = format!("agent-{round}");
        plane.create(&neighbour, named(&name)).await.unwrap();
        control.list_events(&neighbour, None, 0, 1).await.unwrap();
    }
    let woken = asked() - quiet;
    // Each looks by itself now and then, which is more often the longer this took.
    let by_itself = began.elapsed().as_secs() / LOOKS_EVERY_S;
    let most = FOLLOWERS * (1 + usize::try_from(by_itself).unwrap());
    assert!(woken < most, "{woken} looks because of others' events");
    plane.go();
    control.resume_sandbox(&root, "resting").await.unwrap();
    while let Some(done) = timeout(DEADLINE, waiting.join_next()).await.unwrap() {
        assert!(done.unwrap(), "it goes on");
    }
}
