//! Guests of older versions: they run in sandboxes and in captured memory for as long as their owners like, whatever
//! engine comes after them. Their programs are in `tests/guests`, built by `scripts/old-guest`.

use std::io::Read;

use cove_engine::{Engine, OpenTier};
use cove_isolation_container::ContainerConfig;
use cove_model::{SandboxId, SnapshotId, State};
use cove_protocol::client::{Guest, GuestError};
use cove_protocol::frame::{self, FrameReader};
use cove_protocol::message::{
    Empty, ErrorCode, ListDir, Open, PathRequest, ReadFile, Reply, ReplyKind, Request, Start,
    StartService, WriteFile,
};
use cove_runner_api::{CreateRequest, FromSnapshot, RunnerApi, SnapshotRequest};
use cove_tests::engine_host::{World, eventually, process_id, small_spec, succeed, unlocked};
use sha2::{Digest, Sha256};

use crate::PROGRAM;

/// The guest of version 1, which says no hello: it names neither features nor looks at what a request needs.
const NAME: &str = "guest-v1-x86_64";
const PACKED: &[u8] = include_bytes!("../guests/guest-v1-x86_64.zst");
const SOURCES: &str = include_str!("../guests/SOURCES");
/// More than any guest is long.
const PROGRAM_MAX: u64 = 16 << 20;

/// The program, if it is the one that its commit gave.
fn program() -> &'static [u8] {
    let unpacked = ruzstd::decoding::StreamingDecoder::new(PACKED).expect("a frame of zstd");
    let mut program = Vec::new();
    unpacked
        .take(PROGRAM_MAX)
        .read_to_end(&mut program)
        .expect("a whole frame");
    let mut lines = SOURCES.lines().map(str::split_whitespace);
    let line = lines.find_map(|mut words| (words.next() == Some(NAME)).then_some(words));
    let sum = line
        .and_then(|mut words| words.nth(1))
        .expect("its line in SOURCES");
    let digest = Sha256::digest(&program);
    let found = hex::encode(digest);
    assert_eq!(found, sum, "the committed guest is not the one in SOURCES");
    program.leak()
}

/// A sandbox as an engine of that time left it behind: its guest runs, and the engine is gone.
async fn left_behind(world: &World) -> SandboxId {
    let tier = ContainerConfig {
        warm: 0,
        guest: program(),
        ..ContainerConfig::default()
    };
    let tiers: Vec<Box<dyn OpenTier>> = vec![Box::new(tier)];
    let engine = Engine::open(world.setup.engine_config(), tiers)
        .await
        .unwrap();
    let id = SandboxId::random();
    let request = CreateRequest {
        owner: None,
        id: id.clone(),
        spec: small_spec(),
        from: None,
    };
    RunnerApi::create(&engine, request).await.unwrap();
    engine.close().await;
    drop(engine);
    eventually("the data directory is free", || async {
        unlocked(&world.setup.data_dir()).then_some(())
    })
    .await;
    id
}

async fn said(guest: &Guest, command: &str) -> String {
    let result = succeed(guest, command).await;
    String::from_utf8_lossy(&result.stdout).trim().to_owned()
}

/// Commands and files, by everything that a version 1 guest is asked with needs it does not know of.
async fn use_it(guest: &Guest) {
    let info = guest.info().await.unwrap();
    assert_eq!((info.version, info.features.len()), (1, 0), "{info:?}");
    let limited = Start {
        id: process_id(),
        shell: "echo out; echo err >&2; exit 3".into(),
        timeout_ms: 60_000,
        ring_bytes: 65_536,
        kill_on_disconnect: true,
        ..Start::default()
    };
    let ran = guest.exec(limited).await.unwrap();
    assert_eq!(ran.exit.code, 3);
    assert_eq!(
        (&ran.stdout[..], &ran.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    let late = Start {
        id: process_id(),
        shell: "sleep 600".into(),
        timeout_ms: 100,
        ..Start::default()
    };
    assert!(guest.exec(late).await.unwrap().exit.timed_out);

    let path = String::from("/root/dir/file");
    let write = WriteFile {
        path: path.clone(),
        mode: Some(0o600),
        parents: true,
        ..WriteFile::default()
    };
    let mut upload = guest.write_file(write).await.unwrap();
    upload.write("some content".into()).await.unwrap();
    assert_eq!(upload.finish().await.unwrap().bytes, 12);
    let read = ReadFile {
        path: path.clone(),
        ..ReadFile::default()
    };
    let mut file = guest.read_file(read).await.unwrap();
    assert_eq!(file.next().await.unwrap().unwrap(), &b"some content"[..]);
    let stat = PathRequest {
        path,
        ..PathRequest::default()
    };
    assert_eq!(guest.stat(stat).await.unwrap().mode & 0o777, 0o600);
    let list = ListDir {
        path: "/root/dir".into(),
        ..ListDir::default()
    };
    assert_eq!(guest.list(list).await.unwrap().entries.len(), 1);
}

/// What a guest answers to a request that needs a feature which came after it.
async fn refusal(world: &World, id: &SandboxId) -> ErrorCode {
    let mut stream = world.client().connect(id).await.unwrap();
    let open = Open {
        version: cove_protocol::VERSION,
        needs: vec!["made-up".into()],
        request: Some(Request::Info(Empty {})),
    };
    frame::write(&mut stream, &open).await.unwrap();
    let reply: Reply = FrameReader::default().next(&mut stream).await.unwrap();
    match reply.kind {
        Some(ReplyKind::Error(error)) => ErrorCode::try_from(error.code).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_of_version_1_works_under_this_engine() {
    let mut world = World::start(PROGRAM).await;
    world.let_go();
    let id = left_behind(&world).await;
    world.launch();
    let client = world.client();
    assert_eq!(client.get(&id).await.unwrap().state, State::Running);
    let guest = world.guest(&id);
    use_it(&guest).await;

    // What would be weakened is refused, by it and by a guest of today.
    assert_eq!(refusal(&world, &id).await, ErrorCode::VersionMismatch);
    let service = guest.start_service(StartService::default()).await;
    let service = service.unwrap_err().code();
    assert_eq!(service, Some(ErrorCode::VersionMismatch));
    let today = world.create().await.id;
    assert_eq!(refusal(&world, &today).await, ErrorCode::MissingFeature);
    let features = world.guest(&today).info().await.unwrap().features;
    assert!(features.contains(&"act-as-user".to_owned()), "{features:?}");

    assert_eq!(client.freeze(&id).await.unwrap().state, State::Frozen);
    assert_eq!(client.resume(&id).await.unwrap().state, State::Running);
    assert_eq!(said(&guest, "cat /root/dir/file").await, "some content");
    let gone = guest.process("prc_aaaaaaaaaaaaaaaaaaaa").await.unwrap_err();
    assert_eq!(gone.code(), Some(ErrorCode::NotFound), "{gone:?}");

    // It ends when it is asked to, and the sandbox starts again with the guest of today.
    assert_eq!(client.stop(&id, 1000).await.unwrap().state, State::Stopped);
    client.start(&id).await.unwrap();
    assert_eq!(guest.info().await.unwrap().version, cove_protocol::VERSION);
    for id in [&id, &today] {
        client.delete(id).await.unwrap();
    }
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_a_guest_of_version_1_is_captured_and_restored_by_this_engine() {
    let mut world = World::start(PROGRAM).await;
    let host = world.client().host().await.unwrap();
    let captures = host.tiers[0].capabilities.contains(&"memory".to_owned());
    if !cove_tests::needs::has("criu", captures) {
        world.finish();
        return;
    }
    world.let_go();
    let id = left_behind(&world).await;
    world.launch();
    let client = world.client();
    let guest = world.guest(&id);
    // In memory only.
    let counting = Start {
        id: process_id(),
        shell: "x=kept; while true; do echo $x > /tmp/x; sleep 0.1; done".into(),
        ..Start::default()
    };
    let running = guest.start(counting).await.unwrap();
    assert_eq!(client.pause(&id).await.unwrap().state, State::Paused);
    assert_eq!(client.resume(&id).await.unwrap().state, State::Running);
    use_it(&guest).await;
    let snapshot = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: id.clone(),
        memory: true,
        unless_unchanged: false,
    };
    let taken = client.snapshot(snapshot).await.unwrap();
    let fork = SandboxId::random();
    let request = CreateRequest {
        owner: None,
        id: fork.clone(),
        spec: small_spec(),
        from: Some(FromSnapshot {
            snapshot: taken.id.clone(),
            memory: true,
        }),
    };
    client.create(request).await.unwrap();
    for id in [&id, &fork] {
        let guest = world.guest(id);
        use_it(&guest).await;
        succeed(&guest, "rm /tmp/x").await;
        eventually("the process goes on", || async {
            let found: Result<_, GuestError> = guest
                .stat(PathRequest {
                    path: "/tmp/x".into(),
                    ..PathRequest::default()
                })
                .await;
            found.ok()
        })
        .await;
        assert!(
            guest
                .process(running.id.as_str())
                .await
                .unwrap()
                .exit
                .is_none()
        );
        client.delete(id).await.unwrap();
    }
    client.delete_snapshot(&taken.id).await.unwrap();
    world.finish();
}
