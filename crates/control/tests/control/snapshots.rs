//! Snapshots, forks, rollbacks and what a crash leaves of them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use cove_control::testing::{Call, Fault, GuestKind, ScriptedGuest};
use cove_control::{
    Children, CommandRequest, CreateSandbox, ErrorCode, ForkRequest, FromSnapshot, PageRequest,
    Principal, Quota, SandboxPatch, Scope, SnapshotKind, SnapshotRecord, Source, TakeSnapshot,
};
use cove_model::{AutoSnapshot, IdlePolicy, NetworkMode, SandboxSpec, SnapshotId, State};
use cove_runner_api::{GuestStream, RunnerError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use crate::support::{Plane, named, sized, wait};

fn called(name: &str) -> TakeSnapshot {
    TakeSnapshot {
        name: Some(name.into()),
        ..TakeSnapshot::default()
    }
}

fn forks(count: u32) -> ForkRequest {
    ForkRequest {
        count,
        ..ForkRequest::default()
    }
}

async fn take(plane: &Plane, which: &str, name: &str) -> SnapshotRecord {
    let taken = plane
        .control
        .take_snapshot(&plane.root, which, called(name))
        .await;
    taken.unwrap().snapshot
}

async fn listed(plane: &Plane, principal: &Principal) -> Vec<SnapshotRecord> {
    let page = PageRequest::default();
    let found = plane.control.list_snapshots(principal, None, &page).await;
    found.unwrap().items
}

async fn disk_used(plane: &Plane, principal: &Principal) -> u64 {
    let org = plane.control.organisation(principal, None).await.unwrap();
    org.used.disk_mb
}

#[tokio::test]
async fn snapshots_have_names_lineage_and_sizes() {
    let plane = Plane::new().await;
    let one = plane.sandbox("agent").await;
    let first = take(&plane, "agent", "clean").await;
    assert_eq!((first.parent.clone(), first.memory), (None, false));
    assert_eq!(first.facts.exclusive_bytes, 3 << 20);
    plane.runner.write(&one.id);
    let second = take(&plane, "agent", "later").await;
    assert_eq!(second.parent, Some(first.id.clone()));
    let again = plane
        .control
        .take_snapshot(&plane.root, "agent", called("clean"))
        .await
        .unwrap_err();
    assert_eq!(again.code, ErrorCode::AlreadyExists);
    let by_name = plane.control.get_snapshot(&plane.root, "clean").await;
    assert_eq!(by_name.unwrap(), first);
    let ids: Vec<_> = listed(&plane, &plane.root).await;
    assert_eq!(ids.len(), 2);
    for bad in ["", "A", "-x", "a/b"] {
        let refused = plane
            .control
            .take_snapshot(&plane.root, "agent", called(bad))
            .await
            .unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRequest, "{bad:?}");
    }
    assert_eq!(plane.runner.snapshot_ids().len(), 2);
}

#[tokio::test]
async fn another_organisation_meets_none_of_it() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    let mine = take(&plane, "agent", "mine").await;
    let other = plane.tenant("other", None).await;
    plane.create(&other, named("agent")).await.unwrap();
    let control = &plane.control;
    for which in [mine.id.as_str(), "mine"] {
        let from = CreateSandbox {
            from: Some(FromSnapshot {
                snapshot: mine.id.clone(),
                memory: false,
            }),
            ..CreateSandbox::default()
        };
        let source = Source::Snapshot {
            snapshot: which.into(),
            memory: false,
        };
        for refused in [
            control.get_snapshot(&other, which).await.err(),
            control.delete_snapshot(&other, which).await.err(),
            control.export_snapshot(&other, which).await.err(),
            control.create_sandbox(&other, from).await.err(),
            control.base(&other, source).await.err(),
            control.fork_snapshot(&other, which, forks(1)).await.err(),
            control.image_from_snapshot(&other, which, "x").await.err(),
            control
                .rollback_sandbox(&other, "agent", which, false)
                .await
                .err(),
        ] {
            assert_eq!(refused.unwrap().code, ErrorCode::NotFound);
        }
    }
    assert!(listed(&plane, &other).await.is_empty());
    assert_eq!(plane.runner.snapshot_ids(), [mine.id]);
    // Names are each organisation's own.
    let theirs = control.take_snapshot(&other, "agent", called("mine")).await;
    theirs.unwrap();
}

#[tokio::test]
async fn scopes_hold_for_snapshots_too() {
    let plane = Plane::new().await;
    let tenant = plane.tenant("org", None).await;
    plane.create(&tenant, named("agent")).await.unwrap();
    let control = &plane.control;
    control
        .take_snapshot(&tenant, "agent", called("s"))
        .await
        .unwrap();
    let user = plane.key_of(&tenant.org, Scope::Use).await;
    for refused in [
        control
            .take_snapshot(&user, "agent", called("x"))
            .await
            .err(),
        control.delete_snapshot(&user, "s").await.err(),
        control.fork_sandbox(&user, "agent", forks(1)).await.err(),
        control
            .rollback_sandbox(&user, "agent", "s", false)
            .await
            .err(),
        control.image_from_snapshot(&user, "s", "x").await.err(),
    ] {
        assert_eq!(refused.unwrap().code, ErrorCode::Forbidden);
    }
    let reader = plane.key_of(&tenant.org, Scope::Read).await;
    control.timeline(&reader, "agent").await.unwrap();
    let refused = control.export_snapshot(&reader, "s").await.err().unwrap();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    control.export_snapshot(&user, "s").await.unwrap();
}

#[tokio::test]
async fn a_fork_pauses_its_parent_once_and_its_children_are_their_own() {
    let plane = Plane::new().await;
    let spec = SandboxSpec {
        env: BTreeMap::from([("A".into(), "b".into())]),
        labels: BTreeMap::from([("team".into(), "blue".into())]),
        ..named("parent")
    };
    let parent = plane.create(&plane.root, spec).await.unwrap().sandbox;
    // Settings changed since count, not those from before.
    let patch = SandboxPatch {
        labels: Some(BTreeMap::from([("team".into(), "red".into())])),
        ..SandboxPatch::default()
    };
    plane
        .control
        .update_sandbox(&plane.root, "parent", patch)
        .await
        .unwrap();
    let request = ForkRequest {
        children: Children {
            lease: None,
            name: Some("child".into()),
            labels: BTreeMap::from([("role".into(), "copy".into())]),
        },
        ..forks(20)
    };
    let made = plane
        .control
        .fork_sandbox(&plane.root, "parent", request)
        .await
        .unwrap();
    assert_eq!(plane.runner.count(Call::Snapshot, Some(&parent.id)), 1);
    let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    let ids: HashSet<_> = made.iter().map(|child| child.id.clone()).collect();
    assert_eq!((made.len(), ids.len()), (20, 20));
    for (index, child) in made.iter().enumerate() {
        assert_eq!(child.spec.name, Some(format!("child-{}", index + 1)));
        assert_eq!(child.spec.env["A"], "b");
        assert_eq!(child.spec.labels["team"], "red");
        assert_eq!(child.spec.labels["role"], "copy");
        assert_eq!(child.origin, made[0].origin);
    }
    let from = made[0].origin.clone().unwrap();
    // The point they grew from has done its work, and the tree still knows it.
    wait(|| async { plane.runner.snapshot_ids().is_empty().then_some(()) }).await;
    let tree = plane.control.timeline(&plane.root, "parent").await.unwrap();
    assert_eq!(tree.forks.len(), 20);
    assert!(tree.forks.iter().all(|fork| fork.from == from));
    assert_eq!(tree.snapshots.len(), 1);
    assert_eq!(tree.snapshots[0].kind, SnapshotKind::Fork);
    assert_eq!(tree.head, Some(from.clone()));
    let child = plane
        .control
        .timeline(&plane.root, "child-3")
        .await
        .unwrap();
    assert_eq!((child.origin, child.snapshots.len()), (Some(from), 1));
}

#[tokio::test]
async fn children_fail_one_by_one() {
    let plane = Plane::new().await;
    let parent = plane.create(&plane.root, sized(100)).await.unwrap().sandbox;
    plane.runner.limit_memory(350);
    let made = plane
        .control
        .fork_sandbox(&plane.root, parent.id.as_str(), forks(5))
        .await
        .unwrap();
    let failed: Vec<_> = made.iter().filter_map(|one| one.as_ref().err()).collect();
    assert_eq!(failed.len(), 3, "two times 100 MiB fit beside the parent");
    assert!(failed.iter().all(|e| e.code == ErrorCode::NoCapacity));
    assert_eq!(plane.all(&plane.root).await.len(), 3);
    for count in [0, 101] {
        let refused = plane
            .control
            .fork_sandbox(&plane.root, parent.id.as_str(), forks(count))
            .await
            .unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRequest);
    }
}

#[tokio::test]
async fn one_key_forks_once_and_a_retry_makes_only_the_children_that_are_missing() {
    let plane = Plane::new().await;
    let parent = plane.create(&plane.root, sized(100)).await.unwrap().sandbox;
    let id = parent.id.as_str();
    let request = || ForkRequest {
        idempotency_key: Some("k".into()),
        ..forks(4)
    };
    plane
        .runner
        .inject(Call::Create, Fault::Refuse(RunnerError::Unchanged));
    let control = &plane.control;
    let first = control.fork_sandbox(&plane.root, id, request()).await;
    let made: HashSet<_> = first
        .unwrap()
        .into_iter()
        .filter_map(|one| Some(one.ok()?.id))
        .collect();
    assert_eq!(made.len(), 3);
    let again = control.fork_sandbox(&plane.root, id, request()).await;
    let again: Vec<_> = again.unwrap();
    let same: HashSet<_> = again
        .iter()
        .filter_map(|one| Some(one.as_ref().ok()?.id.clone()))
        .collect();
    assert!(same.is_superset(&made));
    assert_eq!(plane.runner.count(Call::Snapshot, None), 1);
    let other = ForkRequest {
        count: 5,
        ..request()
    };
    let refused = control.fork_sandbox(&plane.root, id, other).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::IdempotencyKeyReused);
    let keyed = TakeSnapshot {
        idempotency_key: Some("s".into()),
        ..called("once")
    };
    let one = control.take_snapshot(&plane.root, id, keyed.clone()).await;
    let two = control.take_snapshot(&plane.root, id, keyed).await.unwrap();
    assert!(two.replayed);
    assert_eq!(one.unwrap().snapshot.id, two.snapshot.id);
}

#[tokio::test]
async fn a_rollback_keeps_what_was_and_can_be_undone() {
    let plane = Plane::new().await;
    let one = plane.sandbox("agent").await;
    let clean = take(&plane, "agent", "clean").await;
    let control = &plane.control;
    let patch = SandboxPatch {
        lifecycle: Some(IdlePolicy {
            stop_after_s: Some(77),
            ..IdlePolicy::default()
        }),
        ..SandboxPatch::default()
    };
    control
        .update_sandbox(&plane.root, "agent", patch)
        .await
        .unwrap();
    let done = control
        .rollback_sandbox(&plane.root, "agent", "clean", false)
        .await
        .unwrap();
    assert_eq!(done.sandbox.id, one.id);
    assert_eq!(done.sandbox.state, State::Running);
    // Settings are those of now.
    assert_eq!(done.sandbox.spec.lifecycle.stop_after_s, Some(77));
    assert_eq!(done.sandbox.head, Some(clean.id.clone()));
    assert_eq!(done.kept.kind, SnapshotKind::Rollback);
    assert_eq!(done.kept.rolled_back_to, Some(clean.id.clone()));
    assert_eq!(done.kept.parent, Some(clean.id.clone()));
    let undone = control
        .rollback_sandbox(&plane.root, "agent", done.kept.id.as_str(), false)
        .await
        .unwrap();
    assert_eq!(undone.sandbox.head, Some(done.kept.id));
    let refused = control
        .rollback_sandbox(&plane.root, "agent", "clean", true)
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidRequest);
    // A stopped one stays stopped.
    control
        .stop_sandbox(&plane.root, "agent", None)
        .await
        .unwrap();
    let done = control
        .rollback_sandbox(&plane.root, "agent", "clean", false)
        .await
        .unwrap();
    assert_eq!(done.sandbox.state, State::Stopped);
}

#[tokio::test]
async fn a_rollback_the_host_refuses_leaves_everything_as_it_was() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    let clean = take(&plane, "agent", "clean").await;
    let unfit = RunnerError::Unfit {
        message: "another CPU".into(),
    };
    plane.runner.inject(Call::Rollback, Fault::Refuse(unfit));
    let refused = plane
        .control
        .rollback_sandbox(&plane.root, "agent", "clean", false)
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::UnfitHost);
    let now = plane.control.get_sandbox(&plane.root, "agent").await;
    let now = now.unwrap();
    assert_eq!((now.state, now.head), (State::Running, Some(clean.id)));
    assert_eq!(listed(&plane, &plane.root).await.len(), 1);
}

#[tokio::test]
async fn a_name_means_a_snapshot_before_it_means_an_image() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    let clean = take(&plane, "agent", "clean").await;
    let base = |name: &str| {
        let name = name.to_owned();
        let source = Source::SnapshotOrImage { name, memory: true };
        plane.control.base(&plane.root, source)
    };
    let from = base("clean").await.unwrap().from.unwrap();
    // It has no memory, so that there is nothing to go on with.
    assert_eq!((from.snapshot, from.memory), (clean.id, false));
    let image = base("python:3").await.unwrap();
    assert!(image.from.is_none());
    assert_eq!(image.spec.image, "python:3");
    let none = plane.control.base(&plane.root, Source::Image(None)).await;
    assert_eq!(none.unwrap().spec, SandboxSpec::default());
}

#[tokio::test]
async fn a_new_sandbox_from_a_snapshot_has_its_defaults_but_not_its_reach() {
    let plane = Plane::new().await;
    let mut spec = sized(123);
    spec.name = Some("agent".into());
    spec.network.mode = NetworkMode::Open;
    spec.lifecycle.stop_after_s = Some(5);
    plane.create(&plane.root, spec).await.unwrap();
    let clean = take(&plane, "agent", "clean").await;
    let control = &plane.control;
    let base = |memory| {
        let snapshot = "clean".into();
        control.base(&plane.root, Source::Snapshot { snapshot, memory })
    };
    let found = base(false).await.unwrap();
    assert_eq!(found.from.as_ref().unwrap().snapshot, clean.id);
    let defaults = found.spec;
    assert_eq!(defaults.resources.memory_mb, 123);
    assert_eq!(defaults.network.mode, NetworkMode::None);
    assert_eq!(defaults.lifecycle, IdlePolicy::default());
    assert_eq!(defaults.name, None);
    let from = |memory| CreateSandbox {
        spec: defaults.clone(),
        from: Some(FromSnapshot {
            snapshot: clean.id.clone(),
            memory,
        }),
        ..CreateSandbox::default()
    };
    let made = control.create_sandbox(&plane.root, from(false)).await;
    assert_eq!(made.unwrap().sandbox.origin, Some(clean.id.clone()));
    let refused = control.create_sandbox(&plane.root, from(true)).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidRequest);
    assert_eq!(
        base(true).await.unwrap_err().code,
        ErrorCode::InvalidRequest
    );
}

#[tokio::test]
async fn snapshots_count_to_the_disk_quota_by_what_only_they_hold() {
    let mut plane = Plane::new().await;
    let quota = Quota {
        disk_mb: 105,
        ..Quota::default()
    };
    let tenant = plane.tenant("small", Some(quota)).await;
    let one = plane.create(&tenant, sized(100)).await.unwrap().sandbox;
    let id = one.id.as_str();
    let control = plane.control.clone();
    let taken = control.take_snapshot(&tenant, id, called("a")).await;
    let taken = taken.unwrap().snapshot;
    assert_eq!(disk_used(&plane, &tenant).await, 103);
    plane.go();
    plane
        .runner
        .measure(&taken.id, |view| view.exclusive_bytes = 50 << 20);
    wait(|| async { (disk_used(&plane, &tenant).await == 150).then_some(()) }).await;
    // What it shares with other snapshots alone is no less on the disk.
    plane.runner.measure(&taken.id, |view| {
        (view.exclusive_bytes, view.counted_bytes) = (20 << 20, 31 << 20);
    });
    wait(|| async { (disk_used(&plane, &tenant).await == 151).then_some(()) }).await;
    let refused = control.take_snapshot(&tenant, id, called("b")).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    assert!(refused.hint.unwrap().contains("snapshots"));
    control.delete_snapshot(&tenant, "a").await.unwrap();
    assert_eq!(disk_used(&plane, &tenant).await, 100);
    control
        .take_snapshot(&tenant, id, called("b"))
        .await
        .unwrap();
}

fn automatic(every_s: Option<u64>, before_exec: bool, keep: u32) -> SandboxSpec {
    let lifecycle = IdlePolicy {
        auto_snapshot: Some(AutoSnapshot {
            every_s,
            before_exec,
            keep,
        }),
        ..IdlePolicy::default()
    };
    SandboxSpec {
        lifecycle,
        ..named("agent")
    }
}

#[tokio::test]
async fn automatic_snapshots_keep_their_pace_skip_what_did_not_change_and_stay_few() {
    let mut plane = Plane::new().await;
    let spec = automatic(Some(60), false, 3);
    let one = plane.create(&plane.root, spec).await.unwrap().sandbox;
    take(&plane, "agent", "by-hand").await;
    plane.go();
    let tried = || plane.runner.count(Call::Snapshot, Some(&one.id));
    for round in 0..6 {
        plane.runner.write(&one.id);
        let before = tried();
        plane.clock.advance(Duration::from_secs(61));
        wait(|| async { (tried() > before).then_some(()) }).await;
        wait(|| async {
            let kept = listed(&plane, &plane.root).await;
            (kept.len() == (2 + round).min(4)).then_some(())
        })
        .await;
    }
    // Nothing was written: the host is asked, and nothing new comes of it.
    let before = tried();
    plane.clock.advance(Duration::from_secs(61));
    wait(|| async { (tried() > before).then_some(()) }).await;
    let kept = listed(&plane, &plane.root).await;
    let auto = kept.iter().filter(|row| row.kind == SnapshotKind::Auto);
    assert_eq!((kept.len(), auto.count()), (4, 3));
    assert!(kept.iter().any(|row| row.name.is_some()));
    // They go with their sandbox; what somebody asked for stays.
    plane
        .control
        .delete_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    wait(|| async { (listed(&plane, &plane.root).await.len() == 1).then_some(()) }).await;
    wait(|| async { (plane.runner.snapshot_ids().len() == 1).then_some(()) }).await;
}

#[tokio::test]
async fn a_snapshot_before_each_command_or_no_command() {
    let plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    let spec = automatic(None, true, 2);
    let one = plane.create(&plane.root, spec).await.unwrap().sandbox;
    let run = || {
        let command = CommandRequest::shell("true");
        plane.control.exec(&plane.root, "agent", command)
    };
    for _ in 0..4 {
        plane.runner.write(&one.id);
        run().await.unwrap();
    }
    run().await.unwrap();
    assert_eq!(listed(&plane, &plane.root).await.len(), 2);
    plane.runner.write(&one.id);
    let connects = plane.runner.count(Call::Connect, None);
    let full = RunnerError::NoCapacity {
        resource: "disk".into(),
        message: "full".into(),
    };
    plane.runner.inject(Call::Snapshot, Fault::Refuse(full));
    let refused = run().await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    assert!(refused.message.contains("not run"), "{refused}");
    assert_eq!(plane.runner.count(Call::Connect, None), connects);
}

#[tokio::test]
async fn a_snapshot_cut_off_before_the_host_heard_of_it_never_was() {
    let mut plane = Plane::new().await;
    plane.sandbox("agent").await;
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
    plane.crash().await;
    assert!(listed(&plane, &plane.root).await.is_empty());
    let before = disk_used(&plane, &plane.root).await;
    let taken = plane
        .control
        .take_snapshot(&plane.root, "agent", keyed)
        .await
        .unwrap();
    assert!(!taken.replayed);
    assert_eq!(disk_used(&plane, &plane.root).await, before + 3);
}

#[tokio::test]
async fn a_snapshot_whose_answer_got_lost_is_kept_and_a_deletion_is_carried_out() {
    let mut plane = Plane::new().await;
    plane.sandbox("agent").await;
    plane.runner.inject(Call::Snapshot, Fault::LoseAnswer);
    let keyed = TakeSnapshot {
        idempotency_key: Some("k".into()),
        ..called("clean")
    };
    let lost = plane
        .control
        .take_snapshot(&plane.root, "agent", keyed.clone())
        .await
        .unwrap_err();
    assert_eq!(lost.code, ErrorCode::RunnerUnreachable);
    plane.crash().await;
    let found = plane.control.get_snapshot(&plane.root, "clean").await;
    let found = found.unwrap();
    let now = plane.control.get_sandbox(&plane.root, "agent").await;
    assert_eq!(now.unwrap().head, Some(found.id.clone()));
    let again = plane
        .control
        .take_snapshot(&plane.root, "agent", keyed)
        .await
        .unwrap();
    assert_eq!((again.replayed, &again.snapshot.id), (true, &found.id));
    plane
        .runner
        .inject(Call::DeleteSnapshot, Fault::unreachable());
    plane
        .control
        .delete_snapshot(&plane.root, "clean")
        .await
        .unwrap_err();
    plane.crash().await;
    assert!(plane.runner.snapshot_ids().is_empty());
    assert!(listed(&plane, &plane.root).await.is_empty());
}

#[tokio::test]
async fn a_rollback_whose_answer_got_lost_stands_where_the_host_put_it() {
    let mut plane = Plane::new().await;
    plane.sandbox("agent").await;
    let clean = take(&plane, "agent", "clean").await;
    take(&plane, "agent", "later").await;
    plane.runner.inject(Call::Rollback, Fault::LoseAnswer);
    plane
        .control
        .rollback_sandbox(&plane.root, "agent", "clean", false)
        .await
        .unwrap_err();
    plane.crash().await;
    let now = plane.control.get_sandbox(&plane.root, "agent").await;
    let now = now.unwrap();
    assert_eq!((now.state, now.head), (State::Running, Some(clean.id)));
    let kinds: Vec<_> = listed(&plane, &plane.root).await;
    assert!(kinds.iter().any(|row| row.kind == SnapshotKind::Rollback));
}

#[tokio::test]
async fn what_the_host_lost_is_no_longer_listed_and_what_nobody_knows_is_kept() {
    let mut plane = Plane::new().await;
    let one = plane.sandbox("agent").await;
    let lost = take(&plane, "agent", "lost").await;
    plane.runner.lose_snapshot(&lost.id);
    use cove_runner_api::RunnerApi;
    let stray = cove_runner_api::SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: one.id.clone(),
        memory: false,
        unless_unchanged: false,
    };
    plane.runner.snapshot(stray.clone()).await.unwrap();
    // Deleted, and the host came back with it: the tombstone has it deleted again.
    let deleted = take(&plane, "agent", "deleted").await;
    plane
        .control
        .delete_snapshot(&plane.root, "deleted")
        .await
        .unwrap();
    let again = cove_runner_api::SnapshotRequest {
        id: deleted.id,
        ..stray.clone()
    };
    plane.runner.snapshot(again).await.unwrap();
    plane.crash().await;
    assert!(listed(&plane, &plane.root).await.is_empty());
    assert_eq!(plane.runner.snapshot_ids(), [stray.id]);
}

#[tokio::test]
async fn a_file_comes_back_as_a_snapshot_without_the_memory_nobody_vouches_for() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    let full = TakeSnapshot {
        memory: true,
        ..called("full")
    };
    plane
        .control
        .take_snapshot(&plane.root, "agent", full)
        .await
        .unwrap();
    let (_, mut stream) = plane
        .control
        .export_snapshot(&plane.root, "full")
        .await
        .unwrap();
    let mut file = Vec::new();
    stream.read_to_end(&mut file).await.unwrap();
    let send = async |bytes: &[u8], name: &str| {
        let (mut ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let bytes = bytes.to_vec();
        tokio::spawn(async move { ours.write_all(&bytes).await });
        plane
            .control
            .import_snapshot(&plane.root, Some(name.into()), GuestStream::Unix(theirs))
            .await
    };
    let imported = send(&file, "copy").await.unwrap();
    assert!(imported.memory_refused.unwrap().contains("signed"));
    assert!(!imported.snapshot.memory);
    assert_eq!(imported.snapshot.kind, SnapshotKind::Import);
    assert_eq!(imported.snapshot.sandbox, None);
    for forged in [&b"nonsense"[..], &file[..file.len() - 3]] {
        let refused = send(forged, "forged").await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRequest);
    }
    assert_eq!(listed(&plane, &plane.root).await.len(), 2);
    let taken = send(&file, "copy").await.unwrap_err();
    assert_eq!(taken.code, ErrorCode::AlreadyExists);
    assert_eq!(plane.runner.snapshot_ids().len(), 2);
}

#[tokio::test]
async fn an_image_from_a_snapshot_is_its_makers_alone() {
    let plane = Plane::new().await;
    let (one, two) = (
        plane.tenant("one", None).await,
        plane.tenant("two", None).await,
    );
    let control = &plane.control;
    for tenant in [&one, &two] {
        plane.create(tenant, named("agent")).await.unwrap();
        control
            .take_snapshot(tenant, "agent", called("s"))
            .await
            .unwrap();
    }
    // Nobody's image takes a name that is everybody's.
    let refused = control.image_from_snapshot(&one, "s", "debian").await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::AlreadyExists);
    control
        .image_from_snapshot(&one, "s", "template")
        .await
        .unwrap();
    let mine = control.get_image(&one, "template").await.unwrap();
    assert_eq!(
        control.get_image(&two, "template").await.unwrap_err().code,
        ErrorCode::NotFound
    );
    control
        .image_from_snapshot(&two, "s", "template")
        .await
        .unwrap();
    let theirs = control.get_image(&two, "template").await.unwrap();
    assert_ne!(mine.id, theirs.id);
    let spec = SandboxSpec {
        image: "template".into(),
        ..SandboxSpec::default()
    };
    let made = plane.create(&one, spec).await.unwrap().sandbox;
    assert_eq!(made.image, Some(mine.id));
}

#[tokio::test]
async fn a_snapshot_that_another_process_is_asking_for_is_left_alone_for_a_while() {
    let grace = Duration::from_secs(30);
    let config = cove_control::ControlConfig {
        snapshot_grace: grace,
        ..crate::support::quick()
    };
    let plane = Plane::with(config).await;
    let one = plane.sandbox("agent").await;
    let row = cove_store::SnapshotRecord {
        id: SnapshotId::random(),
        org: plane.root.org.clone(),
        host: one.host.clone(),
        name: None,
        sandbox: Some(one.id.clone()),
        parent: None,
        kind: cove_store::SnapshotKind::Manual,
        state: cove_store::SnapshotState::Making,
        memory: false,
        spec: one.spec.clone(),
        rolled_back_to: None,
        object_copy: cove_store::ObjectCopy::None,
        on_host: true,
        facts: cove_store::SnapshotFacts::default(),
        held_disk_mb: 1,
        created_at: cove_control::Clock::now(plane.clock.as_ref()),
        created_steady: plane.control.steady(),
        deleted_at: None,
    };
    plane.store.create_snapshot(&row, None).await.unwrap();
    plane.control.prepare().await.unwrap();
    let found = plane.store.any_snapshot(&row.id).await.unwrap();
    assert!(found.is_some(), "it was given up under its maker's hands");
    plane.clock.advance(grace);
    plane.control.prepare().await.unwrap();
    let found = plane.store.any_snapshot(&row.id).await.unwrap();
    assert!(found.is_none(), "nobody asks for it any more");
}
