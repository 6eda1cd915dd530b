//! Creating and deleting, and what is left when they fail.

use std::sync::Arc;

use cove_control::testing::{Call, Fault};
use cove_control::{CreateSandbox, ErrorCode, Holding};
use cove_model::{SandboxSpec, State};
use cove_runner_api::RunnerError;
use tokio::sync::Semaphore;

use crate::support::{DEADLINE, Plane, named, sized};

async fn used(plane: &Plane) -> Holding {
    plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used
}

#[tokio::test]
async fn a_created_sandbox_is_running_and_found_by_id_and_name() {
    let plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    assert_eq!(made.state, State::Running);
    for which in ["agent", made.id.as_str()] {
        assert_eq!(
            plane.control.get_sandbox(&plane.root, which).await.unwrap(),
            made
        );
    }
    let twice = plane.create(&plane.root, named("agent")).await.unwrap_err();
    assert_eq!(twice.code, ErrorCode::AlreadyExists);
    plane
        .control
        .delete_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(used(&plane).await, Holding::nothing());
    assert!(plane.runner.ids().is_empty());
    let gone = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
    plane.sandbox("agent").await;
}

#[tokio::test]
async fn a_refused_create_leaves_nothing_and_says_why() {
    let plane = Plane::new().await;
    plane.runner.limit_memory(1500);
    plane.sandbox("first").await;
    let before = used(&plane).await;
    let refused = plane
        .create(&plane.root, named("second"))
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    assert!(refused.message.contains("memory"), "{}", refused.message);
    assert!(refused.retry_after_s.is_some());
    for error in [
        RunnerError::Internal {
            message: "secret path".into(),
        },
        RunnerError::GuestUnreachable {
            message: "no answer".into(),
        },
        RunnerError::Unsupported {
            message: "no such tier".into(),
        },
    ] {
        plane.runner.inject(Call::Create, Fault::Refuse(error));
        plane.create(&plane.root, sized(16)).await.unwrap_err();
    }
    let image = SandboxSpec {
        image: "missing".into(),
        ..sized(16)
    };
    let refused = plane.create(&plane.root, image).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound);
    let bad = SandboxSpec {
        name: Some("Not A Name".into()),
        ..sized(16)
    };
    let refused = plane.create(&plane.root, bad).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidRequest);
    assert_eq!(plane.all(&plane.root).await.len(), 1);
    assert_eq!(plane.runner.ids().len(), 1);
    assert_eq!(used(&plane).await, before);
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_is_removed_from_the_host() {
    let mut plane = Plane::new().await;
    plane.go();
    plane.runner.inject(Call::Create, Fault::LoseAnswer);
    plane.runner.inject(Call::Delete, Fault::unreachable());
    let lost = plane.create(&plane.root, named("agent")).await.unwrap_err();
    assert_eq!(lost.code, ErrorCode::RunnerUnreachable);
    crate::support::wait(|| async {
        let clean = plane.runner.ids().is_empty() && plane.all(&plane.root).await.is_empty();
        clean.then_some(())
    })
    .await;
    assert_eq!(used(&plane).await, Holding::nothing());
    plane.sandbox("agent").await;
}

#[tokio::test]
async fn idempotent_creates_make_one_sandbox_even_at_the_same_time() {
    let plane = Plane::new().await;
    let request = |key: &str, spec: SandboxSpec| CreateSandbox {
        spec,
        idempotency_key: Some(key.into()),
        ..CreateSandbox::default()
    };
    let gate = Arc::new(Semaphore::new(0));
    plane.runner.inject(Call::Create, Fault::Hold(gate.clone()));
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let (control, root) = (plane.control.clone(), plane.root.clone());
            let request = request("k", named("agent"));
            tokio::spawn(async move { control.create_sandbox(&root, request).await })
        })
        .collect();
    crate::support::wait(|| async { (plane.runner.count(Call::Create, None) > 0).then_some(()) })
        .await;
    gate.add_permits(1);
    let mut ids = std::collections::HashSet::new();
    let mut replayed = 0;
    for call in calls {
        let created = call.await.unwrap().unwrap();
        assert_eq!(created.sandbox.state, State::Running);
        replayed += usize::from(created.replayed);
        ids.insert(created.sandbox.id);
    }
    assert_eq!((ids.len(), replayed), (1, 4));
    let other = request("k", named("another"));
    let reused = plane
        .control
        .create_sandbox(&plane.root, other)
        .await
        .unwrap_err();
    assert_eq!(reused.code, ErrorCode::IdempotencyKeyReused);

    // A create that failed frees its key; one that was deleted afterwards does not.
    plane.runner.inject(
        Call::Create,
        Fault::Refuse(RunnerError::Internal {
            message: "no".into(),
        }),
    );
    plane
        .control
        .create_sandbox(&plane.root, request("k2", named("b")))
        .await
        .unwrap_err();
    let again = plane
        .control
        .create_sandbox(&plane.root, request("k2", named("b")))
        .await
        .unwrap();
    assert!(!again.replayed);
    plane
        .control
        .delete_sandbox(&plane.root, "b")
        .await
        .unwrap();
    let gone = plane
        .control
        .create_sandbox(&plane.root, request("k2", named("b")))
        .await
        .unwrap_err();
    assert_eq!(gone.code, ErrorCode::IdempotencyKeyReused);
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_leave_a_half_made_sandbox() {
    let plane = Plane::new().await;
    let gate = Arc::new(Semaphore::new(0));
    plane.runner.inject(Call::Create, Fault::Hold(gate.clone()));
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let call = tokio::spawn(async move {
        let request = CreateSandbox {
            spec: named("agent"),
            idempotency_key: None,
            ..CreateSandbox::default()
        };
        control.create_sandbox(&root, request).await
    });
    crate::support::wait(|| async { (plane.runner.count(Call::Create, None) > 0).then_some(()) })
        .await;
    call.abort();
    gate.add_permits(1);
    plane.wait_for("agent", State::Running).await;
}

#[tokio::test]
async fn a_delete_the_host_cannot_hear_is_carried_out_later() {
    let mut plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    plane.runner.inject(Call::Delete, Fault::unreachable());
    let error = plane
        .control
        .delete_sandbox(&plane.root, "agent")
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::RunnerUnreachable);
    let found = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(found.state, State::Deleting);
    plane
        .control
        .start_sandbox(&plane.root, "agent")
        .await
        .unwrap_err();
    plane.go();
    plane.wait_gone(made.id.as_str()).await;
    assert!(plane.runner.ids().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletes_and_starts_at_the_same_time_end_with_nothing() {
    let plane = Plane::new().await;
    for _ in 0..20 {
        plane.sandbox("agent").await;
        let calls: Vec<_> = (0..6)
            .map(|number| {
                let (control, root) = (plane.control.clone(), plane.root.clone());
                tokio::spawn(async move {
                    match number % 3 {
                        0 => control.delete_sandbox(&root, "agent").await.map(drop),
                        1 => control.stop_sandbox(&root, "agent", None).await.map(drop),
                        _ => control.start_sandbox(&root, "agent").await.map(drop),
                    }
                })
            })
            .collect();
        for call in calls {
            let outcome = tokio::time::timeout(DEADLINE, call).await.unwrap().unwrap();
            if let Err(error) = outcome {
                assert!(
                    matches!(error.code, ErrorCode::NotFound | ErrorCode::Conflict),
                    "{error}"
                );
            }
        }
        assert!(plane.runner.ids().is_empty());
        assert_eq!(used(&plane).await, Holding::nothing());
    }
}
