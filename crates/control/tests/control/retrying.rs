//! Requests repeated after a failure, and requests that meet a sandbox on its way to another state.

use std::sync::Arc;
use std::time::Duration;

use cove_control::testing::{Call, Fault, GuestKind, ScriptedGuest};
use cove_control::{
    CreateSandbox, ErrorCode, ForkRequest, GuestAction, Holding, Quota, TakeSnapshot,
};
use cove_model::{SandboxSpec, State};
use tokio::sync::Semaphore;

use crate::support::{DEADLINE, Plane, named, quick, wait};

fn keyed(spec: SandboxSpec) -> CreateSandbox {
    CreateSandbox {
        spec,
        idempotency_key: Some("k".into()),
        ..CreateSandbox::default()
    }
}

/// The host dies during a create: nobody knows whether it was made, and it cannot be undone yet.
fn die(plane: &Plane, made: bool) {
    let fault = match made {
        true => Fault::LoseAnswer,
        false => Fault::unreachable(),
    };
    plane.runner.inject(Call::Create, fault);
    plane.runner.inject(Call::Delete, Fault::unreachable());
}

/// Repeats a create that was answered as failed, then lets the background work catch up: what the repeat
/// answered must still be there.
async fn repeat_and_settle(plane: &mut Plane) {
    let repeated = plane
        .control
        .create_sandbox(&plane.root, keyed(named("agent")))
        .await
        .unwrap();
    plane.go();
    let other = plane.sandbox("other").await.id;
    plane
        .control
        .delete_sandbox(&plane.root, other.as_str())
        .await
        .unwrap();
    wait(|| async {
        let sizes = plane.control.table_sizes();
        sizes.contains(&("stale", 0)).then_some(())
    })
    .await;
    let kept = plane
        .control
        .get_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    assert_eq!(
        (&kept.id, kept.state),
        (&repeated.sandbox.id, State::Running)
    );
    assert_eq!(plane.runner.ids(), [kept.id]);
}

/// A create that is answered as failed because its audit record cannot be written.
async fn fail_to_record(plane: &Plane) {
    plane.break_audit();
    let failed = plane
        .control
        .create_sandbox(&plane.root, keyed(named("agent")))
        .await;
    assert!(failed.is_err());
    plane.sql("DROP TRIGGER broken");
}

#[tokio::test]
async fn a_create_repeated_after_a_commit_without_an_answer_has_a_machine() {
    let mut plane = Plane::new().await;
    plane.sql(
        "CREATE TRIGGER no_row BEFORE UPDATE ON sandboxes \
         BEGIN SELECT RAISE(ABORT, 'broken on purpose'); END; \
         CREATE TRIGGER no_key BEFORE DELETE ON idempotency \
         BEGIN SELECT RAISE(ABORT, 'broken on purpose'); END",
    );
    let failed = plane
        .control
        .create_sandbox(&plane.root, keyed(named("agent")))
        .await;
    assert!(failed.is_err());
    // The connection broke while the row was committed as running: it is there, and nobody heard.
    plane.sql(
        "DROP TRIGGER no_row; DROP TRIGGER no_key; \
         UPDATE sandboxes SET state = 'running', started_at = created_at",
    );
    repeat_and_settle(&mut plane).await;
}

#[tokio::test]
async fn a_create_repeated_after_its_record_could_not_be_written_keeps_its_sandbox() {
    let mut plane = Plane::new().await;
    fail_to_record(&plane).await;
    repeat_and_settle(&mut plane).await;
}

#[tokio::test]
async fn a_create_whose_record_could_not_be_written_leaves_its_key_free() {
    let mut plane = Plane::new().await;
    fail_to_record(&plane).await;
    plane.go();
    plane.wait_gone("agent").await;
    let repeated = plane
        .control
        .create_sandbox(&plane.root, keyed(named("agent")))
        .await
        .unwrap();
    assert!(!repeated.replayed);
}

#[tokio::test]
async fn a_create_repeated_after_the_host_died_makes_it_and_is_never_a_conflict() {
    for made in [false, true] {
        let plane = Plane::new().await;
        let quota = Quota {
            sandboxes: 1,
            ..Quota::default()
        };
        let tenant = plane.tenant("small", Some(quota)).await;
        let create = || {
            let request = keyed(named("agent"));
            plane.control.create_sandbox(&tenant, request)
        };
        die(&plane, made);
        assert_eq!(
            create().await.unwrap_err().code,
            ErrorCode::RunnerUnreachable
        );
        // The host is still down.
        plane.runner.inject(Call::Delete, Fault::unreachable());
        assert_eq!(
            create().await.unwrap_err().code,
            ErrorCode::RunnerUnreachable
        );
        let done = create().await.unwrap();
        assert_eq!((done.replayed, done.sandbox.state), (false, State::Running));
        assert_eq!(plane.runner.ids(), std::slice::from_ref(&done.sandbox.id));
        assert_eq!(plane.all(&tenant).await.len(), 1);
        let again = create().await.unwrap();
        assert_eq!((again.replayed, again.sandbox.id), (true, done.sandbox.id));
    }
}

#[tokio::test]
async fn a_quota_held_by_a_failed_create_is_free_for_the_next_try() {
    let plane = Plane::new().await;
    let quota = Quota {
        sandboxes: 1,
        ..Quota::default()
    };
    let tenant = plane.tenant("small", Some(quota)).await;
    die(&plane, true);
    let spec = SandboxSpec::default();
    let failed = plane.create(&tenant, spec.clone()).await.unwrap_err();
    assert_eq!(failed.code, ErrorCode::RunnerUnreachable);
    plane.create(&tenant, spec.clone()).await.unwrap();
    let full = plane.create(&tenant, spec).await.unwrap_err();
    assert_eq!(full.code, ErrorCode::QuotaExceeded);
}

#[tokio::test]
async fn children_of_a_fork_that_were_answered_as_failed_are_gone() {
    let mut plane = Plane::new().await;
    plane.go();
    let parent = plane.sandbox("parent").await;
    die(&plane, true);
    let request = ForkRequest {
        count: 3,
        ..ForkRequest::default()
    };
    let forked = plane.control.fork_sandbox(&plane.root, "parent", request);
    let children = forked.await.unwrap();
    let mut told: Vec<_> = children
        .iter()
        .filter_map(|child| Some(child.as_ref().ok()?.id.clone()))
        .chain([parent.id])
        .collect();
    assert_eq!(told.len(), 3);
    told.sort();
    wait(|| async {
        let all = plane.all(&plane.root).await;
        (plane.runner.ids() == told && all.len() == 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_repeated_fork_makes_the_children_that_are_missing() {
    let plane = Plane::new().await;
    plane.sandbox("parent").await;
    let fork = || {
        let request = ForkRequest {
            count: 3,
            idempotency_key: Some("k".into()),
            ..ForkRequest::default()
        };
        plane.control.fork_sandbox(&plane.root, "parent", request)
    };
    die(&plane, true);
    let first = fork().await.unwrap();
    assert_eq!(first.iter().filter(|child| child.is_err()).count(), 1);
    let second = fork().await.unwrap();
    for (before, now) in first.iter().zip(&second) {
        let now = now.as_ref().unwrap();
        if let Ok(before) = before {
            assert_eq!(before.id, now.id);
        }
    }
    wait(|| async { (plane.runner.snapshot_ids().is_empty()).then_some(()) }).await;
}

/// The database takes no audit records.
struct Unwritable(rusqlite::Connection);

impl Unwritable {
    fn begin(plane: &Plane) -> Self {
        let connection = rusqlite::Connection::open(plane.database()).unwrap();
        connection.busy_timeout(DEADLINE).unwrap();
        let trigger = "CREATE TRIGGER no_audit BEFORE INSERT ON audit BEGIN \
                       SELECT RAISE(ABORT, 'as the test asked'); END";
        connection.execute_batch(trigger).unwrap();
        Self(connection)
    }

    fn end(self) {
        self.0.execute_batch("DROP TRIGGER no_audit").unwrap();
    }
}

#[tokio::test]
async fn a_create_that_cannot_be_written_down_is_answered_as_failed_and_gone() {
    let mut plane = Plane::new().await;
    plane.go();
    let parent = plane.sandbox("parent").await;
    let unwritable = Unwritable::begin(&plane);
    plane.create(&plane.root, named("agent")).await.unwrap_err();
    let forked = plane
        .control
        .fork_sandbox(&plane.root, "parent", ForkRequest::default());
    forked.await.unwrap_err();
    unwritable.end();
    wait(|| async {
        let all = plane.all(&plane.root).await;
        (plane.runner.ids() == [parent.id.clone()] && all.len() == 1).then_some(())
    })
    .await;
    plane.sandbox("agent").await;
}

fn closed() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(0))
}

#[tokio::test]
async fn whoever_comes_while_a_sandbox_is_being_made_waits_for_it() {
    let plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    let gate = closed();
    plane.runner.inject(Call::Create, Fault::Hold(gate.clone()));
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let making = tokio::spawn(async move {
        let request = CreateSandbox {
            spec: named("agent"),
            ..CreateSandbox::default()
        };
        control.create_sandbox(&root, request).await
    });
    wait(|| async { (plane.runner.count(Call::Create, None) == 1).then_some(()) }).await;
    let id = plane.all(&plane.root).await.remove(0).id;
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let using = tokio::spawn(async move {
        let access = control.guest(&root, "agent", GuestAction::Exec).await;
        access.map(drop)
    });
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let stopping =
        tokio::spawn(async move { control.stop_sandbox(&root, id.as_str(), None).await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!using.is_finished() && !stopping.is_finished());
    gate.add_permits(1);
    making.await.unwrap().unwrap();
    // The command may come before or after the stop; it never meets a sandbox that is half made.
    if let Err(error) = using.await.unwrap() {
        assert!(error.message.contains("stopped"), "{error}");
    }
    assert_eq!(stopping.await.unwrap().unwrap().state, State::Stopped);
}

#[tokio::test]
async fn pauses_and_resumes_at_the_same_time_take_turns() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    let gate = closed();
    plane.runner.inject(Call::Pause, Fault::Hold(gate.clone()));
    let pause = || {
        let (control, root) = (plane.control.clone(), plane.root.clone());
        tokio::spawn(async move { control.pause_sandbox(&root, "agent").await })
    };
    let first = pause();
    wait(|| async { (plane.runner.count(Call::Pause, None) == 1).then_some(()) }).await;
    let second = pause();
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let resumed = tokio::spawn(async move { control.resume_sandbox(&root, "agent").await });
    gate.add_permits(1);
    assert_eq!(first.await.unwrap().unwrap().state, State::Paused);
    second.await.unwrap().unwrap();
    resumed.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_state_that_a_dead_process_left_is_waited_for_and_then_told() {
    let mut plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    let one = plane.sandbox("agent").await;
    for passing in [State::Pausing, State::Resuming, State::Restoring] {
        plane.runner.set_state(&one.id, passing, None);
        plane.crash().await;
        let row = plane.control.get_sandbox(&plane.root, "agent").await;
        assert_eq!(row.unwrap().state, passing);
        let (control, root) = (plane.control.clone(), plane.root.clone());
        let using = tokio::spawn(async move {
            let access = control.guest(&root, "agent", GuestAction::Exec).await;
            access.map(drop)
        });
        let asked = plane.runner.count(Call::Get, Some(&one.id));
        wait(|| async { (plane.runner.count(Call::Get, Some(&one.id)) > asked).then_some(()) })
            .await;
        plane.runner.set_state(&one.id, State::Running, None);
        using.await.unwrap().unwrap();
    }
    // What never ends is reported as such, after a bounded wait.
    plane.runner.set_state(&one.id, State::Pausing, None);
    plane
        .crash_with(|config| config.change_wait = Duration::from_secs(1))
        .await;
    let busy = plane.control.stop_sandbox(&plane.root, "agent", None).await;
    let busy = busy.unwrap_err();
    assert_eq!(
        (busy.code, busy.retry_after_s),
        (ErrorCode::Conflict, Some(1))
    );
}

#[tokio::test]
async fn what_is_still_to_be_deleted_does_not_exist_for_callers() {
    let plane = Plane::new().await;
    plane.sandbox("agent").await;
    plane.runner.inject(Call::Delete, Fault::unreachable());
    let delete = plane.control.delete_sandbox(&plane.root, "agent");
    assert_eq!(delete.await.unwrap_err().code, ErrorCode::RunnerUnreachable);
    plane.runner.inject(Call::Delete, Fault::unreachable());
    let start = || plane.control.start_sandbox(&plane.root, "agent");
    assert_eq!(
        start().await.unwrap_err().code,
        ErrorCode::RunnerUnreachable
    );
    assert_eq!(start().await.unwrap_err().code, ErrorCode::NotFound);
    let org = plane.control.organisation(&plane.root, None).await;
    assert_eq!(org.unwrap().used, Holding::nothing());
}

#[tokio::test]
async fn a_snapshot_that_is_being_made_is_waited_for() {
    let plane = Plane::with(quick()).await;
    plane.sandbox("agent").await;
    let gate = closed();
    plane
        .runner
        .inject(Call::Snapshot, Fault::Hold(gate.clone()));
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let taking = tokio::spawn(async move {
        let request = TakeSnapshot {
            name: Some("clean".into()),
            ..TakeSnapshot::default()
        };
        control.take_snapshot(&root, "agent", request).await
    });
    wait(|| async { (plane.runner.count(Call::Snapshot, None) == 1).then_some(()) }).await;
    let (control, root) = (plane.control.clone(), plane.root.clone());
    let finding = tokio::spawn(async move { control.get_snapshot(&root, "clean").await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!finding.is_finished());
    gate.add_permits(1);
    let taken = taking.await.unwrap().unwrap().snapshot;
    assert_eq!(finding.await.unwrap().unwrap().id, taken.id);
}
