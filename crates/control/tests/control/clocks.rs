//! Clocks that are set while sandboxes run: durations do not change, dates do.

use std::time::Duration;

use cove_control::testing::{Call, GuestKind, ScriptedGuest};
use cove_control::{CreateKey, ErrorCode, Origin, Scope, Usage};
use cove_model::State;

use crate::support::{Plane, idle, wait};

const MIB: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);
const HOUR_S: i64 = 3600;

async fn usage(plane: &Plane) -> Usage {
    let usage = plane.control.sandbox_usage(&plane.root, "agent").await;
    usage.unwrap()
}

/// Lets metering and the lifecycle come by a few times.
async fn rounds(plane: &Plane) {
    let before = plane.runner.count(Call::Samples, None);
    wait(|| async { (plane.runner.count(Call::Samples, None) >= before + 6).then_some(()) }).await;
}

#[tokio::test]
async fn usage_is_what_passed_however_the_clock_is_set() {
    let mut plane = Plane::new().await;
    let one = plane.sandbox("agent").await;
    plane.runner.use_up(&one.id, |sample| {
        sample.memory_bytes = 100 * MIB;
        sample.disk_bytes = 10 * MIB;
    });
    plane.go();
    rounds(&plane).await;
    let before = usage(&plane).await;
    let mut minutes = 0;
    for set in [HOUR_S, -2 * HOUR_S, 30 * 86_400, -60 * 86_400] {
        plane.clock.set_by(set);
        rounds(&plane).await;
        plane.clock.advance(MINUTE);
        minutes += 1;
        let memory = before.memory_mib_ms + minutes * 100 * 60_000;
        wait(|| async { (usage(&plane).await.memory_mib_ms == memory).then_some(()) }).await;
        rounds(&plane).await;
        let now = usage(&plane).await;
        assert_eq!(now.memory_mib_ms, memory);
        assert_eq!(now.disk_mib_ms - before.disk_mib_ms, minutes * 10 * 60_000);
        assert_eq!(now.estimated_ms, 0);
    }
}

#[tokio::test]
async fn nothing_is_put_away_early_or_late_because_the_clock_was_set() {
    let mut plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    let spec = idle("agent", Some(180), Some(600), Some(1200));
    plane.create(&plane.root, spec).await.unwrap();
    plane.go();
    let state = async || {
        let found = plane.control.get_sandbox(&plane.root, "agent").await;
        found.unwrap().state
    };
    for set in [HOUR_S, -2 * HOUR_S] {
        plane.clock.set_by(set);
        rounds(&plane).await;
        plane.clock.advance(MINUTE);
        rounds(&plane).await;
        assert_eq!(state().await, State::Running);
    }
    // The third minute is over by the clock that nobody sets.
    plane.clock.advance(MINUTE);
    plane.wait_for("agent", State::Stopped).await;
    plane.clock.set_by(10 * HOUR_S);
    rounds(&plane).await;
    assert_eq!(state().await, State::Stopped);
    plane.clock.set_by(-20 * HOUR_S);
    plane.clock.advance(7 * MINUTE);
    plane.wait_gone("agent").await;
}

#[tokio::test]
async fn a_lifetime_is_counted_over_restarts_and_set_clocks() {
    let mut plane = Plane::new().await;
    let spec = idle("agent", None, None, Some(600));
    plane.create(&plane.root, spec).await.unwrap();
    plane.clock.advance(5 * MINUTE);
    plane.clock.set_by(HOUR_S);
    plane.crash().await;
    plane.go();
    rounds(&plane).await;
    let young = plane.control.get_sandbox(&plane.root, "agent").await;
    assert_eq!(young.unwrap().state, State::Running);
    plane.clock.set_by(-2 * HOUR_S);
    plane.clock.advance(5 * MINUTE);
    plane.wait_gone("agent").await;
}

#[tokio::test]
async fn usage_across_a_restart_of_the_host_is_estimated_by_dates_and_marked() {
    for (set, charged_s) in [(600, 600), (-HOUR_S, 0)] {
        let mut plane = Plane::new().await;
        let one = plane.sandbox("agent").await;
        plane
            .runner
            .use_up(&one.id, |sample| sample.disk_bytes = 10 * MIB);
        plane.go();
        rounds(&plane).await;
        plane.halt().await;
        let before = usage(&plane).await;
        assert_eq!(before.estimated_ms, 0);
        plane.clock.reboot();
        plane.clock.set_by(set);
        plane.runner.restart();
        plane.crash().await;
        plane.go();
        plane.clock.advance(MINUTE);
        let disk = before.disk_mib_ms + 10 * (charged_s + 60) * 1000;
        wait(|| async { (usage(&plane).await.disk_mib_ms == disk).then_some(()) }).await;
        rounds(&plane).await;
        let now = usage(&plane).await;
        assert_eq!(now.disk_mib_ms, disk);
        let marked = charged_s * 1000..=(charged_s + 60) * 1000;
        assert!(marked.contains(&now.estimated_ms), "{now:?}");
        // From here on it is exact again.
        plane.clock.set_by(HOUR_S);
        plane.clock.advance(MINUTE);
        let later = disk + 10 * 60_000;
        wait(|| async { (usage(&plane).await.disk_mib_ms == later).then_some(()) }).await;
        assert_eq!(usage(&plane).await.estimated_ms, now.estimated_ms);
    }
}

#[tokio::test]
async fn what_ends_at_a_date_ends_at_that_date() {
    let plane = Plane::new().await;
    let now = cove_control::Clock::now(plane.clock.as_ref());
    let request = CreateKey {
        name: "short".into(),
        scopes: vec![Scope::Read],
        expires_at: Some(now + time::Duration::hours(1)),
        org: None,
        sandbox: None,
    };
    let key = plane
        .control
        .create_key(&plane.root, request)
        .await
        .unwrap();
    let enter = || {
        let token = key.token.reveal();
        plane.control.authenticate(token, Origin::default())
    };
    enter().await.unwrap();
    plane.clock.set_by(HOUR_S + 1);
    assert_eq!(enter().await.unwrap_err().code, ErrorCode::Unauthenticated);
    plane.clock.set_by(-HOUR_S);
    enter().await.unwrap();
}
