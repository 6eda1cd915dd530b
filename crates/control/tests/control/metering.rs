//! What is charged, across crashes and changes of state.

use std::time::Duration;

use cove_control::{Control, Period, Usage};
use cove_model::SandboxId;
use time::OffsetDateTime;

use crate::support::{Plane, wait};

const MIB: u64 = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);

fn ever() -> Period {
    Period {
        from: OffsetDateTime::UNIX_EPOCH,
        to: OffsetDateTime::from_unix_timestamp(4_000_000_000).unwrap(),
    }
}

async fn usage(plane: &Plane, id: &SandboxId) -> Usage {
    plane.store.usage_of(id).await.unwrap()
}

/// Waits until the figures of this very moment are in the database.
async fn metered(plane: &Plane, id: &SandboxId, cpu_usec: u64) {
    wait(|| async { (usage(plane, id).await.cpu_usec == cpu_usec).then_some(()) }).await;
}

#[tokio::test]
async fn a_life_between_two_rounds_is_charged_from_its_start() {
    let plane = Plane::new().await;
    for end in ["delete", "stop", "pause"] {
        let one = plane.sandbox(end).await;
        plane.runner.use_up(&one.id, |sample| {
            sample.memory_bytes = 100 * MIB;
            sample.disk_bytes = 10 * MIB;
        });
        plane.clock.advance(Duration::from_secs(5));
        let (control, root) = (&plane.control, &plane.root);
        match end {
            "stop" => drop(control.stop_sandbox(root, end, None).await.unwrap()),
            "pause" => drop(control.pause_sandbox(root, end).await.unwrap()),
            _ => control.delete_sandbox(root, end).await.unwrap(),
        }
        let used = usage(&plane, &one.id).await;
        assert_eq!(used.memory_mib_ms, 100 * 5_000, "{end}");
        assert_eq!(used.disk_mib_ms, 10 * 5_000, "{end}");
    }
}

#[tokio::test]
async fn charges_are_exact_across_crashes_and_only_while_they_cost() {
    let mut plane = Plane::new().await;
    plane.go();
    let one = plane.sandbox("agent").await;
    plane.runner.use_up(&one.id, |sample| {
        sample.cpu_usec = 1_000;
        sample.memory_bytes = 100 * MIB;
        sample.disk_bytes = 10 * MIB;
        sample.network_sent_bytes = 7;
    });
    plane.clock.advance(Duration::from_millis(1));
    metered(&plane, &one.id, 1_000).await;
    let start = usage(&plane, &one.id).await;

    // A minute passes while nobody watches: two control planes come and go.
    plane.halt().await;
    plane
        .runner
        .use_up(&one.id, |sample| sample.cpu_usec = 5_000);
    plane.clock.advance(MINUTE);
    plane.crash().await;
    plane.crash().await;
    plane.go();
    metered(&plane, &one.id, 5_000).await;
    let minute = usage(&plane, &one.id).await;
    assert_eq!(minute.memory_mib_ms - start.memory_mib_ms, 100 * 60_000);
    assert_eq!(minute.disk_mib_ms - start.disk_mib_ms, 10 * 60_000);
    assert_eq!(minute.egress_bytes, 7);

    // Stopped: the disk goes on, the memory does not.
    plane
        .control
        .stop_sandbox(&plane.root, "agent", None)
        .await
        .unwrap();
    plane.clock.advance(10 * MINUTE);
    plane
        .control
        .start_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    let disk = minute.disk_mib_ms + 10 * 600_000;
    wait(|| async { (usage(&plane, &one.id).await.disk_mib_ms == disk).then_some(()) }).await;
    assert_eq!(
        usage(&plane, &one.id).await.memory_mib_ms,
        minute.memory_mib_ms
    );

    // The last moments before a delete count too, and stay in the organisation's sum.
    plane
        .runner
        .use_up(&one.id, |sample| sample.cpu_usec = 9_999);
    plane.clock.advance(Duration::from_millis(1));
    plane
        .control
        .delete_sandbox(&plane.root, "agent")
        .await
        .unwrap();
    let last = usage(&plane, &one.id).await;
    assert_eq!(last.cpu_usec, 9_999);
    let of_org = plane.control.usage(&plane.root, ever()).await.unwrap();
    assert_eq!(of_org, last);
    let by_sandbox = plane
        .control
        .usage_by_sandbox(&plane.root, ever(), &Default::default())
        .await
        .unwrap();
    assert_eq!(by_sandbox.items.len(), 1);
    assert_eq!(by_sandbox.items[0].usage, last);
}

#[tokio::test]
async fn what_only_a_snapshot_holds_is_charged_while_it_exists() {
    let mut plane = Plane::new().await;
    plane.sandbox("agent").await;
    let disk = async |plane: &Plane| {
        let usage = plane.control.usage(&plane.root, ever()).await.unwrap();
        usage.disk_mib_ms
    };
    let request = cove_control::TakeSnapshot::default();
    let control = plane.control.clone();
    let taken = control.take_snapshot(&plane.root, "agent", request).await;
    let taken = taken.unwrap().snapshot;
    plane
        .runner
        .measure(&taken.id, |view| view.exclusive_bytes = 20 * MIB);
    plane.go();
    wait(|| async {
        let row = plane.store.any_snapshot(&taken.id).await.unwrap().unwrap();
        (row.facts.exclusive_bytes == 20 * MIB).then_some(())
    })
    .await;
    plane.halt().await;
    let before = disk(&plane).await;
    plane.clock.advance(MINUTE);
    let id = taken.id.as_str();
    control.delete_snapshot(&plane.root, id).await.unwrap();
    assert_eq!(disk(&plane).await - before, 20 * 60_000);
    plane.clock.advance(MINUTE);
    plane.go();
    control.delete_sandbox(&plane.root, "agent").await.unwrap();
    assert_eq!(disk(&plane).await - before, 20 * 60_000, "it is gone");
}

#[tokio::test]
async fn odd_periods_are_refused() {
    let plane = Plane::new().await;
    let backwards = Period {
        from: ever().to,
        to: ever().from,
    };
    let control: &Control = &plane.control;
    control.usage(&plane.root, backwards).await.unwrap_err();
    control
        .usage_by_sandbox(&plane.root, backwards, &Default::default())
        .await
        .unwrap_err();
}
