//! Idle policies with a clock the test turns.

use std::time::Duration;

use cove_control::testing::{Call, GuestKind, ScriptedGuest};
use cove_control::{CommandRequest, ControlConfig, GuestAction, Sandbox};
use cove_model::State;
use cove_protocol::message::{Process, ProcessKind};

use crate::support::{Plane, idle, quick, wait};

const MINUTE: Duration = Duration::from_secs(60);

async fn made(plane: &Plane, stop: Option<u64>, delete: Option<u64>, life: Option<u64>) -> Sandbox {
    plane
        .create(&plane.root, idle("agent", stop, delete, life))
        .await
        .unwrap()
        .sandbox
}

/// Lets the lifecycle look at the world at least twice, so that it has compared two samples.
async fn rounds(plane: &Plane) {
    let before = plane.runner.count(Call::Samples, None);
    wait(|| async {
        // Metering asks for samples as well; four more means the ticker came by.
        (plane.runner.count(Call::Samples, None) >= before + 6).then_some(())
    })
    .await;
}

async fn state(plane: &Plane) -> State {
    plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap()
        .state
}

/// Moves in steps, as real time does, with a look between.
async fn pass(plane: &Plane, minutes: u32) {
    for _ in 0..minutes {
        plane.clock.advance(MINUTE);
        rounds(plane).await;
    }
}

#[tokio::test]
async fn an_idle_sandbox_is_stopped_once_and_deleted_later() {
    let mut plane = Plane::new().await;
    let one = made(&plane, Some(120), Some(600), None).await;
    plane.go();
    pass(&plane, 1).await;
    assert_eq!(state(&plane).await, State::Running);
    plane.clock.advance(MINUTE);
    let stopped = plane.wait_for("agent", State::Stopped).await;
    assert!(stopped.reason.unwrap().contains("idle"));
    assert_eq!(plane.runner.count(Call::Stop, Some(&one.id)), 1);
    plane.clock.advance(8 * MINUTE);
    plane.wait_gone("agent").await;
    assert!(plane.runner.ids().is_empty());
    // Its own deeds are recorded once they are done.
    let count = async |action: &str| {
        let trail = plane.audit(&plane.root).await;
        trail.iter().filter(|(done, _)| done == action).count()
    };
    wait(|| async { (count("sandbox.delete").await == 1).then_some(()) }).await;
    assert_eq!(count("sandbox.stop").await, 1);
}

#[tokio::test]
async fn an_idle_sandbox_is_put_away_when_it_is_due_and_not_in_the_next_round() {
    let half = Duration::from_millis(500);
    let mut plane = Plane::with(ControlConfig {
        lifecycle_every: MINUTE,
        ..quick()
    })
    .await;
    plane.go();
    // The round at the start is over: the next one is a minute away.
    rounds(&plane).await;
    let one = made(&plane, Some(1), None, None).await;
    let looked = |times| {
        let (runner, id) = (&plane.runner, &one.id);
        wait(move || async move { (runner.count(Call::Sample, Some(id)) >= times).then_some(()) })
    };
    plane.clock.advance(half);
    looked(1).await;
    // Busy until then: it has another second.
    let busy = |sample: &mut cove_control::Sample| sample.cpu_usec += 600_000;
    plane.runner.use_up(&one.id, busy);
    plane.clock.advance(half + half / 10);
    looked(2).await;
    assert_eq!(state(&plane).await, State::Running);
    plane.clock.advance(2 * half + half / 10);
    plane.wait_for("agent", State::Stopped).await;
}

#[tokio::test]
async fn an_attached_client_keeps_it_and_its_leaving_starts_the_time() {
    let mut plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    made(&plane, Some(120), None, None).await;
    let access = plane
        .control
        .guest(&plane.root, "agent", GuestAction::ProcessAttach)
        .await
        .unwrap();
    plane.go();
    pass(&plane, 10).await;
    assert_eq!(state(&plane).await, State::Running);
    drop(access);
    pass(&plane, 1).await;
    assert_eq!(state(&plane).await, State::Running);
    plane.clock.advance(MINUTE);
    plane.wait_for("agent", State::Stopped).await;
}

#[tokio::test]
async fn a_busy_cpu_keeps_it() {
    let mut plane = Plane::new().await;
    let one = made(&plane, Some(120), None, None).await;
    plane.go();
    for _ in 0..6 {
        // A tenth of a CPU.
        plane
            .runner
            .use_up(&one.id, |sample| sample.cpu_usec += 6_000_000);
        pass(&plane, 1).await;
    }
    assert_eq!(state(&plane).await, State::Running);
    pass(&plane, 1).await;
    plane.clock.advance(2 * MINUTE);
    plane.wait_for("agent", State::Stopped).await;
}

#[tokio::test]
async fn an_agent_that_waits_for_its_model_is_not_idle() {
    let mut plane = Plane::new().await;
    let one = made(&plane, Some(60), None, None).await;
    plane.go();
    rounds(&plane).await;
    plane
        .runner
        .use_up(&one.id, |sample| sample.network_sent_bytes += 100_000);
    // Fourteen minutes without a byte or a cycle: the answer may still come.
    pass(&plane, 14).await;
    assert_eq!(state(&plane).await, State::Running);
    plane.clock.advance(3 * MINUTE);
    plane.wait_for("agent", State::Stopped).await;
}

#[tokio::test]
async fn a_foreground_command_keeps_it_and_a_background_one_does_not() {
    let mut plane = Plane::new().await;
    let process = |kind: ProcessKind, mark: &str| Process {
        kind: kind.into(),
        // What a caller says is never taken for the kind.
        tag: "foreground".into(),
        mark: mark.into(),
        ..Process::default()
    };
    let script = |processes| {
        GuestKind::Scripted(ScriptedGuest {
            processes,
            ..ScriptedGuest::default()
        })
    };
    let command = script(vec![process(ProcessKind::Command, "")]);
    plane.runner.set_guest(command);
    made(&plane, Some(60), None, None).await;
    plane.go();
    pass(&plane, 5).await;
    assert_eq!(state(&plane).await, State::Running);
    // A guest without kinds.
    let command = script(vec![process(ProcessKind::Unknown, "foreground")]);
    plane.runner.set_guest(command);
    pass(&plane, 5).await;
    assert_eq!(state(&plane).await, State::Running);
    plane.runner.set_guest(script(vec![
        process(ProcessKind::Terminal, "foreground"),
        process(ProcessKind::CodeContext, "foreground"),
        process(ProcessKind::DialectSession, "foreground"),
        process(ProcessKind::Service, "foreground"),
        process(ProcessKind::Unknown, "background"),
    ]));
    plane.clock.advance(2 * MINUTE);
    plane.wait_for("agent", State::Stopped).await;
}

#[tokio::test]
async fn a_quiet_command_whose_caller_left_keeps_it_whatever_its_tag() {
    for (old, tag) in [
        (false, None),
        (false, Some("mine")),
        (false, Some("background")),
        (true, None),
        (true, Some("mine")),
    ] {
        let mut plane = Plane::new().await;
        let guest = ScriptedGuest {
            lasting: true,
            old,
            ..ScriptedGuest::default()
        };
        plane.runner.set_guest(GuestKind::Scripted(guest.clone()));
        made(&plane, Some(60), None, None).await;
        let opened = plane.control.guest(&plane.root, "agent", GuestAction::Exec);
        let access = opened.await.unwrap();
        let request = CommandRequest {
            tag: tag.map(str::to_owned),
            ..CommandRequest::shell("wait")
        };
        let start = access.command(request).unwrap();
        let mut follow = access.start_following(start).await.unwrap();
        follow.started().await.unwrap();
        drop((follow, access));
        plane.go();
        pass(&plane, 5).await;
        assert_eq!(state(&plane).await, State::Running, "{old} {tag:?}");
        guest.end_all();
        plane.clock.advance(2 * MINUTE);
        plane.wait_for("agent", State::Stopped).await;
    }
}

#[tokio::test]
async fn a_lifetime_ends_whatever_is_going_on() {
    let mut plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    made(&plane, None, None, Some(600)).await;
    let _access = plane
        .control
        .guest(&plane.root, "agent", GuestAction::Exec)
        .await
        .unwrap();
    plane.go();
    pass(&plane, 9).await;
    assert_eq!(state(&plane).await, State::Running);
    plane.clock.advance(MINUTE);
    plane.wait_gone("agent").await;
}

#[tokio::test]
async fn without_a_policy_it_stays_for_ever() {
    let mut plane = Plane::new().await;
    made(&plane, None, None, None).await;
    plane.go();
    plane.clock.advance(Duration::from_secs(400 * 86_400));
    let before = plane.runner.count(Call::Samples, None);
    wait(|| async { (plane.runner.count(Call::Samples, None) > before + 3).then_some(()) }).await;
    assert_eq!(state(&plane).await, State::Running);
}

#[tokio::test]
async fn idleness_survives_a_restart_and_never_acts_on_the_first_look() {
    let mut plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    made(&plane, Some(300), None, None).await;
    plane.go();
    plane.clock.advance(4 * MINUTE);
    drop(
        plane
            .control
            .guest(&plane.root, "agent", GuestAction::FileRead)
            .await
            .unwrap(),
    );
    plane.halt().await;
    plane.crash().await;
    let kept = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert!(
        kept.last_active_at > kept.created_at,
        "its last use was written down"
    );
    plane.go();
    pass(&plane, 4).await;
    assert_eq!(
        state(&plane).await,
        State::Running,
        "four minutes since it was used"
    );
    plane.clock.advance(MINUTE);
    plane.wait_for("agent", State::Stopped).await;
}
