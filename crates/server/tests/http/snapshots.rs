//! Snapshots, forks, rollbacks, rest and files over HTTP.

use cove_api::image::AddImage;
use cove_api::lifecycle::{AutoSnapshot, Lifecycle};
use cove_api::process::OutputEvent;
use cove_api::sandbox::{CreateSandbox, PatchSandbox, Sandbox, State};
use cove_api::snapshot::{
    Fork, Forked, ImportSnapshot, Rollback, Snapshot, SnapshotKind, TakeSnapshot,
};
use cove_api::tenancy::{CreateKey, CreateOrg, Scope};
use cove_api::{ErrorCode, PageQuery};
use cove_client::{Client, Outgoing, Upload};
use cove_control::testing::{Call, Fault, GuestKind, ScriptedGuest};
use cove_runner_api::RunnerError;

use super::harness::{Server, refused, shell};

fn called(name: &str) -> TakeSnapshot {
    TakeSnapshot {
        name: Some(name.into()),
        memory: false,
        durable: false,
    }
}

async fn taken(client: &Client, sandbox: &str, name: &str) -> Snapshot {
    client
        .take_snapshot(sandbox, &called(name), None)
        .await
        .unwrap()
}

async fn exported(client: &Client, snapshot: &str) -> Vec<u8> {
    let mut stream = client.export_snapshot(snapshot).await.unwrap();
    let mut file = Vec::new();
    while let Some(bytes) = stream.next().await.unwrap() {
        file.extend_from_slice(&bytes);
    }
    file
}

fn upload(file: &[u8]) -> Outgoing {
    let length = file.len() as u64;
    let source = std::io::Cursor::new(file.to_vec());
    Outgoing::Upload(Upload::new(source, Some(length)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_taken_shown_listed_gone_back_to_and_deleted() {
    let server = Server::bare().await;
    let client = &server.client;
    let sandbox = server.sandbox("agent").await;
    let clean = taken(client, "agent", "clean").await;
    assert_eq!(clean.sandbox.as_deref(), Some(sandbox.id.as_str()));
    assert_eq!(client.snapshot("clean").await.unwrap(), clean);
    let page = PageQuery::default();
    assert_eq!(client.snapshots(None, &page).await.unwrap().items.len(), 1);
    let of_one = client.snapshots(Some("agent"), &page).await.unwrap();
    assert_eq!(of_one.items, std::slice::from_ref(&clean));
    let rollback = Rollback {
        snapshot: "clean".into(),
        memory: false,
    };
    let done = client.rollback_sandbox("agent", &rollback).await.unwrap();
    assert_eq!(done.sandbox.head, Some(clean.id.clone()));
    assert_eq!(done.kept.kind, SnapshotKind::Rollback);
    let tree = client.timeline("agent").await.unwrap();
    assert_eq!(tree.snapshots.len(), 2);
    assert_eq!(tree.head, Some(clean.id.clone()));
    client.delete_snapshot("clean").await.unwrap();
    let (_, gone) = refused(client.snapshot("clean").await);
    assert_eq!(gone.code, ErrorCode::NotFound);
    let tree = client.timeline("agent").await.unwrap();
    assert!(tree.snapshots.iter().any(|one| one.deleted_at.is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn children_of_a_fork_are_told_one_by_one() {
    let server = Server::bare().await;
    let client = &server.client;
    server.sandbox("agent").await;
    let full = RunnerError::NoCapacity {
        resource: "memory".into(),
        message: "full".into(),
    };
    server.runner.inject(Call::Create, Fault::Refuse(full));
    let fork = Fork {
        count: Some(3),
        name: Some("kid".into()),
        ..Fork::default()
    };
    let made = client.fork_sandbox("agent", &fork, Some("key-1")).await;
    let made = made.unwrap();
    let failed: Vec<_> = made
        .iter()
        .filter_map(|one| match one {
            Forked::Error(error) => Some(error),
            Forked::Sandbox(_) => None,
        })
        .collect();
    assert_eq!((made.len(), failed.len()), (3, 1));
    assert_eq!(failed[0].code, ErrorCode::NoCapacity);
    assert!(failed[0].request_id.starts_with("req_"));
    let tree = client.timeline("agent").await.unwrap();
    assert_eq!(tree.forks.len(), 2);
    let many = Fork {
        count: Some(101),
        ..Fork::default()
    };
    let (_, error) = refused(client.fork_sandbox("agent", &many, None).await);
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    taken(client, "agent", "base").await;
    let from = client.fork_snapshot("base", &Fork::default(), None).await;
    assert!(matches!(from.unwrap()[..], [Forked::Sandbox(_)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_sandbox_begins_from_a_snapshot() {
    let server = Server::bare().await;
    let client = &server.client;
    server.sandbox("agent").await;
    let base = taken(client, "agent", "base").await;
    let from = |snapshot: &str| CreateSandbox {
        snapshot: Some(snapshot.into()),
        ..CreateSandbox::default()
    };
    let made = client.create_sandbox(&from("base"), None).await.unwrap();
    assert_eq!(made.from_snapshot, Some(base.id));
    assert_eq!(made.user.as_deref(), Some("root"));
    for (body, code) in [
        (from("nothing"), ErrorCode::NotFound),
        (
            CreateSandbox {
                image: Some("debian".into()),
                ..from("base")
            },
            ErrorCode::InvalidRequest,
        ),
        (
            CreateSandbox {
                memory: true,
                ..from("base")
            },
            ErrorCode::InvalidRequest,
        ),
        (
            CreateSandbox {
                memory: true,
                ..CreateSandbox::default()
            },
            ErrorCode::InvalidRequest,
        ),
    ] {
        let (_, error) = refused(client.create_sandbox(&body, None).await);
        assert_eq!(error.code, code, "{body:?}");
    }
    let image = AddImage::Snapshot {
        snapshot: "base".into(),
        name: "template".into(),
    };
    client.add_image(&image).await.unwrap();
    client.image("template").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_goes_out_and_comes_back() {
    let server = Server::bare().await;
    let client = &server.client;
    server.sandbox("agent").await;
    let take = TakeSnapshot {
        memory: true,
        ..called("full")
    };
    client.take_snapshot("agent", &take, None).await.unwrap();
    let file = exported(client, "full").await;
    let named = |name: &str| ImportSnapshot {
        name: Some(name.into()),
    };
    let imported = client
        .import_snapshot(&named("copy"), upload(&file))
        .await
        .unwrap();
    assert_eq!(imported.snapshot.kind, SnapshotKind::Import);
    assert!(imported.memory_refused.is_some());
    let forged = client
        .import_snapshot(&named("bad"), upload(b"nonsense"))
        .await;
    assert_eq!(refused(forged).1.code, ErrorCode::InvalidRequest);
    let page = PageQuery::default();
    assert_eq!(client.snapshots(None, &page).await.unwrap().items.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_organisation_finds_no_snapshot() {
    let server = Server::bare().await;
    server.sandbox("agent").await;
    let mine = taken(&server.client, "agent", "mine").await;
    let org = CreateOrg {
        name: "others".into(),
        quota: None,
    };
    let org = server.client.create_org(&org).await.unwrap();
    let key = CreateKey {
        name: "a key".into(),
        scopes: vec![Scope::Admin],
        expires_in_s: None,
        org: Some(org.id),
        sandbox: None,
    };
    let key = server.client.create_key(&key).await.unwrap();
    let other = server.client_with(Some(&key.token));
    for which in [mine.id.as_str(), "mine"] {
        let fork = Fork::default();
        let errors = [
            refused(other.snapshot(which).await),
            refused(other.delete_snapshot(which).await),
            refused(other.export_snapshot(which).await),
            refused(other.fork_snapshot(which, &fork, None).await),
        ];
        for (_, error) in errors {
            assert_eq!(error.code, ErrorCode::NotFound);
        }
    }
    let page = PageQuery::default();
    assert!(other.snapshots(None, &page).await.unwrap().items.is_empty());
}

fn told(sandbox: Result<Sandbox, cove_client::ClientError>) -> State {
    sandbox.unwrap().state
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_wakes_what_rests_unless_it_must_not() {
    let server = Server::bare().await;
    let client = &server.client;
    server
        .runner
        .set_guest(GuestKind::Scripted(ScriptedGuest::default()));
    server.sandbox("agent").await;
    assert_eq!(told(client.freeze_sandbox("agent").await), State::Frozen);
    client.processes("agent").await.unwrap();
    assert_eq!(told(client.sandbox("agent").await), State::Running);
    assert_eq!(told(client.pause_sandbox("agent").await), State::Paused);
    let lifecycle = Lifecycle {
        pause_after_s: Some(60),
        auto_resume: Some(false),
        auto_snapshot: Some(AutoSnapshot {
            before_exec: true,
            ..AutoSnapshot::default()
        }),
        ..Lifecycle::default()
    };
    let patch = PatchSandbox {
        lifecycle: Some(lifecycle),
        ..PatchSandbox::default()
    };
    let patched = client.patch_sandbox("agent", &patch).await.unwrap();
    let auto = patched.lifecycle.auto_snapshot.unwrap();
    assert_eq!((auto.before_exec, auto.keep), (true, Some(10)));
    let (_, detail) = refused(client.processes("agent").await);
    assert_eq!(detail.code, ErrorCode::Conflict);
    assert!(detail.hint.as_ref().unwrap().contains("cove resume"));
    assert_eq!(told(client.resume_sandbox("agent").await), State::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_goes_on_across_a_capture_without_a_gap_or_a_repeat() {
    let server = Server::bare().await;
    let client = &server.client;
    server.runner.set_guest(GuestKind::Scripted(ScriptedGuest {
        quiesces: true,
        ..ScriptedGuest::default()
    }));
    server.sandbox("agent").await;
    let exec = shell("true");
    let whole = client.exec("agent", &exec).await.unwrap();
    assert_eq!(whole.stdout, "before,after\n");
    let mut live = client.exec_live("agent", &exec).await.unwrap();
    let mut heard = String::new();
    let mut ended = false;
    while let Some(event) = live.next().await.unwrap() {
        match event {
            OutputEvent::Stdout(chunk) => {
                assert_eq!(chunk.offset, heard.len() as u64);
                heard.push_str(&String::from_utf8(chunk.into_bytes().unwrap()).unwrap());
            }
            OutputEvent::Exit(_) => ended = true,
            OutputEvent::Error { error } => panic!("{error:?}"),
            _ => {}
        }
    }
    assert_eq!((heard.as_str(), ended), ("before,after\n", true));
}
