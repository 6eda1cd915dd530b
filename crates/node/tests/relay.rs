//! A real relay over loopback, in front of a socket that stands for the runner's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cove_model::{HostId, HostTraits};
use cove_node::{
    Authority, ControlTls, Identity, Issued, JoinAnswer, JoinRequest, JoinToken, Link, NodeKey,
    Relay, RelayConfig, opening,
};
use cove_runner_api::RunnerApi;
use cove_wire::descriptor;
use std::os::fd::AsFd;
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(120);

struct Fleet {
    authority: Issued,
    id: &'static str,
}

impl Fleet {
    fn new(id: &'static str) -> Self {
        let authority = Authority::make(id).unwrap();
        Self { authority, id }
    }

    fn authority(&self) -> Authority {
        Authority::load(self.id, &self.authority).unwrap()
    }

    fn control(&self) -> Arc<ControlTls> {
        let own = self.authority().control(OffsetDateTime::now_utc()).unwrap();
        ControlTls::new(&self.authority.certificate, &own).unwrap()
    }

    fn identity(&self, host: &HostId, now: OffsetDateTime) -> Identity {
        let key = NodeKey::generate().unwrap();
        Identity {
            fleet: self.id.into(),
            name: "node".into(),
            host: host.clone(),
            authority: self.authority.certificate.clone(),
            certificate: self.authority().node(host, key.public(), now).unwrap(),
            key: hex::encode(&key.serialize()[..]),
            listen: "127.0.0.1:0".into(),
        }
    }
}

struct Node {
    _dir: TempDir,
    host: HostId,
    address: String,
    end: CancellationToken,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

async fn start(fleet: &Fleet, runner: impl FnOnce(UnixListener)) -> Node {
    let now = OffsetDateTime::now_utc();
    start_at(fleet, runner, now, None).await
}

async fn start_at(
    fleet: &Fleet,
    runner: impl FnOnce(UnixListener),
    issued: OffsetDateTime,
    clock: Option<Arc<dyn TimeProvider>>,
) -> Node {
    let dir = tempfile::tempdir().unwrap();
    let host = HostId::random();
    fleet.identity(&host, issued).save(dir.path()).unwrap();
    let socket = dir.path().join("runner.sock");
    runner(UnixListener::bind(&socket).unwrap());
    let config = RelayConfig {
        directory: dir.path().to_owned(),
        runner: socket,
        release: "test".into(),
    };
    let relay = match clock {
        Some(clock) => Relay::open_at(config, clock).unwrap(),
        None => Relay::open(config).unwrap(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let end = CancellationToken::new();
    tokio::spawn(relay.serve(listener, end.clone()));
    Node {
        _dir: dir,
        host,
        address,
        end,
    }
}

fn link(node: &Node, fleet: &Fleet) -> Arc<Link> {
    Link::new(node.host.clone(), &node.address, fleet.control()).unwrap()
}

/// Answers each connection with `work`, in a task of its own.
fn answering<F>(listener: UnixListener, work: impl Fn(UnixStream) -> F + Send + Sync + 'static)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(work(stream));
        }
    });
}

/// A frame of the runner's wire.
fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.push(kind);
    frame.extend(body);
    frame
}

async fn skip_request(stream: &mut UnixStream) -> io::Result<()> {
    let length = stream.read_u32_le().await?;
    let mut rest = vec![0; length as usize + 1];
    stream.read_exact(&mut rest).await.map(drop)
}

fn identifies(host: HostId) -> impl FnOnce(UnixListener) {
    move |listener| {
        answering(listener, move |mut stream| {
            let host = host.clone();
            async move {
                skip_request(&mut stream).await?;
                let body = format!("{{\"host\":\"{host}\"}}");
                stream.write_all(&frame(1, body.as_bytes())).await
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_runner_and_their_answers_come_back() {
    let fleet = Fleet::new("one");
    let told = HostId::random();
    let node = start(&fleet, identifies(told.clone())).await;
    let runner = link(&node, &fleet).runner();
    let answers = (0..50).map(|_| runner.identity());
    for answer in futures(answers).await {
        assert_eq!(answer.unwrap().host, told);
    }
}

async fn futures<T: Send + 'static>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut done = Vec::new();
    for one in all {
        done.push(timeout(DEADLINE, one).await.unwrap());
    }
    done
}

/// Passes one end of a socket pair, and echoes what comes through the other in capitals.
fn passing(listener: UnixListener) {
    answering(listener, |mut stream| async move {
        skip_request(&mut stream).await?;
        let (mut ours, theirs) = UnixStream::pair()?;
        let theirs = theirs.into_std()?;
        descriptor::send(stream.as_fd(), &frame(4, b"null"), &[theirs.as_fd()])?;
        drop((theirs, stream));
        let mut buffer = [0; 4096];
        loop {
            let count = ours.read(&mut buffer).await?;
            if count == 0 {
                return ours.write_all(b"bye").await;
            }
            let text = buffer[..count].to_ascii_uppercase();
            ours.write_all(&text).await?;
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_descriptor_that_the_runner_passes_continues_as_the_connection() {
    let fleet = Fleet::new("one");
    let node = start(&fleet, passing).await;
    let runner = link(&node, &fleet).runner();
    let id = cove_model::SandboxId::random();
    let mut guest = timeout(DEADLINE, runner.connect(&id))
        .await
        .unwrap()
        .unwrap();
    let mut buffer = [0; 5];
    for _ in 0..3 {
        guest.write_all(b"hello").await.unwrap();
        guest.flush().await.unwrap();
        timeout(DEADLINE, guest.read_exact(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(&buffer, b"HELLO");
    }
    // One end may close before the other.
    guest.shutdown().await.unwrap();
    let mut rest = Vec::new();
    timeout(DEADLINE, guest.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(rest, b"bye");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_stream_delays_no_other() {
    let fleet = Fleet::new("one");
    let node = start(&fleet, passing).await;
    let runner = link(&node, &fleet).runner();
    let id = cove_model::SandboxId::random();
    let mut stalled = Vec::new();
    for _ in 0..8 {
        let mut guest = runner.connect(&id).await.unwrap();
        // Nobody reads the answers, so all buffers on the way fill up.
        let filled = timeout(Duration::from_millis(200), async {
            loop {
                guest.write_all(&[b'x'; 65536]).await.unwrap();
            }
        });
        assert!(filled.await.is_err(), "it took everything");
        stalled.push(guest);
    }
    let mut guest = timeout(DEADLINE, runner.connect(&id))
        .await
        .unwrap()
        .unwrap();
    guest.write_all(b"hello").await.unwrap();
    guest.flush().await.unwrap();
    let mut buffer = [0; 5];
    timeout(DEADLINE, guest.read_exact(&mut buffer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&buffer, b"HELLO");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_node_is_cut_off_at_once() {
    let fleet = Fleet::new("one");
    let node = start(&fleet, passing).await;
    let link = link(&node, &fleet);
    let runner = link.runner();
    let id = cove_model::SandboxId::random();
    let mut guest = runner.connect(&id).await.unwrap();
    let waiting = tokio::spawn(async move {
        let mut byte = [0];
        guest.read(&mut byte).await
    });
    tokio::task::yield_now().await;
    link.close();
    let cut = timeout(DEADLINE, waiting).await.unwrap().unwrap();
    assert!(cut.is_err(), "{cut:?}");
    assert!(runner.connect(&id).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_to_the_runner_with_its_call_and_the_answer_comes_back() {
    let fleet = Fleet::new("one");
    let node = start(&fleet, |listener| {
        answering(listener, |stream| async move {
            // The request, and the descriptor with its first byte.
            let mut received = Vec::new();
            let mut bytes = vec![0; 4096];
            while received.is_empty() {
                stream.readable().await?;
                let got = stream.try_io(tokio::io::Interest::READABLE, || {
                    descriptor::receive(stream.as_fd(), &mut bytes, &mut received)
                });
                assert!(!got.is_ok_and(|got| got.bytes == 0), "it ended early");
            }
            let file = received.pop().expect("no descriptor came along");
            let file = std::os::unix::net::UnixStream::from(file);
            file.set_nonblocking(true)?;
            let mut text = Vec::new();
            UnixStream::from_std(file)?.read_to_end(&mut text).await?;
            let answer = format!(r#"{{"code":"invalid","message":"{} bytes"}}"#, text.len());
            let mut stream = stream;
            stream.write_all(&frame(3, answer.as_bytes())).await
        });
    })
    .await;
    let runner = link(&node, &fleet).runner();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let file = theirs.into();
    let id = cove_model::SnapshotId::random();
    let sending = tokio::spawn(async move {
        ours.write_all(&vec![7; 3_000_000]).await.unwrap();
    });
    let answer = timeout(DEADLINE, runner.import_snapshot(id, file))
        .await
        .unwrap();
    sending.await.unwrap();
    assert_eq!(answer.unwrap_err().to_string(), "3000000 bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_without_a_certificate_of_control_reaches_the_runner() {
    let fleet = Fleet::new("one");
    let other = Fleet::new("two");
    let node = start(&fleet, passing).await;
    let id = cove_model::SandboxId::random();
    // Another fleet's control, and this fleet's control that took another node for this one.
    let wrong = link(&node, &other).runner();
    assert!(wrong.connect(&id).await.is_err());
    let elsewhere = Link::new(HostId::random(), &node.address, fleet.control()).unwrap();
    assert!(elsewhere.runner().connect(&id).await.is_err());
    // A node's certificate does not make its holder control.
    let as_node = fleet.identity(&node.host, OffsetDateTime::now_utc());
    let own = Issued {
        certificate: as_node.certificate.clone(),
        key: hex::decode(&as_node.key).unwrap().into(),
    };
    let tls = ControlTls::new(&fleet.authority.certificate, &own).unwrap();
    let peer = Link::new(node.host.clone(), &node.address, tls).unwrap();
    assert!(peer.runner().connect(&id).await.is_err());
    // Plain bytes.
    let mut tcp = TcpStream::connect(&node.address).await.unwrap();
    tcp.write_all(&opening::encode(opening::Kind::Call))
        .await
        .unwrap();
    let mut rest = Vec::new();
    let ended = timeout(DEADLINE, tcp.read_to_end(&mut rest)).await.unwrap();
    assert!(ended.is_err() || rest.first() != Some(&4), "{rest:?}");
    // And the right one still gets in.
    link(&node, &fleet).runner().connect(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_never_show_a_certificate_keep_nobody_out() {
    let fleet = Fleet::new("one");
    let node = start(&fleet, passing).await;
    let from = |address: &str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket
            .bind(format!("{address}:0").parse().unwrap())
            .unwrap();
        socket
    };
    let mut silent = Vec::new();
    for _ in 0..100 {
        let to = node.address.parse().unwrap();
        silent.push(from("127.0.0.9").connect(to).await.unwrap());
    }
    let id = cove_model::SandboxId::random();
    let runner = link(&node, &fleet).runner();
    timeout(DEADLINE, runner.connect(&id))
        .await
        .unwrap()
        .unwrap();
}

#[derive(Debug)]
struct Skewed(i64);

impl TimeProvider for Skewed {
    fn current_time(&self) -> Option<UnixTime> {
        let now = UnixTime::now().as_secs().checked_add_signed(self.0)?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(now)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_may_differ_by_an_hour_and_certificates_renew_by_themselves() {
    let fleet = Fleet::new("one");
    for skew in [-3600, 3600] {
        let clock: Arc<dyn TimeProvider> = Arc::new(Skewed(skew));
        let now = OffsetDateTime::now_utc();
        let node = start_at(&fleet, passing, now, Some(clock)).await;
        let link = link(&node, &fleet);
        link.report().await.unwrap();
        let authority = fleet.authority();
        let before = Identity::load(node._dir.path()).unwrap().unwrap();
        let (sign, host) = (&authority, &node.host);
        link.renew(|public| sign.node(host, public, now))
            .await
            .unwrap();
        let after = Identity::load(node._dir.path()).unwrap().unwrap();
        assert_ne!(before.certificate, after.certificate);
        assert_ne!(before.key, after.key);
        let id = cove_model::SandboxId::random();
        link.runner().connect(&id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_answer_counts_as_away_until_it_does() {
    let fleet = Fleet::new("one");
    let node = start(&fleet, passing).await;
    let link = link(&node, &fleet);
    assert_eq!(link.report().await.unwrap().host, node.host);
    assert_eq!(link.away(), None);
    node.end.cancel();
    while link.away().is_none() {
        link.report().await.ok();
    }
    let id = cove_model::SandboxId::random();
    assert!(link.runner().connect(&id).await.is_err());
}

#[test]
fn an_answer_of_another_fleet_or_with_a_changed_byte_is_refused() {
    let (fleet, other) = (Fleet::new("one"), Fleet::new("two"));
    let token = JoinToken::make(&fleet.authority.certificate).unwrap();
    let (host, key) = (HostId::random(), NodeKey::generate().unwrap());
    let traits = HostTraits {
        taints: ["team".to_owned()].into(),
        ..HostTraits::default()
    };
    let request = JoinRequest::make(&token, &host, "node", "node:7071", traits, &key);
    assert!(request.is_proved(&token.key));
    for changed in [
        JoinRequest {
            address: "evil:7071".into(),
            ..request.clone()
        },
        JoinRequest {
            traits: HostTraits::default(),
            ..request.clone()
        },
    ] {
        assert!(!changed.is_proved(&token.key));
    }
    let answer = |fleet: &Fleet| {
        let certificate = fleet
            .authority()
            .node(&host, key.public(), OffsetDateTime::now_utc())
            .unwrap();
        let authority = &fleet.authority.certificate;
        JoinAnswer::make(&token.key, &request, fleet.id, authority, certificate)
    };
    answer(&fleet).check(&token, &request).unwrap();
    assert!(answer(&other).check(&token, &request).is_err());
    let mut forged = answer(&fleet);
    forged.certificate.push('x');
    assert!(forged.check(&token, &request).is_err());
}
