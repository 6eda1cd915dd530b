//! Snapshots and rollbacks that a failing host or a restart cuts short: what the host still has, or is
//! still at, is never given up.

use std::sync::Arc;
use std::time::Duration;

use cove_control::testing::{Call, Fault};
use cove_control::{PageRequest, SnapshotKind, SnapshotRecord, TakeSnapshot};
use cove_model::State;
use cove_runner_api::{RunnerApi, RunnerError, SnapshotRequest};
use cove_store::SnapshotState;
use tokio::sync::Semaphore;

use crate::support::{DEADLINE, Plane, wait};

fn called(name: &str) -> TakeSnapshot {
    TakeSnapshot {
        name: Some(name.into()),
        ..TakeSnapshot::default()
    }
}

async fn rows(plane: &Plane) -> Vec<SnapshotRecord> {
    let page = PageRequest::default();
    let host = plane.runner.id();
    plane.store.snapshots_on(host, &page).await.unwrap().items
}

#[tokio::test]
async fn what_a_failed_rollback_kept_is_never_given_up() {
    let mut plane = Plane::new().await;
    plane.sandbox("agent").await;
    let control = plane.control.clone();
    let taken = control.take_snapshot(&plane.root, "agent", called("clean"));
    let clean = taken.await.unwrap().snapshot;
    let errors = [
        RunnerError::Internal {
            message: "it does not start, nor does what was".into(),
        },
        RunnerError::Unfit {
            message: "another CPU".into(),
        },
        RunnerError::GuestUnreachable {
            message: "silent".into(),
        },
    ];
    for (done, error) in errors.into_iter().enumerate() {
        plane.runner.break_rollback(error.clone());
        let rolled = control
            .rollback_sandbox(&plane.root, "agent", "clean", false)
            .await;
        rolled.unwrap_err();
        assert_eq!(plane.runner.count(Call::DeleteSnapshot, None), 0);
        let kept: Vec<_> = rows(&plane).await;
        let kept: Vec<_> = kept
            .into_iter()
            .filter(|row| row.kind == SnapshotKind::Rollback)
            .collect();
        assert_eq!(kept.len(), done + 1, "{error}");
        assert!(kept.iter().all(|row| row.state == SnapshotState::Ready));
        assert!(kept.iter().all(|row| row.rolled_back_to.is_none()));
        let now = control.get_sandbox(&plane.root, "agent").await.unwrap();
        assert_eq!(now.state, State::Failed);
        let head = now.head.unwrap();
        assert!(kept.iter().any(|row| row.id == head));
    }
    plane.crash().await;
    // It leads back to what was.
    let head = plane.control.get_sandbox(&plane.root, "agent").await;
    let head = head.unwrap().head.unwrap();
    let undone = plane
        .control
        .rollback_sandbox(&plane.root, "agent", head.as_str(), false)
        .await
        .unwrap();
    assert_eq!(undone.sandbox.head, Some(head));
    assert_ne!(undone.kept.id, clean.id);
}

#[tokio::test]
async fn a_restart_leaves_a_snapshot_alone_that_the_host_is_still_making() {
    let mut plane = Plane::new().await;
    let one = plane.sandbox("agent").await;
    let gate = Arc::new(Semaphore::new(0));
    plane.runner.inject(Call::Snapshot, Fault::Hold(gate));
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let keyed = TakeSnapshot {
        idempotency_key: Some("k".into()),
        ..called("clean")
    };
    let request = keyed.clone();
    tokio::spawn(async move { control.take_snapshot(&root, "agent", request).await });
    wait(|| async { (plane.runner.count(Call::Snapshot, None) == 1).then_some(()) }).await;
    let row = rows(&plane).await.remove(0);
    plane.runner.begin_making(&row.id);

    plane
        .crash_with(|config| config.change_wait = Duration::from_secs(1))
        .await;
    let now = rows(&plane).await;
    assert_eq!((now.len(), now[0].state), (1, SnapshotState::Making));
    // Whoever asks again meanwhile gets that answer, and takes nothing away either.
    let again = plane
        .control
        .take_snapshot(&plane.root, "agent", keyed.clone())
        .await
        .unwrap_err();
    assert_eq!(again.code, cove_control::ErrorCode::InUse);
    assert_eq!(rows(&plane).await[0].state, SnapshotState::Making);

    let made = SnapshotRequest {
        id: row.id.clone(),
        sandbox: one.id.clone(),
        memory: false,
        unless_unchanged: false,
    };
    plane.runner.snapshot(made).await.unwrap();
    plane
        .crash_with(|config| config.change_wait = DEADLINE)
        .await;
    assert_eq!(rows(&plane).await[0].state, SnapshotState::Making);
    plane.runner.finish_making(&row.id);
    plane.go();
    wait(|| async { (rows(&plane).await[0].state == SnapshotState::Ready).then_some(()) }).await;
    assert_eq!(plane.runner.snapshot_ids(), std::slice::from_ref(&row.id));
    let again = plane
        .control
        .take_snapshot(&plane.root, "agent", keyed)
        .await
        .unwrap();
    assert_eq!((again.replayed, again.snapshot.id), (true, row.id));
}
