//! What the control plane remembers of sandboxes that are gone: nothing.

use std::time::Duration;

use cove_control::testing::{GuestKind, ScriptedGuest};
use cove_control::{ForkRequest, GuestAction, TakeSnapshot};
use cove_model::{AutoSnapshot, IdlePolicy, SandboxSpec};

use crate::support::{Plane, named, wait};

const SANDBOXES: usize = 300;
/// Locks that nobody holds are thrown out only above a number.
const LOCKS_MAX: usize = 257;

#[tokio::test]
async fn tables_are_empty_again_when_sandboxes_are_gone() {
    let mut plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    plane.go();
    let lifecycle = IdlePolicy {
        freeze_after_s: Some(60),
        pause_after_s: Some(120),
        delete_after_s: Some(100_000),
        auto_snapshot: Some(AutoSnapshot {
            every_s: Some(60),
            ..AutoSnapshot::default()
        }),
        ..IdlePolicy::default()
    };
    let (control, root) = (plane.control.clone(), plane.root.clone());
    for number in 0..SANDBOXES {
        let name = format!("box-{number}");
        let spec = SandboxSpec {
            lifecycle: match number % 2 {
                0 => lifecycle.clone(),
                _ => IdlePolicy::default(),
            },
            ..named(&name)
        };
        plane.create(&root, spec).await.unwrap();
        let access = control.guest(&root, &name, GuestAction::Exec).await;
        drop(access.unwrap());
        if number % 50 == 0 {
            plane.clock.advance(Duration::from_secs(70));
            control.pause_sandbox(&root, &name).await.unwrap();
            let request = TakeSnapshot::default();
            control.take_snapshot(&root, &name, request).await.unwrap();
            let forked = control.fork_sandbox(&root, &name, ForkRequest::default());
            forked.await.unwrap();
        }
    }
    for sandbox in plane.all(&root).await {
        control
            .delete_sandbox(&root, sandbox.id.as_str())
            .await
            .unwrap();
    }
    let left = |after_all: bool| {
        let sizes = control.table_sizes().into_iter();
        let left = sizes.filter(|(name, size)| match *name {
            "locks" | "context_locks" => *size > LOCKS_MAX,
            // Uses are written down now and then, at the end at the latest.
            "activity" => after_all && *size > 0,
            _ => *size > 0,
        });
        left.collect::<Vec<_>>()
    };
    wait(|| async { left(false).is_empty().then_some(()) }).await;
    plane.halt().await;
    assert_eq!(left(true), []);
}
