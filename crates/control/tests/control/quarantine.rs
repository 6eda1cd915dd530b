//! What the host has and the database does not know: kept, listed, adopted or deleted by command alone.

use std::sync::Arc;

use cove_control::testing::MemoryRunner;
use cove_control::{ErrorCode, Quarantined, TakeSnapshot};
use cove_model::{SandboxId, SandboxSpec, SnapshotId, State};
use cove_runner_api::{CreateRequest, RunnerApi, SnapshotRequest};

use crate::support::Plane;

async fn stray(runner: &Arc<MemoryRunner>, name: &str) -> SandboxId {
    let id = SandboxId::random();
    let spec = SandboxSpec {
        name: Some(name.into()),
        ..SandboxSpec::default()
    };
    let request = CreateRequest {
        owner: None,
        id: id.clone(),
        spec,
        from: None,
    };
    runner.create(request).await.unwrap();
    id
}

async fn listed(plane: &Plane) -> Vec<Quarantined> {
    plane.control.list_quarantine(&plane.root).await.unwrap()
}

fn ids(found: &[Quarantined]) -> Vec<&str> {
    let mut ids: Vec<_> = found.iter().map(|entry| entry.id.as_str()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test]
async fn the_unknown_are_listed_adopted_with_their_snapshots_or_deleted_by_operators_only() {
    let mut plane = Plane::new().await;
    plane.sandbox("taken").await;
    assert!(listed(&plane).await.is_empty());
    let wanted = stray(&plane.runner, "taken").await;
    let unwanted = stray(&plane.runner, "unwanted").await;
    let snapshot = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: wanted.clone(),
        memory: false,
        unless_unchanged: false,
    };
    plane.runner.snapshot(snapshot.clone()).await.unwrap();
    plane.crash().await;
    let found = listed(&plane).await;
    let mut expected = [wanted.as_str(), unwanted.as_str(), snapshot.id.as_str()];
    expected.sort_unstable();
    assert_eq!(ids(&found), expected);
    for entry in &found {
        assert_eq!(entry.org, None);
        assert!(entry.state.is_none_or(|state| state == State::Frozen));
    }
    let tenant = plane.tenant("other", None).await;
    let refused = plane.control.list_quarantine(&tenant).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    for outcome in [
        plane
            .control
            .adopt_quarantined(&tenant, wanted.as_str(), None)
            .await,
        plane
            .control
            .delete_quarantined(&tenant, wanted.as_str())
            .await,
    ] {
        assert_eq!(outcome.unwrap_err().code, ErrorCode::Forbidden);
    }

    plane
        .control
        .adopt_quarantined(&plane.root, wanted.as_str(), Some(&tenant.org))
        .await
        .unwrap();
    let adopted = plane
        .control
        .get_sandbox(&tenant, wanted.as_str())
        .await
        .unwrap();
    assert_eq!(adopted.state, State::Frozen);
    let kept = plane
        .control
        .get_snapshot(&tenant, snapshot.id.as_str())
        .await
        .unwrap();
    assert_eq!(kept.sandbox, Some(wanted.clone()));
    let again = plane
        .control
        .adopt_quarantined(&plane.root, wanted.as_str(), None)
        .await;
    assert_eq!(again.unwrap_err().code, ErrorCode::Conflict);
    let owned = plane
        .control
        .delete_quarantined(&plane.root, wanted.as_str())
        .await;
    assert_eq!(owned.unwrap_err().code, ErrorCode::Conflict);

    plane
        .control
        .delete_quarantined(&plane.root, unwanted.as_str())
        .await
        .unwrap();
    assert!(listed(&plane).await.is_empty());
    assert!(!plane.runner.ids().contains(&unwanted));
    for missing in [unwanted.as_str(), "nonsense"] {
        let outcome = plane.control.delete_quarantined(&plane.root, missing).await;
        assert_eq!(outcome.unwrap_err().code, ErrorCode::NotFound);
    }
    plane.crash().await;
    let found = plane.control.get_sandbox(&tenant, wanted.as_str()).await;
    assert_eq!(found.unwrap().state, State::Frozen);
}

#[tokio::test]
async fn a_name_taken_meanwhile_does_not_keep_a_sandbox_from_being_adopted() {
    let mut plane = Plane::new().await;
    plane.sandbox("agent").await;
    let wanted = stray(&plane.runner, "agent").await;
    plane.crash().await;
    plane
        .control
        .adopt_quarantined(&plane.root, wanted.as_str(), None)
        .await
        .unwrap();
    let found = plane
        .control
        .get_sandbox(&plane.root, wanted.as_str())
        .await;
    assert_eq!(found.unwrap().spec.name, None);
}

#[tokio::test]
async fn a_tombstone_deletes_what_the_host_brings_back() {
    let mut plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    plane
        .control
        .delete_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    let request = CreateRequest {
        owner: None,
        id: made.id.clone(),
        spec: SandboxSpec::default(),
        from: None,
    };
    plane.runner.create(request).await.unwrap();
    plane.crash().await;
    assert!(plane.runner.ids().is_empty());
    assert!(listed(&plane).await.is_empty());
}

#[tokio::test]
async fn a_damaged_record_shows_as_failed_and_its_owner_gets_it_back_by_command() {
    let mut plane = Plane::new().await;
    let made = plane.sandbox("agent").await;
    plane
        .control
        .take_snapshot(&plane.root, "agent", TakeSnapshot::default())
        .await
        .unwrap();
    plane.runner.set_aside(&made.id, "its record is damaged");
    plane.crash().await;
    let shown = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(shown.state, State::Failed);
    assert_eq!(shown.reason.as_deref(), Some("its record is damaged"));
    assert_eq!(shown.spec.resources, made.spec.resources);
    let found = listed(&plane).await;
    assert_eq!(ids(&found), [made.id.as_str()]);
    assert_eq!(found[0].org.as_ref(), Some(&plane.root.org));
    plane
        .control
        .adopt_quarantined(&plane.root, made.id.as_str(), None)
        .await
        .unwrap();
    let back = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(back.state, State::Stopped);
    assert!(listed(&plane).await.is_empty());
    plane
        .control
        .start_sandbox(&plane.root, "agent")
        .await
        .unwrap();
}
