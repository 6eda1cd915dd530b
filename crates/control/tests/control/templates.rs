//! Templates over the host's snapshots: what they keep counts, and what they cannot begin from is said.

use cove_control::{
    CreateTemplate, CreatedTemplate, ErrorCode, PageRequest, Principal, Quota, SnapshotKind,
    SnapshotRecord, Source, TakeSnapshot,
};
use cove_model::SandboxSpec;
use cove_runner_api::GuestStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Plane, sized, wait};

async fn disk_used(plane: &Plane, principal: &Principal) -> u64 {
    let org = plane.control.organisation(principal, None).await.unwrap();
    org.used.disk_mb
}

async fn taken(plane: &Plane, principal: &Principal, memory: bool) -> SnapshotRecord {
    let spec = SandboxSpec {
        workdir: Some("/srv".into()),
        ..sized(100)
    };
    let one = plane.create(principal, spec).await.unwrap().sandbox;
    let take = TakeSnapshot {
        memory,
        ..TakeSnapshot::default()
    };
    let control = &plane.control;
    let taken = control
        .take_snapshot(principal, one.id.as_str(), take)
        .await;
    taken.unwrap().snapshot
}

async fn template(
    plane: &Plane,
    principal: &Principal,
    name: &str,
    snapshot: &str,
    memory: bool,
) -> Result<CreatedTemplate, cove_control::ControlError> {
    let request = CreateTemplate {
        name: name.into(),
        snapshot: snapshot.into(),
        memory,
        tags: Vec::new(),
        config: None,
        idempotency_key: None,
    };
    let control = &plane.control;
    control.create_template(principal, request, Ok).await
}

#[tokio::test]
async fn an_automatic_snapshot_that_a_template_keeps_counts_when_its_sandbox_is_gone() {
    let mut plane = Plane::new().await;
    let tenant = plane.tenant("small", None).await;
    plane.go();
    for kind in [
        SnapshotKind::Auto,
        SnapshotKind::Fork,
        SnapshotKind::Rollback,
    ] {
        let snapshot = taken(&plane, &tenant, false).await;
        let (name, id) = (kind.as_str(), &snapshot.id);
        plane.sql(&format!(
            "UPDATE snapshots SET kind = '{name}' WHERE id = '{id}'"
        ));
        let made = template(&plane, &tenant, name, id.as_str(), false).await;
        assert_eq!(made.unwrap().template.version, 1);
        let sandbox = snapshot.sandbox.unwrap();
        let control = &plane.control;
        control
            .delete_sandbox(&tenant, sandbox.as_str())
            .await
            .unwrap();
        // The blocks that it shared with its sandbox are its own now.
        plane
            .runner
            .measure(id, |view| view.exclusive_bytes = 50 << 20);
        wait(|| async { (disk_used(&plane, &tenant).await == 50).then_some(()) }).await;
        control.delete_template(&tenant, name, false).await.unwrap();
        wait(|| async { plane.runner.snapshot_ids().is_empty().then_some(()) }).await;
        wait(|| async { (disk_used(&plane, &tenant).await == 0).then_some(()) }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_is_not_a_templates_before_it_is_known_to_stay() {
    let plane = Plane::new().await;
    let quota = Quota {
        disk_mb: 102,
        ..Quota::default()
    };
    let large = plane.tenant("large", None).await;
    let small = plane.tenant("small", Some(quota)).await;
    let snapshot = taken(&plane, &large, false).await;
    let control = &plane.control;
    let (_, mut stream) = control
        .export_snapshot(&large, snapshot.id.as_str())
        .await
        .unwrap();
    let mut file = Vec::new();
    stream.read_to_end(&mut file).await.unwrap();
    let import = async |principal: &Principal| {
        let (mut ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let bytes = file.clone();
        tokio::spawn(async move { ours.write_all(&bytes).await });
        let theirs = GuestStream::Unix(theirs);
        control
            .import_snapshot(principal, Some("copy".into()), theirs)
            .await
    };
    let pinning = async |principal: &Principal| {
        let many = (0..50).map(|number| {
            let (plane, name) = (&plane, format!("t{number}"));
            async move { template(plane, principal, &name, "copy", false).await }
        });
        futures_util::future::join_all(many).await
    };
    // All of the quota but what an unmeasured import needs is used.
    plane.create(&small, sized(100)).await.unwrap();
    for _ in 0..20 {
        let (imported, _) = tokio::join!(import(&small), pinning(&small));
        assert_eq!(imported.unwrap_err().code, ErrorCode::QuotaExceeded);
        let page = PageRequest::default();
        let pinned = control.list_templates(&small, None, &page).await.unwrap();
        assert!(pinned.items.is_empty());
        wait(|| async { (disk_used(&plane, &small).await == 100).then_some(()) }).await;
    }
    let (imported, pinned) = tokio::join!(import(&large), pinning(&large));
    assert_eq!(
        imported.unwrap().snapshot.spec.workdir.as_deref(),
        Some("/srv")
    );
    for pinned in pinned.into_iter().flatten() {
        assert_eq!(pinned.template.spec.workdir.as_deref(), Some("/srv"));
    }
}

#[tokio::test]
async fn a_version_that_nothing_can_begin_from_is_refused_or_called_lost() {
    let mut plane = Plane::new().await;
    let root = plane.root.clone();
    let full = taken(&plane, &root, true).await;
    template(&plane, &root, "web", full.id.as_str(), true)
        .await
        .unwrap();
    plane.go();
    let control = plane.control.clone();
    let why = Some("it needs another kernel".to_owned());
    plane
        .runner
        .measure(&full.id, |view| view.unfit = why.clone());
    wait(|| async {
        let row = control.get_snapshot(&root, full.id.as_str()).await.unwrap();
        (row.facts.unfit == why).then_some(())
    })
    .await;
    let refused = template(&plane, &root, "web", full.id.as_str(), true).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidRequest);
    assert!(refused.message.contains("another kernel"), "{refused}");
    template(&plane, &root, "web", full.id.as_str(), false)
        .await
        .unwrap();

    let source = || Source::Template("web".into());
    control.base(&root, source()).await.unwrap();
    plane.runner.lose_snapshot(&full.id);
    wait(|| async {
        control
            .get_template(&root, "web")
            .await
            .unwrap()
            .lost
            .then_some(())
    })
    .await;
    let lost = control.base(&root, source()).await.unwrap_err();
    assert_eq!(lost.code, ErrorCode::NotFound);
    assert!(lost.hint.unwrap().contains("web:2"));
    control.delete_template(&root, "web", true).await.unwrap();
}
