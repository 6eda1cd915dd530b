//! Leases with a clock the test turns.

use std::time::Duration;

use cove_control::testing::{Call, Fault};
use cove_control::{Children, ErrorCode, ForkRequest, Sandbox, SandboxPatch};
use cove_model::{IdlePolicy, Lease, SandboxSpec, State};
use cove_runner_api::RunnerError;

use crate::support::{Plane, named, wait};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn leased(name: &str, holder: &str) -> SandboxSpec {
    SandboxSpec {
        lifecycle: IdlePolicy {
            lease: Some(Lease::of(holder)),
            ..IdlePolicy::default()
        },
        ..named(name)
    }
}

async fn made(plane: &Plane, holder: &str) -> Sandbox {
    let created = plane.create(&plane.root, leased("agent", holder)).await;
    created.unwrap().sandbox
}

async fn renew(plane: &Plane, holder: &str, one: &Sandbox) -> Vec<String> {
    let ids = vec![one.id.to_string()];
    let renewed = plane.control.renew_leases(&plane.root, holder, ids).await;
    renewed.unwrap()
}

async fn lease_of(plane: &Plane) -> Option<Lease> {
    let found = plane.control.get_sandbox(&plane.root, "agent").await;
    found.unwrap().spec.lifecycle.lease
}

async fn state(plane: &Plane) -> State {
    let found = plane.control.get_sandbox(&plane.root, "agent").await;
    found.unwrap().state
}

async fn wait_lapsed(plane: &Plane, lapsed: bool) {
    wait(|| async {
        let lease = lease_of(plane).await?;
        (lease.lapsed.is_some() == lapsed).then_some(())
    })
    .await;
}

/// Lets the ticker come by: another sandbox is put away meanwhile.
async fn rounds(plane: &Plane, count: usize) {
    for _ in 0..count {
        let spec = SandboxSpec {
            lifecycle: IdlePolicy {
                max_lifetime_s: Some(1),
                ..IdlePolicy::default()
            },
            ..named("passing")
        };
        let passing = plane.create(&plane.root, spec).await.unwrap().sandbox;
        plane.clock.advance(Duration::from_secs(2));
        plane.wait_gone(passing.id.as_str()).await;
    }
}

#[tokio::test]
async fn one_that_is_not_renewed_is_paused_and_a_day_later_deleted() {
    let mut plane = Plane::new().await;
    let one = made(&plane, "me").await;
    plane.go();
    rounds(&plane, 2).await;
    for _ in 0..5 {
        plane.clock.advance(4 * MINUTE);
        assert!(renew(&plane, "me", &one).await.is_empty());
        rounds(&plane, 1).await;
        assert_eq!(state(&plane).await, State::Running);
    }
    plane.clock.advance(5 * MINUTE);
    let paused = plane.wait_for("agent", State::Paused).await;
    assert!(paused.reason.unwrap().contains("lease"));
    wait_lapsed(&plane, true).await;
    plane.clock.advance(23 * HOUR);
    rounds(&plane, 2).await;
    assert_eq!(state(&plane).await, State::Paused);
    plane.clock.advance(HOUR);
    plane.wait_gone("agent").await;
    // A renewal leaves no trace in the audit log; what was done without being asked does.
    let trail = plane.audit(&plane.root).await;
    assert!(!trail.iter().any(|(action, _)| action.contains("renew")));
    assert!(trail.iter().any(|(action, _)| action == "sandbox.pause"));
}

#[tokio::test]
async fn the_time_until_the_deletion_goes_on_over_a_crash_and_a_set_clock() {
    let mut plane = Plane::new().await;
    made(&plane, "me").await;
    plane.go();
    rounds(&plane, 1).await;
    plane.clock.advance(6 * MINUTE);
    plane.wait_for("agent", State::Paused).await;
    wait_lapsed(&plane, true).await;
    plane.clock.advance(12 * HOUR);
    plane.halt().await;
    plane.crash().await;
    plane.go();
    rounds(&plane, 2).await;
    assert_eq!(state(&plane).await, State::Paused);
    plane.clock.advance(12 * HOUR);
    plane.wait_gone("agent").await;
}

#[tokio::test]
async fn a_new_process_gives_leases_a_whole_period() {
    let mut plane = Plane::new().await;
    made(&plane, "me").await;
    plane.go();
    rounds(&plane, 1).await;
    plane.clock.advance(4 * MINUTE);
    plane.halt().await;
    plane.crash().await;
    plane.go();
    rounds(&plane, 1).await;
    plane.clock.advance(4 * MINUTE);
    rounds(&plane, 2).await;
    assert_eq!(state(&plane).await, State::Running);
    plane.clock.advance(2 * MINUTE);
    plane.wait_for("agent", State::Paused).await;
}

#[tokio::test]
async fn one_that_cannot_be_paused_is_stopped() {
    let mut plane = Plane::new().await;
    let one = made(&plane, "me").await;
    let refused = RunnerError::Unsupported {
        message: "this tier cannot pause".into(),
    };
    plane.runner.inject(Call::Pause, Fault::Refuse(refused));
    plane.go();
    rounds(&plane, 1).await;
    plane.clock.advance(6 * MINUTE);
    plane.wait_for("agent", State::Stopped).await;
    wait_lapsed(&plane, true).await;
    assert_eq!(plane.runner.count(Call::Stop, Some(&one.id)), 1);
}

#[tokio::test]
async fn a_late_holder_and_a_waker_get_another_period() {
    let mut plane = Plane::new().await;
    let one = made(&plane, "me").await;
    plane.go();
    rounds(&plane, 1).await;
    plane.clock.advance(6 * MINUTE);
    wait_lapsed(&plane, true).await;
    assert!(renew(&plane, "me", &one).await.is_empty());
    wait_lapsed(&plane, false).await;
    // A look that began before the renewal forgets when it was; the one after it begins a period again.
    rounds(&plane, 2).await;
    plane.clock.advance(6 * MINUTE);
    wait_lapsed(&plane, true).await;
    let woken = plane.control.resume_sandbox(&plane.root, "agent").await;
    assert_eq!(woken.unwrap().state, State::Running);
    wait_lapsed(&plane, false).await;
    assert_eq!(state(&plane).await, State::Running);
    rounds(&plane, 2).await;
    plane.clock.advance(6 * MINUTE);
    plane.wait_for("agent", State::Paused).await;
}

#[tokio::test]
async fn whoever_takes_a_lease_over_has_it_alone() {
    let plane = Plane::new().await;
    let one = made(&plane, "first").await;
    assert!(renew(&plane, "first", &one).await.is_empty());
    let take = |present: Option<Lease>| Lease {
        holder: "second".into(),
        ..present.unwrap()
    };
    let taken = plane.control.take_lease(&plane.root, "agent", take).await;
    let lease = taken.unwrap().spec.lifecycle.lease.unwrap();
    assert_eq!(
        (lease.holder.as_str(), lease.renew_within_s),
        ("second", 300)
    );
    assert_eq!(renew(&plane, "first", &one).await, [one.id.to_string()]);
    assert!(renew(&plane, "second", &one).await.is_empty());
    let held = |holder: &str| {
        plane
            .control
            .delete_held(&plane.root, "agent", holder.into())
    };
    assert_eq!(held("first").await.unwrap_err().code, ErrorCode::Conflict);
    let end = |holder: &str| {
        let holder = Some(holder.to_owned());
        plane.control.end_lease(&plane.root, "agent", holder)
    };
    assert_eq!(end("first").await.unwrap_err().code, ErrorCode::Conflict);
    // A change of the other rules leaves the lease alone.
    let patch = SandboxPatch {
        lifecycle: Some(IdlePolicy::default()),
        ..SandboxPatch::default()
    };
    let patched = plane
        .control
        .update_sandbox(&plane.root, "agent", patch)
        .await;
    assert!(patched.unwrap().spec.lifecycle.lease.is_some());
    end("second").await.unwrap();
    assert_eq!(lease_of(&plane).await, None);
    assert_eq!(held("second").await.unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(renew(&plane, "second", &one).await, [one.id.to_string()]);
}

#[tokio::test]
async fn another_organisation_neither_renews_nor_learns_anything() {
    let mut plane = Plane::new().await;
    let one = made(&plane, "me").await;
    let other = plane.tenant("other", None).await;
    let ids = vec![one.id.to_string()];
    plane.go();
    rounds(&plane, 1).await;
    let lost = plane.control.renew_leases(&other, "me", ids.clone()).await;
    assert_eq!(lost.unwrap(), ids);
    let taken = plane
        .control
        .take_lease(&other, one.id.as_str(), |_| Lease::of("me"));
    assert_eq!(taken.await.unwrap_err().code, ErrorCode::NotFound);
    let many = vec![one.id.to_string(); cove_limits::LEASES_RENEWED_MAX + 1];
    let refused = plane.control.renew_leases(&plane.root, "me", many).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn a_fork_has_the_lease_that_was_asked_for_and_never_its_parents() {
    let plane = Plane::new().await;
    let one = made(&plane, "me").await;
    let fork = async |lease: Option<Lease>| {
        let request = ForkRequest {
            children: Children {
                lease,
                ..Children::default()
            },
            ..ForkRequest::default()
        };
        let made = plane
            .control
            .fork_sandbox(&plane.root, one.id.as_str(), request);
        let child = made.await.unwrap().pop().unwrap().unwrap();
        child.spec.lifecycle.lease
    };
    assert_eq!(fork(None).await, None);
    assert_eq!(fork(Some(Lease::of("you"))).await, Some(Lease::of("you")));
}
