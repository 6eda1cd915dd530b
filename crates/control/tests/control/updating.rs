//! Start, stop, patch.

use std::collections::BTreeMap;

use cove_control::testing::{Call, Fault};
use cove_control::{ErrorCode, Quota, SandboxPatch};
use cove_model::{IdlePolicy, ResourcesPatch, State};
use cove_runner_api::RunnerError;

use crate::support::{Plane, named, sized};

#[tokio::test]
async fn stop_and_start_are_done_once_and_may_be_repeated() {
    let plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    let running = plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used;
    for _ in 0..2 {
        let stopped = plane
            .control
            .stop_sandbox(&plane.root, "agent", Some(10))
            .await
            .unwrap();
        assert_eq!(stopped.state, State::Stopped);
    }
    assert_eq!(plane.runner.count(Call::Stop, Some(&made.id)), 1);
    let stopped = plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used;
    assert_eq!((stopped.memory_mb, stopped.sandboxes), (0, 1));
    for _ in 0..2 {
        let started = plane
            .control
            .start_sandbox(&plane.root, "agent")
            .await
            .unwrap();
        assert_eq!(started.state, State::Running);
    }
    assert_eq!(plane.runner.count(Call::Start, Some(&made.id)), 1);
    assert_eq!(
        plane
            .control
            .organisation(&plane.root, None)
            .await
            .unwrap()
            .used,
        running
    );
}

#[tokio::test]
async fn starting_needs_room_in_the_quota() {
    let plane = Plane::new().await;
    let quota = Quota {
        sandboxes: 9,
        cpu_milli: 9000,
        memory_mb: 100,
        disk_mb: 9000,
    };
    let tenant = plane.tenant("tenant", Some(quota)).await;
    let first = plane.create(&tenant, sized(80)).await.unwrap().sandbox;
    plane
        .control
        .stop_sandbox(&tenant, first.id.as_str(), None)
        .await
        .unwrap();
    plane.create(&tenant, sized(80)).await.unwrap();
    let refused = plane
        .control
        .start_sandbox(&tenant, first.id.as_str())
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    assert!(refused.message.contains("memory"));
    assert_eq!(plane.runner.state(&first.id), Some(State::Stopped));
}

#[tokio::test]
async fn a_start_that_fails_holds_nothing() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    plane
        .control
        .stop_sandbox(&plane.root, "agent", None)
        .await
        .unwrap();
    let before = plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used;
    let short = RunnerError::NoCapacity {
        resource: "memory".into(),
        message: "full".into(),
    };
    plane.runner.inject(Call::Start, Fault::Refuse(short));
    let refused = plane
        .control
        .start_sandbox(&plane.root, "agent")
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    let found = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(found.state, State::Stopped);
    assert_eq!(
        plane
            .control
            .organisation(&plane.root, None)
            .await
            .unwrap()
            .used,
        before
    );
}

#[tokio::test]
async fn an_answer_lost_while_starting_or_stopping_is_found_out() {
    let mut plane = Plane::new().await;
    plane.go();
    let made = plane.sandbox("agent").await;
    plane.runner.inject(Call::Stop, Fault::LoseAnswer);
    plane
        .control
        .stop_sandbox(&plane.root, "agent", None)
        .await
        .unwrap_err();
    plane.wait_for("agent", State::Stopped).await;
    plane.runner.inject(Call::Start, Fault::LoseAnswer);
    plane
        .control
        .start_sandbox(&plane.root, "agent")
        .await
        .unwrap_err();
    plane.wait_for("agent", State::Running).await;
    assert_eq!(plane.runner.state(&made.id), Some(State::Running));
    plane.runner.inject(Call::Stop, Fault::unreachable());
    plane
        .control
        .stop_sandbox(&plane.root, "agent", None)
        .await
        .unwrap_err();
    plane.wait_for("agent", State::Stopped).await;
    assert_eq!(
        plane.runner.state(&made.id),
        Some(State::Stopped),
        "the wish was carried out"
    );
}

#[tokio::test]
async fn a_sandbox_that_ends_by_itself_is_stopped_with_its_reason() {
    let mut plane = Plane::new().await;
    plane.go();
    let made = plane.sandbox("agent").await;
    plane.runner.exit(&made.id, "PID 1 was killed");
    let found = plane.wait_for("agent", State::Stopped).await;
    assert_eq!(found.reason.as_deref(), Some("PID 1 was killed"));
    let used = plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used;
    assert_eq!(used.memory_mb, 0);
}

#[tokio::test]
async fn patches_change_what_they_name_and_resize_the_host() {
    let plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    plane.sandbox("other").await;
    let labels = BTreeMap::from([("team".to_owned(), "blue".to_owned())]);
    let lifecycle = IdlePolicy {
        stop_after_s: Some(60),
        ..IdlePolicy::default()
    };
    let patch = SandboxPatch {
        name: Some(Some("renamed".into())),
        env: None,
        labels: Some(labels.clone()),
        lifecycle: Some(lifecycle.clone()),
        resources: Some(ResourcesPatch {
            memory_mb: Some(2048),
            ..ResourcesPatch::default()
        }),
        network: Some(cove_model::NetworkPolicy {
            mode: cove_model::NetworkMode::Open,
            ..cove_model::NetworkPolicy::default()
        }),
        expected_generation: Some(made.generation),
    };
    let changed = plane
        .control
        .update_sandbox(&plane.root, "agent", patch.clone())
        .await
        .unwrap();
    assert_eq!(changed.spec.name.as_deref(), Some("renamed"));
    assert_eq!(changed.spec.network.mode, cove_model::NetworkMode::Open);
    assert_eq!(
        (changed.spec.labels, changed.spec.lifecycle),
        (labels, lifecycle)
    );
    assert_eq!(
        (changed.limits.memory_mb, changed.spec.resources.memory_mb),
        (2048, 2048)
    );
    let used = plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used;
    assert_eq!(used.memory_mb, 2048 + 1024);
    let stale = plane
        .control
        .update_sandbox(&plane.root, "renamed", patch)
        .await
        .unwrap_err();
    assert_eq!(stale.code, ErrorCode::Stale);
    let taken = SandboxPatch {
        name: Some(Some("other".into())),
        ..SandboxPatch::default()
    };
    let taken = plane
        .control
        .update_sandbox(&plane.root, "renamed", taken)
        .await
        .unwrap_err();
    assert_eq!(taken.code, ErrorCode::AlreadyExists);
    let unnamed = SandboxPatch {
        name: Some(None),
        ..SandboxPatch::default()
    };
    let changed = plane
        .control
        .update_sandbox(&plane.root, "renamed", unnamed)
        .await
        .unwrap();
    assert_eq!(changed.spec.name, None);
}

#[tokio::test]
async fn a_resize_the_host_refuses_changes_nothing() {
    let plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    let before = plane
        .control
        .organisation(&plane.root, None)
        .await
        .unwrap()
        .used;
    let short = RunnerError::NoCapacity {
        resource: "memory".into(),
        message: "full".into(),
    };
    plane.runner.inject(Call::Resize, Fault::Refuse(short));
    let patch = SandboxPatch {
        name: Some(Some("renamed".into())),
        resources: Some(ResourcesPatch {
            memory_mb: Some(4096),
            ..ResourcesPatch::default()
        }),
        ..SandboxPatch::default()
    };
    let refused = plane
        .control
        .update_sandbox(&plane.root, "agent", patch)
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    let found = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(found.spec, made.spec);
    assert_eq!(
        plane
            .control
            .organisation(&plane.root, None)
            .await
            .unwrap()
            .used,
        before
    );
}

#[tokio::test]
async fn a_resize_the_host_never_heard_of_is_asked_for_again() {
    let mut plane = Plane::new().await;
    plane.sandbox("agent").await;
    plane.runner.inject(Call::Resize, Fault::unreachable());
    let patch = SandboxPatch {
        resources: Some(ResourcesPatch {
            memory_mb: Some(4096),
            ..ResourcesPatch::default()
        }),
        ..SandboxPatch::default()
    };
    plane
        .control
        .update_sandbox(&plane.root, "agent", patch)
        .await
        .unwrap_err();
    plane.go();
    crate::support::wait(|| async {
        let found = plane
            .control
            .get_sandbox(&plane.root, "agent")
            .await
            .unwrap();
        (found.limits.memory_mb == 4096 && plane.runner.count(Call::Resize, None) > 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_resized_sandbox_is_settled_and_not_asked_for_again() {
    let mut plane = Plane::new().await;
    plane.sandbox("agent").await;
    let patch = SandboxPatch {
        resources: Some(ResourcesPatch {
            cpu: Some(0.5),
            ..ResourcesPatch::default()
        }),
        ..SandboxPatch::default()
    };
    plane
        .control
        .update_sandbox(&plane.root, "agent", patch)
        .await
        .unwrap();
    let lists = plane.runner.count(Call::List, None);
    plane.go();
    crate::support::wait(|| async {
        (plane.runner.count(Call::List, None) > lists + 3).then_some(())
    })
    .await;
    assert_eq!(plane.runner.count(Call::Resize, None), 1);
}

#[tokio::test]
async fn odd_requests_are_refused_before_anything_happens() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    let refused = plane
        .control
        .stop_sandbox(&plane.root, "agent", Some(u64::MAX))
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidRequest);
    for which in [
        "",
        "nobody",
        "sbx_",
        "\0",
        "sbx_aaaaaaaaaaaaaaaaaaaa",
        &"x".repeat(10_000),
    ] {
        let missing = plane
            .control
            .get_sandbox(&plane.root, which)
            .await
            .unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound, "{which:?}");
        assert!(missing.message.len() < 600);
    }
    let patch = SandboxPatch {
        name: Some(Some("-".into())),
        ..SandboxPatch::default()
    };
    let refused = plane
        .control
        .update_sandbox(&plane.root, "agent", patch)
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidRequest);
    let long = named(&"x".repeat(64));
    assert_eq!(
        plane.create(&plane.root, long).await.unwrap_err().code,
        ErrorCode::InvalidRequest
    );
}
