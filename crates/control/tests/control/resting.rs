//! Freezing, pausing, and waking exactly once.

use std::sync::Arc;
use std::time::Duration;

use cove_control::testing::{Call, Fault, GuestKind, ScriptedGuest};
use cove_control::{CommandRequest, ErrorCode, GuestAction, Quota, Sandbox, SandboxPatch, Scope};
use cove_model::{IdlePolicy, SandboxSpec, State};
use cove_runner_api::RunnerError;
use tokio::sync::Semaphore;

use crate::support::{Plane, named, sized, wait};

async fn plane() -> Plane {
    let plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    plane
}

async fn with_policy(plane: &Plane, lifecycle: IdlePolicy) -> Sandbox {
    let spec = SandboxSpec {
        lifecycle,
        ..named("agent")
    };
    plane.create(&plane.root, spec).await.unwrap().sandbox
}

async fn state(plane: &Plane, which: &str) -> State {
    let found = plane.control.get_sandbox(&plane.root, which).await;
    found.unwrap().state
}

#[tokio::test]
async fn a_herd_of_requests_wakes_a_paused_sandbox_once() {
    let plane = plane().await;
    let one = plane.sandbox("agent").await;
    plane
        .control
        .pause_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    let gate = Arc::new(Semaphore::new(0));
    plane
        .runner
        .inject(Call::Resume, Fault::Hold(Arc::clone(&gate)));
    let herd: Vec<_> = (0..100)
        .map(|n| {
            let (control, root) = (plane.control.clone(), plane.root.clone());
            tokio::spawn(async move {
                if n % 2 == 0 {
                    let command = CommandRequest::shell("true");
                    control.exec(&root, "agent", command).await.map(drop)
                } else {
                    let access = control
                        .guest(&root, "agent", GuestAction::ProcessRead)
                        .await?;
                    Ok(access.guest().processes().await.map(drop)?)
                }
            })
        })
        .collect();
    wait(|| async { (plane.runner.count(Call::Resume, None) == 1).then_some(()) }).await;
    gate.add_permits(1);
    for request in herd {
        request.await.unwrap().unwrap();
    }
    assert_eq!(plane.runner.count(Call::Resume, Some(&one.id)), 1);
    assert_eq!(state(&plane, "agent").await, State::Running);
}

#[tokio::test]
async fn a_wake_the_host_refuses_is_told_to_the_whole_herd_and_tried_again_by_the_next() {
    let plane = plane().await;
    plane.sandbox("agent").await;
    plane
        .control
        .pause_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    let full = RunnerError::NoCapacity {
        resource: "memory".into(),
        message: "full".into(),
    };
    plane.runner.inject(Call::Resume, Fault::Refuse(full));
    let ask = || {
        plane
            .control
            .guest(&plane.root, "agent", GuestAction::FileRead)
    };
    let refused = ask().await.err().unwrap();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    assert!(refused.retry_after_s.is_some());
    assert_eq!(state(&plane, "agent").await, State::Paused);
    ask().await.unwrap();
    assert_eq!(state(&plane, "agent").await, State::Running);
}

#[tokio::test]
async fn without_auto_resume_a_request_is_told_what_to_call() {
    let plane = plane().await;
    let policy = IdlePolicy {
        auto_resume: false,
        ..IdlePolicy::default()
    };
    with_policy(&plane, policy).await;
    for rest in [State::Frozen, State::Paused] {
        match rest {
            State::Frozen => plane.control.freeze_sandbox(&plane.root, "agent").await,
            _ => plane.control.pause_sandbox(&plane.root, "agent").await,
        }
        .unwrap();
        let refused = plane
            .control
            .guest(&plane.root, "agent", GuestAction::Exec)
            .await
            .err()
            .unwrap();
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(refused.message.contains(rest.as_str()), "{refused}");
        assert!(refused.hint.unwrap().contains("cove resume"));
        let woken = plane.control.resume_sandbox(&plane.root, "agent").await;
        assert_eq!(woken.unwrap().state, State::Running);
    }
}

#[tokio::test]
async fn what_was_put_to_rest_behind_the_books_wakes_when_it_is_connected_to() {
    let plane = plane().await;
    let one = plane.sandbox("agent").await;
    let access = plane
        .control
        .guest(&plane.root, "agent", GuestAction::ProcessRead)
        .await
        .unwrap();
    use cove_runner_api::RunnerApi;
    plane.runner.freeze(&one.id).await.unwrap();
    assert_eq!(state(&plane, "agent").await, State::Running);
    access.guest().processes().await.unwrap();
    assert_eq!(plane.runner.count(Call::Resume, Some(&one.id)), 1);
}

#[tokio::test]
async fn rest_gives_back_what_only_running_ones_hold_and_waking_takes_it_again() {
    let plane = plane().await;
    let quota = Quota {
        memory_mb: 250,
        ..Quota::default()
    };
    let tenant = plane.tenant("small", Some(quota)).await;
    let one = plane.create(&tenant, sized(200)).await.unwrap().sandbox;
    let used = async || {
        let org = plane.control.organisation(&tenant, None).await.unwrap();
        (org.used.memory_mb, org.used.disk_mb)
    };
    let id = one.id.as_str();
    plane.control.freeze_sandbox(&tenant, id).await.unwrap();
    assert_eq!(used().await, (200, 100), "frozen memory is memory");
    plane.control.pause_sandbox(&tenant, id).await.unwrap();
    assert_eq!(used().await, (0, 100));
    let other = plane.create(&tenant, sized(100)).await.unwrap().sandbox;
    let refused = plane
        .control
        .guest(&tenant, id, GuestAction::FileRead)
        .await
        .err()
        .unwrap();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    assert!(refused.retry_after_s.is_some());
    assert_eq!(plane.runner.count(Call::Resume, None), 0);
    let other = other.id.as_str();
    plane.control.delete_sandbox(&tenant, other).await.unwrap();
    plane
        .control
        .guest(&tenant, id, GuestAction::FileRead)
        .await
        .unwrap();
    assert_eq!(used().await, (200, 100));
}

#[tokio::test]
async fn a_pause_that_cannot_capture_leaves_it_running_and_says_who_is_to_blame() {
    let plane = plane().await;
    plane.sandbox("agent").await;
    let odd = RunnerError::Uncapturable {
        process: "strange (pid 7)".into(),
        reason: "it holds a device".into(),
    };
    plane.runner.inject(Call::Pause, Fault::Refuse(odd));
    let refused = plane
        .control
        .pause_sandbox(&plane.root, "agent")
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotCapturable);
    assert!(refused.message.contains("strange"), "{refused}");
    assert_eq!(state(&plane, "agent").await, State::Running);
}

#[tokio::test]
async fn a_pause_whose_answer_got_lost_is_found_out_about() {
    let mut plane = plane().await;
    plane.sandbox("agent").await;
    plane.runner.inject(Call::Pause, Fault::LoseAnswer);
    plane.runner.inject(Call::Get, Fault::unreachable());
    plane
        .control
        .pause_sandbox(&plane.root, "agent")
        .await
        .unwrap_err();
    assert_eq!(state(&plane, "agent").await, State::Pausing);
    plane.go();
    plane.wait_for("agent", State::Paused).await;
}

#[tokio::test]
async fn the_ladder_freezes_pauses_stops_and_deletes_in_turn() {
    let mut plane = plane().await;
    let policy = IdlePolicy {
        freeze_after_s: Some(60),
        pause_after_s: Some(300),
        stop_after_s: Some(900),
        delete_after_s: Some(3600),
        ..IdlePolicy::default()
    };
    with_policy(&plane, policy).await;
    plane.go();
    let mut since = 0;
    for (state, at_s) in [
        (State::Frozen, 60),
        (State::Paused, 300),
        (State::Stopped, 900),
    ] {
        // Time moves while the ticker looks, so that it compares two samples.
        while since < at_s {
            plane.clock.advance(Duration::from_secs(20));
            since += 20;
            let before = plane.runner.count(Call::Samples, None);
            wait(|| async {
                (plane.runner.count(Call::Samples, None) >= before + 3).then_some(())
            })
            .await;
        }
        let rested = plane.wait_for("agent", state).await;
        assert!(rested.reason.unwrap().contains("idle"), "{state}");
    }
    plane.clock.advance(Duration::from_secs(3600));
    plane.wait_gone("agent").await;
}

#[tokio::test]
async fn a_pause_that_fails_is_not_tried_again_at_once() {
    let mut plane = plane().await;
    let policy = IdlePolicy {
        pause_after_s: Some(60),
        ..IdlePolicy::default()
    };
    let one = with_policy(&plane, policy).await;
    let odd = || RunnerError::Uncapturable {
        process: "odd".into(),
        reason: "odd".into(),
    };
    for _ in 0..50 {
        plane.runner.inject(Call::Pause, Fault::Refuse(odd()));
    }
    plane.go();
    let rounds = async |count: usize| {
        let before = plane.runner.count(Call::Samples, None);
        wait(|| async {
            (plane.runner.count(Call::Samples, None) >= before + count).then_some(())
        })
        .await;
    };
    for _ in 0..6 {
        plane.clock.advance(Duration::from_secs(30));
        rounds(6).await;
    }
    let tried = || plane.runner.count(Call::Pause, Some(&one.id));
    wait(|| async { (tried() > 0).then_some(()) }).await;
    assert_eq!(tried(), 1);
    assert_eq!(state(&plane, "agent").await, State::Running);
}

#[tokio::test]
async fn stopping_gives_the_memory_of_a_paused_one_up_and_starting_wakes() {
    let plane = plane().await;
    plane.sandbox("agent").await;
    let control = &plane.control;
    control.pause_sandbox(&plane.root, "agent").await.unwrap();
    let woken = control.start_sandbox(&plane.root, "agent").await.unwrap();
    assert_eq!(woken.state, State::Running);
    assert_eq!(plane.runner.count(Call::Resume, None), 1);
    control.pause_sandbox(&plane.root, "agent").await.unwrap();
    let stopped = control.stop_sandbox(&plane.root, "agent", None).await;
    assert_eq!(stopped.unwrap().state, State::Stopped);
    for refused in [
        control.pause_sandbox(&plane.root, "agent").await,
        control.freeze_sandbox(&plane.root, "agent").await,
        control.resume_sandbox(&plane.root, "agent").await,
    ] {
        assert_eq!(refused.unwrap_err().code, ErrorCode::Conflict);
    }
}

#[tokio::test]
async fn memory_is_charged_while_frozen_and_not_while_paused() {
    let plane = plane().await;
    let one = plane.sandbox("agent").await;
    let used = async || {
        let usage = plane.control.sandbox_usage(&plane.root, "agent").await;
        let usage = usage.unwrap();
        (usage.memory_mib_ms, usage.disk_mib_ms)
    };
    plane.runner.use_up(&one.id, |sample| {
        sample.memory_bytes = 64 << 20;
        sample.disk_bytes = 10 << 20;
    });
    let control = &plane.control;
    control.freeze_sandbox(&plane.root, "agent").await.unwrap();
    // A thaw takes figures, and so does the pause.
    control.resume_sandbox(&plane.root, "agent").await.unwrap();
    wait(|| async { (plane.runner.count(Call::Sample, None) > 0).then_some(()) }).await;
    control.freeze_sandbox(&plane.root, "agent").await.unwrap();
    plane.clock.advance(Duration::from_secs(10));
    control.pause_sandbox(&plane.root, "agent").await.unwrap();
    let paused = used().await;
    assert!(paused.0 >= 64 * 10_000, "frozen memory was not charged");
    plane.clock.advance(Duration::from_secs(1000));
    control.resume_sandbox(&plane.root, "agent").await.unwrap();
    wait(|| async {
        let now = used().await;
        (now.1 >= paused.1 + 10 * 1_000_000).then_some(())
    })
    .await;
    assert_eq!(used().await.0, paused.0, "paused memory was charged");
}

#[tokio::test]
async fn resting_needs_manage_and_waking_needs_use() {
    let plane = plane().await;
    let tenant = plane.tenant("org", None).await;
    let one = plane.create(&tenant, sized(100)).await.unwrap().sandbox;
    let user = plane.key_of(&tenant.org, Scope::Use).await;
    let reader = plane.key_of(&tenant.org, Scope::Read).await;
    let (id, control) = (one.id.as_str(), &plane.control);
    for refused in [
        control.pause_sandbox(&user, id).await,
        control.freeze_sandbox(&user, id).await,
        control.resume_sandbox(&reader, id).await,
    ] {
        assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
    }
    control.pause_sandbox(&tenant, id).await.unwrap();
    control.resume_sandbox(&user, id).await.unwrap();
    let patch = SandboxPatch {
        lifecycle: Some(IdlePolicy {
            freeze_after_s: Some(10),
            pause_after_s: Some(5),
            ..IdlePolicy::default()
        }),
        ..SandboxPatch::default()
    };
    let refused = control.update_sandbox(&tenant, id, patch).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidRequest);
}
