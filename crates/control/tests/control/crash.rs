//! What a new control plane makes of whatever the last one left.

use std::sync::Arc;

use cove_control::testing::{Call, Fault, MemoryRunner};
use cove_control::{Control, ControlConfig, CreateSandbox, Holding, SystemClock};
use cove_model::{EventKind, SandboxId, SandboxSpec, State};
use cove_runner_api::{CreateRequest, RunnerApi};
use tokio::sync::Semaphore;

use crate::support::{Plane, named, open_store, wait};

/// Starts a call that hangs in the host, as if the process died there.
async fn hang<F>(plane: &Plane, call: Call, work: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let before = plane.runner.count(call, None);
    plane
        .runner
        .inject(call, Fault::Hold(Arc::new(Semaphore::new(0))));
    tokio::spawn(work);
    wait(|| async { (plane.runner.count(call, None) > before).then_some(()) }).await;
}

#[tokio::test]
async fn a_create_cut_off_before_the_host_heard_of_it_never_was() {
    let mut plane = Plane::new().await;
    let request = CreateSandbox {
        spec: named("agent"),
        idempotency_key: Some("k".into()),
        ..CreateSandbox::default()
    };
    let (control, root, again) = (plane.control.clone(), plane.root.clone(), request.clone());
    hang(&plane, Call::Create, async move {
        drop(control.create_sandbox(&root, request).await)
    })
    .await;
    plane.crash().await;
    assert!(plane.all(&plane.root).await.is_empty());
    let used = plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used;
    assert_eq!(used, Holding::nothing());
    let made = plane
        .control
        .create_sandbox(&plane.root, again)
        .await
        .unwrap();
    assert!(!made.replayed);
}

#[tokio::test]
async fn a_repeated_create_promises_nothing_of_one_the_host_never_heard_of() {
    let mut plane = Plane::new().await;
    let request = CreateSandbox {
        spec: named("agent"),
        idempotency_key: Some("k".into()),
        ..CreateSandbox::default()
    };
    let (control, root, again) = (plane.control.clone(), plane.root.clone(), request.clone());
    hang(&plane, Call::Create, async move {
        drop(control.create_sandbox(&root, request).await)
    })
    .await;
    // The host is down too, so the row is still there when the caller asks again.
    plane.runner.inject(Call::List, Fault::unreachable());
    plane.crash().await;
    let left = plane.all(&plane.root).await.remove(0);
    assert_eq!(left.state, State::Creating);
    let made = plane
        .control
        .create_sandbox(&plane.root, again)
        .await
        .unwrap();
    assert_eq!(
        (made.replayed, made.sandbox.state),
        (false, State::Running),
        "{left:?}"
    );
    plane
        .control
        .get_sandbox(&plane.root, made.sandbox.id.as_str())
        .await
        .unwrap();
    assert_eq!(plane.runner.ids(), [made.sandbox.id]);
}

#[tokio::test]
async fn a_create_cut_off_after_the_host_made_it_is_adopted() {
    let mut plane = Plane::new().await;
    let request = CreateSandbox {
        spec: named("agent"),
        idempotency_key: Some("k".into()),
        ..CreateSandbox::default()
    };
    let (control, root, again) = (plane.control.clone(), plane.root.clone(), request.clone());
    hang(&plane, Call::Create, async move {
        drop(control.create_sandbox(&root, request).await)
    })
    .await;
    // The host got it and made it; only the answer never arrived anywhere.
    let row = plane.all(&plane.root).await.remove(0);
    assert_eq!(row.state, State::Creating);
    let made = CreateRequest {
        owner: None,
        id: row.id.clone(),
        spec: row.spec,
        from: None,
    };
    plane.runner.create(made).await.unwrap();
    plane.crash().await;
    let found = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!((found.id, found.state), (row.id.clone(), State::Running));
    assert!(found.image.is_some());
    let repeated = plane
        .control
        .create_sandbox(&plane.root, again)
        .await
        .unwrap();
    assert!(repeated.replayed);
    assert_eq!(repeated.sandbox.id, row.id);
}

#[tokio::test]
async fn a_delete_cut_off_at_the_host_is_finished() {
    let mut plane = Plane::new().await;
    plane.sandbox("agent").await;
    let (control, root) = (plane.control.clone(), plane.root.clone());
    hang(&plane, Call::Delete, async move {
        drop(control.delete_sandbox(&root, "agent").await)
    })
    .await;
    assert_eq!(plane.runner.ids().len(), 1);
    plane.crash().await;
    assert!(plane.runner.ids().is_empty());
    assert!(plane.all(&plane.root).await.is_empty());
}

#[tokio::test]
async fn a_delete_whose_last_write_was_cut_off_is_finished() {
    let mut plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    let (control, root) = (plane.control.clone(), plane.root.clone());
    hang(&plane, Call::Delete, async move {
        drop(control.delete_sandbox(&root, "agent").await)
    })
    .await;
    plane.runner.lose(&made.id);
    plane.crash().await;
    assert!(plane.all(&plane.root).await.is_empty());
    let used = plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used;
    assert_eq!(used, Holding::nothing());
}

#[tokio::test]
async fn a_stop_cut_off_is_finished_and_a_start_cut_off_is_found_out() {
    let mut plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    let (control, root) = (plane.control.clone(), plane.root.clone());
    hang(&plane, Call::Stop, async move {
        drop(control.stop_sandbox(&root, "agent", None).await)
    })
    .await;
    plane.crash().await;
    let found = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(found.state, State::Stopped);
    assert_eq!(plane.runner.state(&made.id), Some(State::Stopped));

    let (control, root) = (plane.control.clone(), plane.root.clone());
    hang(&plane, Call::Start, async move {
        drop(control.start_sandbox(&root, "agent").await)
    })
    .await;
    plane.crash().await;
    let found = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(
        found.state,
        State::Stopped,
        "nobody was told that it started"
    );
    let used = plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used;
    assert_eq!(used.memory_mb, 0);
}

#[tokio::test]
async fn what_the_host_lost_is_failed_and_what_nobody_knows_is_frozen_and_kept() {
    let mut plane = Plane::new().await;
    let kept = plane.sandbox("kept").await;
    let lost = plane.sandbox("lost").await;
    plane.runner.lose(&lost.id);
    let stray = SandboxId::random();
    let spec = SandboxSpec::default();
    plane
        .runner
        .create(CreateRequest {
            owner: None,
            id: stray.clone(),
            spec,
            from: None,
        })
        .await
        .unwrap();
    plane.crash().await;
    let mut ids = [kept.id, stray.clone()];
    ids.sort();
    assert_eq!(plane.runner.ids(), ids);
    let view = plane.runner.get(&stray).await.unwrap();
    assert_eq!(view.state, State::Frozen);
    let found = plane
        .control
        .get_sandbox(&plane.root, "lost")
        .await
        .unwrap();
    assert_eq!(found.state, State::Failed);
    assert!(found.reason.unwrap().contains("no longer has it"));
    for _ in 0..2 {
        let listed = plane
            .control
            .list_events(&plane.root, Some("lost"), 0, 10)
            .await
            .unwrap();
        let failed = |kind: &EventKind| {
            matches!(
                kind,
                EventKind::State {
                    state: State::Failed,
                    ..
                }
            )
        };
        let told = listed.iter().filter(|event| failed(&event.kind)).count();
        assert_eq!(told, 1, "told once");
        plane.crash().await;
    }
    plane
        .control
        .delete_sandbox(&plane.root, "lost")
        .await
        .unwrap();
}

#[tokio::test]
async fn what_happened_while_nobody_watched_is_caught_up_with() {
    let mut plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    plane.runner.exit(&made.id, "the machine was restarted");
    plane.crash().await;
    let found = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(found.state, State::Stopped);
    assert_eq!(found.reason.as_deref(), Some("the machine was restarted"));
}

#[tokio::test]
async fn an_empty_database_does_not_wipe_a_host_it_never_met() {
    let plane = Plane::new().await;
    let made = plane.sandbox("precious").await;
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let store = open_store(&folder.path().join("other.db")).await;
    let runner: Arc<MemoryRunner> = plane.runner.clone();
    let clock = Arc::new(SystemClock);
    let wrong = Control::new(
        ControlConfig::default(),
        store.clone(),
        runner.clone(),
        clock.clone(),
    );
    wrong.prepare().await.unwrap();
    assert_eq!(runner.ids().len(), 1, "it is kept");
    let view = runner.get(&made.id).await.unwrap();
    assert_eq!(view.state, State::Frozen);
    // The right database finds its sandbox at rest, which is as good as running.
    let mut plane = plane;
    plane.crash().await;
    let found = plane
        .control
        .get_sandbox(&plane.root, "precious")
        .await
        .unwrap();
    assert_eq!(found.state, State::Frozen);
}

#[tokio::test]
async fn a_host_that_is_down_at_the_start_is_met_later() {
    let mut plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    plane.runner.exit(&made.id, "meanwhile");
    plane.runner.inject(Call::List, Fault::unreachable());
    plane.crash().await;
    plane.go();
    plane.wait_for("agent", State::Stopped).await;
}
