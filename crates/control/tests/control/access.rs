//! Into a sandbox: defaults, states, limits.

use std::collections::BTreeMap;

use bytes::Bytes;
use cove_control::testing::{Call, Fault, GuestKind, ScriptedGuest};
use cove_control::{CommandLine, CommandRequest, ErrorCode, GuestAction};
use cove_model::SandboxSpec;
use cove_protocol::message::ProcessKind;

use crate::support::{Plane, named, wait};

async fn plane() -> Plane {
    let plane = Plane::new().await;
    plane
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    plane
}

#[tokio::test]
async fn a_command_gets_the_images_the_specs_and_its_own_settings_in_this_order() {
    let plane = plane().await;
    let spec = SandboxSpec {
        env: BTreeMap::from([
            ("PATH".into(), "/spec/bin".into()),
            ("A".into(), "spec".into()),
        ]),
        user: Some("agent".into()),
        ..named("agent")
    };
    plane.create(&plane.root, spec).await.unwrap();
    let access = plane
        .control
        .guest(&plane.root, "agent", GuestAction::Exec)
        .await
        .unwrap();
    let request = CommandRequest {
        env: BTreeMap::from([("A".into(), "request".into())]),
        ..CommandRequest::shell("env")
    };
    let start = access.command(request.clone()).unwrap();
    assert_eq!(start.env, ["A=request", "FROM=image", "PATH=/spec/bin"]);
    assert_eq!(
        (start.user.as_str(), start.cwd.as_str(), start.make_cwd),
        ("agent", "/image", true)
    );
    assert_eq!(
        (start.shell.as_str(), start.kind(), start.mark.as_str()),
        ("env", ProcessKind::Command, "foreground")
    );
    assert_ne!(start.id, access.command(request.clone()).unwrap().id);
    let own = CommandRequest {
        user: Some("root".into()),
        cwd: Some("/tmp".into()),
        kind: ProcessKind::Service,
        tag: Some("mine".into()),
        ..request
    };
    let start = access.command(own).unwrap();
    assert_eq!((start.user.as_str(), start.cwd.as_str()), ("root", "/tmp"));
    assert!(
        !start.make_cwd,
        "a directory that a call names must be there"
    );
    assert_eq!(
        (start.kind(), start.tag.as_str(), start.mark.as_str()),
        (ProcessKind::Service, "mine", "background:mine")
    );
    let ran = plane
        .control
        .exec(&plane.root, "agent", CommandRequest::shell("x"))
        .await
        .unwrap();
    assert!(String::from_utf8_lossy(&ran.stdout).contains("user=agent"));
}

#[tokio::test]
async fn a_sandbox_that_does_not_run_is_a_conflict_with_a_hint() {
    let plane = plane().await;
    plane.sandbox("agent").await;
    plane
        .control
        .stop_sandbox(&plane.root, "agent", None)
        .await
        .unwrap();
    let refused = plane
        .control
        .guest(&plane.root, "agent", GuestAction::Exec)
        .await
        .err()
        .unwrap();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.hint.unwrap().contains("cove start"));
}

#[tokio::test]
async fn what_the_host_says_about_a_connection_reaches_the_caller() {
    let plane = plane().await;
    plane.sandbox("agent").await;
    let exec = async || {
        plane
            .control
            .exec(&plane.root, "agent", CommandRequest::shell("x"))
            .await
    };
    // Once for what control looks at by itself, which fails nothing, and once for the command.
    plane.runner.inject(Call::Connect, Fault::unreachable());
    plane.runner.inject(Call::Connect, Fault::unreachable());
    assert_eq!(exec().await.unwrap_err().code, ErrorCode::RunnerUnreachable);
    plane.runner.set_guest(GuestKind::Unreachable);
    assert_eq!(exec().await.unwrap_err().code, ErrorCode::GuestUnreachable);
}

#[tokio::test]
async fn odd_commands_are_refused_before_they_reach_the_guest() {
    let plane = plane().await;
    plane.sandbox("agent").await;
    let access = plane
        .control
        .guest(&plane.root, "agent", GuestAction::Exec)
        .await
        .unwrap();
    let shell = CommandRequest::shell("x");
    let argv = |argv: Vec<String>| CommandRequest::new("control", CommandLine::Argv(argv));
    for bad in [
        CommandRequest::shell("  "),
        CommandRequest::shell("a\0b"),
        CommandRequest::shell("x".repeat(cove_limits::ARGUMENT_BYTES_MAX + 1)),
        argv(vec![]),
        argv(vec![String::new()]),
        argv(vec!["x".into(); cove_limits::ARGV_MAX + 1]),
        argv(vec!["x".repeat(cove_limits::COMMAND_BYTES_MAX / 4); 4]),
        CommandRequest {
            tag: Some("x".repeat(cove_limits::TAG_MAX + 1)),
            ..shell.clone()
        },
        CommandRequest {
            cwd: Some("relative".into()),
            ..shell.clone()
        },
        CommandRequest {
            user: Some("a\nb".into()),
            ..shell.clone()
        },
        CommandRequest {
            env: BTreeMap::from([("A=B".into(), "x".into())]),
            ..shell.clone()
        },
        CommandRequest {
            stdin: Some(Bytes::from(vec![0; cove_limits::EXEC_STDIN_MAX + 1])),
            ..shell.clone()
        },
    ] {
        let refused = access.command(bad).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRequest);
    }
    for good in [
        CommandRequest::shell("x".repeat(cove_limits::ARGUMENT_BYTES_MAX)),
        argv(vec!["x".into(); cove_limits::ARGV_MAX]),
        argv(vec!["x".repeat(cove_limits::COMMAND_BYTES_MAX / 4 - 1); 4]),
        CommandRequest {
            stdin: Some(Bytes::from(vec![0; cove_limits::EXEC_STDIN_MAX])),
            ..shell.clone()
        },
    ] {
        access.command(good).unwrap();
    }
}

#[tokio::test]
async fn what_changes_something_inside_is_on_record() {
    let plane = plane().await;
    plane.sandbox("agent").await;
    for action in [GuestAction::FileRead, GuestAction::FileWrite] {
        // Announced, and never asked of the guest.
        let access = plane.control.guest(&plane.root, "agent", action).await;
        drop(access.unwrap());
    }
    let done = CommandRequest::shell("true");
    let done = plane.control.exec(&plane.root, "agent", done).await;
    done.unwrap();
    let refused = plane
        .control
        .guest(&plane.root, "missing", GuestAction::FileRemove)
        .await;
    assert!(refused.is_err());
    let trail = wait(|| async {
        let trail = plane.audit(&plane.root).await;
        (trail.len() >= 4).then_some(trail)
    })
    .await;
    let has = |action: &str, result: &str| trail.contains(&(action.to_owned(), result.to_owned()));
    assert!(
        has("file.write", "not_done") && has("process.exec", "ok"),
        "{trail:?}"
    );
    assert!(has("file.remove", "not_found"));
    assert_eq!(trail.len(), 4, "reading is not recorded: {trail:?}");
}
