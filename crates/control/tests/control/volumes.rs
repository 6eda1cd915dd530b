//! Volumes of organisations: the row first, then the host, and nothing left of what failed.

use cove_control::testing::{Call, Fault};
use cove_control::{
    CreateSandbox, CreateVolume, ErrorCode, MountRequest, PageRequest, Principal, VolumeRecord,
};
use cove_model::SandboxSpec;
use cove_runner_api::{RunnerApi, RunnerError, VolumeRequest};

use crate::support::Plane;

fn named(name: &str) -> CreateVolume {
    CreateVolume {
        name: name.into(),
        size_mb: Some(64),
        ..CreateVolume::default()
    }
}

async fn make(plane: &Plane, who: &Principal, name: &str) -> VolumeRecord {
    let made = plane.control.create_volume(who, named(name)).await;
    made.unwrap().volume
}

async fn mount(
    plane: &Plane,
    who: &Principal,
    volume: &str,
) -> Result<cove_control::Created, cove_control::ControlError> {
    let asked = MountRequest {
        volume: volume.into(),
        path: "/data".into(),
        read_only: false,
    };
    let volumes = plane.control.mounts(who, vec![asked]).await?;
    let request = CreateSandbox {
        spec: SandboxSpec {
            volumes,
            ..SandboxSpec::default()
        },
        asked: None,
        idempotency_key: None,
        from: None,
    };
    plane.control.create_sandbox(who, request).await
}

async fn names(plane: &Plane, who: &Principal) -> Vec<String> {
    let page = PageRequest::default();
    let found = plane.control.list_volumes(who, &page).await.unwrap();
    found.items.into_iter().map(|row| row.name).collect()
}

#[tokio::test]
async fn another_organisation_can_neither_see_nor_mount_nor_delete_nor_copy_it() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("other", None).await;
    let volume = make(&plane, &plane.root, "data").await;
    assert!(names(&plane, &tenant).await.is_empty());
    for which in [volume.id.as_str(), "data"] {
        let control = &plane.control;
        let refusals = [
            control.get_volume(&tenant, which).await.err(),
            control.delete_volume(&tenant, which).await.err(),
            mount(&plane, &tenant, which).await.err(),
            control
                .volume_files(&tenant, which, cove_control::GuestAction::FileRead)
                .await
                .err(),
            control
                .create_volume(
                    &tenant,
                    CreateVolume {
                        from: Some(which.into()),
                        ..named("stolen")
                    },
                )
                .await
                .err(),
        ];
        for refusal in refusals {
            assert_eq!(refusal.expect("refused").code, ErrorCode::NotFound);
        }
    }
    // A spec that names it by id is looked at again when the row is written.
    make(&plane, &tenant, "data").await;
    assert_eq!(names(&plane, &tenant).await, ["data"]);
    plane.control.get_volume(&plane.root, "data").await.unwrap();
}

#[tokio::test]
async fn a_mounted_volume_is_not_deleted_and_says_who_mounts_it() {
    let plane = Plane::new().await;
    let volume = make(&plane, &plane.root, "data").await;
    let made = mount(&plane, &plane.root, "data").await.unwrap().sandbox;
    let (_, users) = plane.control.get_volume(&plane.root, "data").await.unwrap();
    assert_eq!(users[0].id, made.id);
    let refused = plane.control.delete_volume(&plane.root, "data").await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InUse);
    assert!(refused.message.contains(made.id.as_str()), "{refused}");
    let id = made.id.as_str();
    plane.control.delete_sandbox(&plane.root, id).await.unwrap();
    plane
        .control
        .delete_volume(&plane.root, "data")
        .await
        .unwrap();
    assert!(plane.runner.volumes().await.unwrap().is_empty());
    let gone = mount(&plane, &plane.root, volume.id.as_str()).await;
    assert_eq!(gone.unwrap_err().code, ErrorCode::NotFound);
}

#[tokio::test]
async fn a_volume_that_the_host_refuses_leaves_nothing() {
    let plane = Plane::new().await;
    let refusal = RunnerError::NoCapacity {
        resource: "disk".into(),
        message: "full".into(),
    };
    plane
        .runner
        .inject(Call::CreateVolume, Fault::Refuse(refusal));
    let refused = plane
        .control
        .create_volume(&plane.root, named("data"))
        .await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::NoCapacity);
    make(&plane, &plane.root, "data").await;
    for (name, size_mb) in [
        ("Data", Some(64)),
        ("data", Some(64)),
        ("x", Some(1)),
        ("", None),
    ] {
        let request = CreateVolume {
            size_mb,
            ..named(name)
        };
        plane
            .control
            .create_volume(&plane.root, request)
            .await
            .unwrap_err();
    }
    assert_eq!(names(&plane, &plane.root).await, ["data"]);
    let read_only = CreateVolume {
        read_only: true,
        ..named("kept")
    };
    let refused = plane.control.create_volume(&plane.root, read_only).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn what_was_cut_short_is_finished_or_undone_and_the_unknown_is_kept() {
    let mut plane = Plane::new().await;
    let kept = make(&plane, &plane.root, "kept").await;
    // Its end is written down, and the host does not answer.
    plane
        .runner
        .inject(Call::DeleteVolume, Fault::unreachable());
    plane
        .control
        .delete_volume(&plane.root, "kept")
        .await
        .unwrap_err();
    assert!(names(&plane, &plane.root).await.is_empty());
    // Nobody has a row for this one.
    let stray = VolumeRequest {
        id: cove_model::VolumeId::random(),
        owner: "org_elsewhere".into(),
        size_mb: 32,
        from: None,
        read_only: false,
    };
    plane.runner.create_volume(stray.clone()).await.unwrap();
    plane.crash().await;
    let there: Vec<_> = plane.runner.volumes().await.unwrap();
    assert_eq!(
        there.len(),
        1,
        "{kept:?} is deleted, the unknown one is not"
    );
    let listed = plane.control.list_quarantine(&plane.root).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].id.as_str(), stray.id.as_str());
    let id = stray.id.as_str();
    plane
        .control
        .adopt_quarantined(&plane.root, id, None)
        .await
        .unwrap();
    assert_eq!(names(&plane, &plane.root).await, [id.replace('_', "-")]);
    plane.control.delete_volume(&plane.root, id).await.unwrap();
    // A tombstone is what deletes: the same volume turning up again goes at once.
    plane.runner.create_volume(stray).await.unwrap();
    plane.crash().await;
    assert!(plane.runner.volumes().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_answer_that_was_lost_is_found_again_by_the_same_key() {
    let plane = Plane::new().await;
    plane.runner.inject(Call::CreateVolume, Fault::LoseAnswer);
    let request = || CreateVolume {
        idempotency_key: Some("once".into()),
        ..named("data")
    };
    plane
        .control
        .create_volume(&plane.root, request())
        .await
        .unwrap_err();
    let again = plane
        .control
        .create_volume(&plane.root, request())
        .await
        .unwrap();
    assert!(again.replayed);
    assert_eq!(names(&plane, &plane.root).await, ["data"]);
    assert_eq!(plane.runner.volumes().await.unwrap().len(), 1);
}

/// A create whose answer was lost may have been finished by its repetition, or by nobody.
#[tokio::test]
async fn one_that_is_being_made_becomes_ready_or_goes_as_its_host_says() {
    let mut plane = Plane::new().await;
    // The host has it, and nobody was told.
    plane.runner.inject(Call::CreateVolume, Fault::LoseAnswer);
    let lost = plane.control.create_volume(&plane.root, named("made"));
    lost.await.unwrap_err();
    // The host was never asked.
    plane
        .runner
        .inject(Call::CreateVolume, Fault::unreachable());
    let never = plane.control.create_volume(&plane.root, named("never"));
    never.await.unwrap_err();
    plane.crash().await;
    assert_eq!(names(&plane, &plane.root).await, ["made"]);
    // Its name and its quota are free again.
    make(&plane, &plane.root, "never").await;
    assert_eq!(plane.runner.volumes().await.unwrap().len(), 2);
}

#[tokio::test]
async fn one_that_the_host_finds_in_use_stays() {
    let plane = Plane::new().await;
    let volume = make(&plane, &plane.root, "data").await;
    let refusal = RunnerError::InUse {
        message: "a sandbox in quarantine mounts it".into(),
    };
    plane
        .runner
        .inject(Call::DeleteVolume, Fault::Refuse(refusal));
    let refused = plane.control.delete_volume(&plane.root, "data").await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::InUse);
    let (found, _) = plane.control.get_volume(&plane.root, "data").await.unwrap();
    assert_eq!(found.id, volume.id);
    mount(&plane, &plane.root, "data").await.unwrap();
}

/// Sandboxes are settled although volumes cannot be listed.
#[tokio::test]
async fn volumes_that_cannot_be_listed_do_not_keep_sandboxes_from_being_settled() {
    let mut plane = Plane::new().await;
    let made = plane.sandbox("lost").await;
    plane
        .runner
        .delete(&made.id)
        .await
        .expect("the host loses it");
    let broken = RunnerError::Internal {
        message: "a broken volume".into(),
    };
    plane.runner.inject(Call::Volumes, Fault::Refuse(broken));
    plane.crash().await;
    plane
        .wait_for(made.id.as_str(), cove_model::State::Failed)
        .await;
}
