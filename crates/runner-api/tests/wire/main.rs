//! The runner interface over a real socket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;
mod hostile;
mod versions;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use cove_model::{NetworkPolicy, ResourcesPatch, SandboxId, SandboxSpec, SnapshotId, State};
use cove_runner_api::wire::{self, Client, FRAME_MAX};
use cove_runner_api::*;
use fake::{Fake, decision, job, sample};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(120);

struct Served {
    folder: TempDir,
    fake: Arc<Fake>,
    shutdown: CancellationToken,
    server: tokio::task::JoinHandle<()>,
}

impl Served {
    fn new(fake: Fake) -> Self {
        Self::for_uids(fake, vec![rustix::process::getuid().as_raw()])
    }

    fn for_uids(fake: Fake, uids: Vec<u32>) -> Self {
        Self::serving(wire::SIDE, fake, uids)
    }

    fn serving(side: cove_wire::Side, fake: Fake, uids: Vec<u32>) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let fake = Arc::new(fake);
        let shutdown = CancellationToken::new();
        let listener = wire::bind(&folder.path().join("runner.sock"), None).unwrap();
        let serving = wire::serve_as(side, listener, fake.clone(), uids, shutdown.clone());
        let server = tokio::spawn(serving);
        Self {
            folder,
            fake,
            shutdown,
            server,
        }
    }

    fn client(&self) -> Client {
        Client::new(self.path())
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("runner.sock")
    }

    async fn create(&self) -> SandboxId {
        let id = SandboxId::random();
        let request = CreateRequest {
            owner: None,
            id: id.clone(),
            spec: SandboxSpec::default(),
            from: None,
        };
        self.client().create(request).await.unwrap();
        id
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

#[tokio::test]
async fn every_call_comes_through_whole() {
    let served = Served::new(Fake::default());
    let client = served.client();
    let spec = SandboxSpec {
        name: Some("agent".into()),
        ..SandboxSpec::default()
    };
    let request = CreateRequest {
        owner: None,
        id: SandboxId::random(),
        spec,
        from: None,
    };
    let made = client.create(request.clone()).await.unwrap();
    assert_eq!((&made.id, &made.spec), (&request.id, &request.spec));
    assert_eq!(client.get(&made.id).await.unwrap(), made);
    assert_eq!(client.list().await.unwrap(), std::slice::from_ref(&made));
    let refused = client.start(&made.id).await.unwrap_err();
    assert_eq!(
        refused,
        RunnerError::Conflict {
            request: "start".into(),
            state: State::Running
        }
    );
    let stopped = client.stop(&made.id, 1234).await.unwrap();
    assert_eq!(stopped.reason.as_deref(), Some("after 1234"));
    assert_eq!(client.start(&made.id).await.unwrap().state, State::Running);
    let patch = ResourcesPatch {
        cpu: Some(2.5),
        ..ResourcesPatch::default()
    };
    assert_eq!(
        client.resize(&made.id, patch).await.unwrap().limits.cpu,
        2.5
    );
    assert_eq!(client.sample(&made.id).await.unwrap(), sample());
    assert_eq!(
        client.samples().await.unwrap(),
        [(made.id.clone(), sample())]
    );
    let batch = client.events(7, 0).await.unwrap();
    assert_eq!((batch.next, batch.lost, batch.events.len()), (8, true, 1));
    assert_eq!(client.images().await.unwrap()[0].names, ["debian"]);
    assert_eq!(
        client
            .add_image(ImageSource::Debian, ImageOwner::Operator)
            .await
            .unwrap(),
        job("debian")
    );
    let local = ImageSource::Local {
        name: "x".into(),
        path: "/x".into(),
    };
    let tenant = ImageOwner::Tenant {
        org: cove_model::OrgId::random(),
        room_bytes: 7,
    };
    let refused = client.add_image(local, tenant).await.unwrap_err();
    assert!(matches!(refused, RunnerError::Unsupported { .. }));
    assert_eq!(client.image_job("abc").await.unwrap(), job("abc"));
    assert!(matches!(
        client.remove_image("abc").await.unwrap_err(),
        RunnerError::InUse { .. }
    ));
    assert_eq!(
        client.host().await.unwrap(),
        served.fake.host().await.unwrap()
    );
    client.delete(&made.id).await.unwrap();
    assert!(matches!(
        client.get(&made.id).await.unwrap_err(),
        RunnerError::NotFound { .. }
    ));
    assert!(matches!(
        client.connect(&made.id).await.unwrap_err(),
        RunnerError::NotFound { .. }
    ));
}

async fn converse(stream: GuestStream, id: &SandboxId) {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::new(reader);
    let mut line = String::new();
    reader.read_line(&mut line).await.unwrap();
    assert_eq!(line, format!("hello from {id}\n"));
    let sent: Vec<u8> = (0..1_000_000u32)
        .flat_map(|n| (n as u16).to_le_bytes())
        .collect();
    let expected = sent.clone();
    let write = tokio::spawn(async move {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    timeout(DEADLINE, reader.read_to_end(&mut back))
        .await
        .unwrap()
        .unwrap();
    write.await.unwrap();
    assert!(back == expected, "the echo differs");
}

#[tokio::test]
async fn calls_about_rest_snapshots_and_the_network_come_through_whole() {
    let served = Served::new(Fake::default());
    let (client, id) = (served.client(), served.create().await);
    for (answer, state) in [
        (client.freeze(&id).await, State::Frozen),
        (client.resume(&id).await, State::Running),
        (client.pause(&id).await, State::Paused),
    ] {
        assert_eq!(answer.unwrap().state, state);
    }
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: id.clone(),
        memory: true,
        unless_unchanged: true,
    };
    let taken = client.snapshot(request.clone()).await.unwrap();
    assert_eq!((&taken.id, taken.memory), (&request.id, true));
    assert_eq!(client.get_snapshot(&taken.id).await.unwrap(), taken);
    assert_eq!(
        client.snapshots().await.unwrap(),
        std::slice::from_ref(&taken)
    );
    let rollback = RollbackRequest {
        sandbox: id.clone(),
        to: taken.id.clone(),
        keep: SnapshotId::random(),
        memory: false,
    };
    let back = client.rollback(rollback.clone()).await.unwrap();
    assert_eq!(
        (&back.kept.id, &back.sandbox.id),
        (&rollback.keep, &rollback.sandbox)
    );
    let file = client.export_snapshot(&taken.id, false).await.unwrap();
    let brought = client.import_snapshot(SnapshotId::random(), file).await;
    let content = brought.unwrap().memory_refused;
    assert_eq!(content, Some(format!("the file of {}", taken.id)));
    let image = client
        .image_from_snapshot(&taken.id, "mine", ImageOwner::Operator)
        .await;
    assert_eq!(image.unwrap(), job("mine"));
    client.delete_snapshot(&taken.id).await.unwrap();
    let gone = client.get_snapshot(&taken.id).await.unwrap_err();
    assert!(matches!(gone, RunnerError::NotFound { .. }));
    let policy = NetworkPolicy {
        allow: Some(vec!["example.org".parse().unwrap()]),
        bandwidth_up_mbit: Some(7),
        ..NetworkPolicy::default()
    };
    let changed = client.set_network(&id, policy.clone()).await.unwrap();
    assert_eq!(changed.spec.network, policy);
    let query = EgressQuery {
        sandbox: id,
        after: 41,
        limit: 1,
        wait_ms: 0,
        verdict: Some(EgressVerdict::Denied),
    };
    let told = client.egress(query).await.unwrap();
    assert_eq!((told.next, told.lost), (42, true));
    assert_eq!(told.entries, [decision(41)]);
}

#[tokio::test]
async fn a_guests_socket_is_passed_itself_and_outlives_the_server() {
    let served = Served::new(Fake::default());
    let id = served.create().await;
    let stream = served.client().connect(&id).await.unwrap();
    assert!(matches!(stream, GuestStream::Unix(_)));
    served.shutdown.cancel();
    let deadline = std::time::Instant::now() + DEADLINE;
    while !served.server.is_finished() {
        assert!(
            std::time::Instant::now() < deadline,
            "the server did not end"
        );
        tokio::task::yield_now().await;
    }
    converse(stream, &id).await;
}

#[tokio::test]
async fn a_guest_that_is_no_socket_is_relayed() {
    let served = Served::new(Fake {
        relayed: true,
        ..Fake::default()
    });
    let id = served.create().await;
    converse(served.client().connect(&id).await.unwrap(), &id).await;
}

#[tokio::test]
async fn connections_do_not_leak_descriptors() {
    let served = Served::new(Fake::default());
    let id = served.create().await;
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    drop(served.client().connect(&id).await.unwrap());
    let before = count();
    for _ in 0..200 {
        drop(served.client().connect(&id).await.unwrap());
    }
    let deadline = std::time::Instant::now() + DEADLINE;
    // Other tests of this process open descriptors too; a leak would be 200 or more.
    while count() > before + 100 {
        assert!(
            std::time::Instant::now() < deadline,
            "{} then, {} now",
            before,
            count()
        );
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_at_once_each_get_their_own_answer() {
    let served = Served::new(Fake::default());
    let calls: Vec<_> = (0..200)
        .map(|number| {
            let client = served.client();
            tokio::spawn(async move {
                let name = Some(format!("n{number}"));
                let spec = SandboxSpec {
                    name: name.clone(),
                    ..SandboxSpec::default()
                };
                let id = SandboxId::random();
                let made = client
                    .create(CreateRequest {
                        owner: None,
                        id: id.clone(),
                        spec,
                        from: None,
                    })
                    .await
                    .unwrap();
                assert_eq!((made.id, made.spec.name), (id, name));
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(served.client().list().await.unwrap().len(), 200);
}

#[tokio::test]
async fn lists_longer_than_a_frame_arrive_whole() {
    let served = Served::new(Fake::default());
    let text = "x".repeat(100_000);
    for _ in 0..100 {
        let mut spec = SandboxSpec::default();
        spec.env.insert("LONG".into(), text.clone());
        served
            .fake
            .create(CreateRequest {
                owner: None,
                id: SandboxId::random(),
                spec,
                from: None,
            })
            .await
            .unwrap();
    }
    let listed = served.client().list().await.unwrap();
    assert!(listed.len() * text.len() > FRAME_MAX);
    assert_eq!(listed, served.fake.list().await.unwrap());
}

#[tokio::test]
async fn a_change_goes_on_when_its_caller_goes_away() {
    let gate = tokio::sync::Semaphore::new(0);
    let served = Served::new(Fake {
        gate: Some(gate),
        ..Fake::default()
    });
    let id = SandboxId::random();
    let request = CreateRequest {
        owner: None,
        id: id.clone(),
        spec: SandboxSpec::default(),
        from: None,
    };
    let client = served.client();
    let call = tokio::spawn(async move { client.create(request).await });
    served.fake.entered.acquire().await.unwrap().forget();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    served.fake.gate.as_ref().unwrap().add_permits(1);
    let found = async {
        while served.client().get(&id).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, found).await.unwrap();
}

#[tokio::test]
async fn a_question_ends_when_its_caller_goes_away() {
    let served = Served::new(Fake::default());
    let client = served.client();
    let call = tokio::spawn(async move { client.events(0, 60_000).await });
    served.fake.entered.acquire().await.unwrap().forget();
    call.abort();
    let cancelled = served.fake.cancelled.acquire();
    timeout(DEADLINE, cancelled)
        .await
        .unwrap()
        .unwrap()
        .forget();
}

#[tokio::test]
async fn shutting_down_waits_for_changes_and_drops_questions() {
    let gate = tokio::sync::Semaphore::new(0);
    let mut served = Served::new(Fake {
        gate: Some(gate),
        ..Fake::default()
    });
    let (waiting, creating) = (served.client(), served.client());
    let question = tokio::spawn(async move { waiting.events(0, 60_000).await });
    served.fake.entered.acquire().await.unwrap().forget();
    let request = CreateRequest {
        owner: None,
        id: SandboxId::random(),
        spec: SandboxSpec::default(),
        from: None,
    };
    let change = tokio::spawn(async move { creating.create(request).await });
    served.fake.entered.acquire().await.unwrap().forget();
    served.shutdown.cancel();
    let cut = timeout(DEADLINE, question)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(matches!(cut, RunnerError::Unreachable { .. }));
    served.fake.gate.as_ref().unwrap().add_permits(1);
    timeout(DEADLINE, change).await.unwrap().unwrap().unwrap();
    timeout(DEADLINE, &mut served.server)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn strangers_are_refused_and_only_the_owner_may_open_the_socket() {
    let served = Served::for_uids(Fake::default(), vec![4_000_000]);
    let refused = served.client().list().await.unwrap_err();
    assert!(
        matches!(refused, RunnerError::Unreachable { .. }),
        "{refused}"
    );
    let mode = std::fs::metadata(served.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn garbage_is_answered_or_cut_off_and_harms_nobody_else() {
    let served = Served::new(Fake::default());
    let oversized = ((FRAME_MAX + 1) as u32).to_le_bytes();
    let mut nonsense = 9u32.to_le_bytes().to_vec();
    nonsense.extend_from_slice(b"\0not json!");
    let mut unknown = br#"{"call":"reboot"}"#.to_vec();
    unknown.splice(0..0, [unknown.len() as u8, 0, 0, 0, 0]);
    for bytes in [
        &oversized[..],
        b"\0",
        &nonsense,
        &unknown,
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = UnixStream::connect(served.path()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = timeout(DEADLINE, stream.read_to_end(&mut answer))
            .await
            .unwrap();
        assert!(answer.len() < 1000);
    }
    // An open connection that says nothing holds nobody up.
    let _silent = UnixStream::connect(served.path()).await.unwrap();
    served.create().await;
}

/// One frame with any content.
fn framed(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(content.len()).unwrap().to_le_bytes().to_vec();
    frame.push(kind);
    frame.extend_from_slice(content);
    frame
}

/// What control sends is checked as if an unknown sender sent it: random frames, good ones damaged, cut off,
/// nested without end, as large as may be. Each ends with a short answer or none, and calls go on.
#[tokio::test]
async fn random_damaged_and_endless_requests_harm_nobody() {
    let served = Served::new(Fake::default());
    let create = serde_json::json!({
        "call": "create",
        "request": { "id": SandboxId::random(), "spec": SandboxSpec::default(), "from": null },
    });
    let good = [
        serde_json::to_vec(&create).unwrap(),
        br#"{"call":"events","after":0,"wait_ms":0}"#.to_vec(),
        br#"{"call":"host"}"#.to_vec(),
        br#"{"call":"stop","id":"sbx_aaaaaaaaaaaaaaaaaaaa","grace_ms":18446744073709551615}"#
            .to_vec(),
    ];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut cases: Vec<Vec<u8>> = Vec::new();
    for round in 0..600_usize {
        let mut content = match round % 3 {
            0 => (0..random() % 300).map(|_| random() as u8).collect(),
            _ => good[round % good.len()].clone(),
        };
        for _ in 0..random() % 4 {
            let at = (random() % (content.len() as u64 + 1)) as usize;
            match random() % 3 {
                0 => content.truncate(at),
                1 => content.insert(at, b"\"{}[]:,\\0e-\xff"[(random() % 12) as usize]),
                _ => content.splice(at..at, good[1].clone()).for_each(drop),
            }
        }
        let mut frame = framed((random() % 7) as u8, &content);
        if round % 5 == 0 {
            frame.truncate((random() % (frame.len() as u64 + 1)) as usize);
        }
        if round % 7 == 0 && frame.len() > 4 {
            // A length that does not fit what follows.
            frame[(random() % 4) as usize] ^= 1 << (random() % 8);
        }
        cases.push(frame);
    }
    let wrapped = |inner: Vec<u8>| {
        let mut content = br#"{"call":"create","request":"#.to_vec();
        content.extend(inner);
        framed(0, &content)
    };
    cases.push(wrapped(vec![b'['; 1 << 20]));
    cases.push(wrapped(br#"{"a":"#.repeat(200_000)));
    cases.push(framed(0, &vec![b'"'; FRAME_MAX]));
    cases.push(framed(
        0,
        &[b"1".repeat(FRAME_MAX - 1), b"e".to_vec()].concat(),
    ));
    cases.push(framed(
        0,
        &[b"\"".to_vec(), b"x".repeat(FRAME_MAX - 2), b"\"".to_vec()].concat(),
    ));
    for (round, bytes) in cases.into_iter().enumerate() {
        let stream = UnixStream::connect(served.path()).await.unwrap();
        let (mut input, mut output) = stream.into_split();
        let sending = async {
            // The server may hang up in the middle.
            let _ = output.write_all(&bytes).await;
            let _ = output.shutdown().await;
        };
        let mut answer = Vec::new();
        let reading = async {
            let _ = (&mut input).take(1 << 20).read_to_end(&mut answer).await;
        };
        timeout(DEADLINE, async { tokio::join!(sending, reading) })
            .await
            .unwrap_or_else(|_| panic!("case {round} is not answered"));
        assert!(answer.len() < 64 << 10, "case {round}: {}", answer.len());
    }
    served.create().await;
}

/// Callers that announce much and send nothing do not keep small calls out.
#[tokio::test]
async fn announced_lengths_take_no_room_from_small_calls() {
    let served = Served::new(Fake::default());
    let mut silent = Vec::new();
    for _ in 0..100 {
        let mut stream = UnixStream::connect(served.path()).await.unwrap();
        let header = u32::try_from(FRAME_MAX).unwrap().to_le_bytes();
        stream.write_all(&header).await.unwrap();
        stream.write_all(&[0, b'{']).await.unwrap();
        silent.push(stream);
    }
    timeout(DEADLINE, served.create()).await.unwrap();
}

#[tokio::test]
async fn a_runner_that_is_not_there_is_unreachable() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let client = Client::new(folder.path().join("nobody.sock"));
    assert!(matches!(
        client.list().await.unwrap_err(),
        RunnerError::Unreachable { .. }
    ));
}

#[tokio::test]
async fn binding_replaces_an_old_socket_and_nothing_else() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("runner.sock");
    drop(wire::bind(&path, None).unwrap());
    drop(wire::bind(&path, None).unwrap());
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert!(wire::bind(&path, None).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn those_who_wait_for_events_keep_nobody_out() {
    const WAIT_MS: u64 = 60_000;
    const WAITING_MAX: usize = 64;
    let served = Served::new(Fake::default());
    let waiting: Vec<_> = (0..WAITING_MAX)
        .map(|_| {
            let client = served.client();
            tokio::spawn(async move { client.events(0, WAIT_MS).await })
        })
        .collect();
    let all = u32::try_from(waiting.len()).unwrap();
    let entered = timeout(DEADLINE, served.fake.entered.acquire_many(all)).await;
    entered.unwrap().unwrap().forget();
    let one_more = timeout(DEADLINE, served.client().events(0, WAIT_MS)).await;
    assert!(one_more.unwrap().is_ok(), "answered with what there is");
    assert!(waiting.iter().all(|call| !call.is_finished()));
    for call in waiting {
        call.abort();
    }
}
