//! Two tenants: one asks for more than its share, the other must not notice.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use cove_api::process::StartProcess;
use cove_api::route::Verb;
use cove_client::Client;
use cove_control::ControlConfig;
use cove_control::budget::MEMORY;
use cove_dialect::Kind;
use cove_model::OrgId;
use cove_server::ServerConfig;

use super::harness::{DEADLINE, Server, refused, shell};
use super::walk::ask;

const MIB: usize = 1024 * 1024;
/// Every byte of it takes six in JSON.
const HARD_TO_SAY: &str = "head -c 8388608 /dev/zero | tr '\\000' '\\001'";

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn post(server: &Server, token: &str, path: &str, length: usize, begun: &str) -> TcpStream {
    let mut stream = connect(server);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{begun}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// What comes up to some words, or up to the end however the server ends it.
fn read_until(mut stream: TcpStream, words: &str) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let said = String::from_utf8_lossy(&all).into_owned();
        if said.contains(words) {
            return said;
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return said,
            Ok(count) => all.extend_from_slice(&piece[..count]),
        }
    }
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A server that gives up neither what comes slowly nor what nobody reads: here it is held for as long as the test goes.
async fn patient() -> Server {
    let ages = Duration::from_secs(3600);
    let config = ServerConfig {
        body_timeout: ages,
        upload_idle: ages,
        write_stall: ages,
        ..ServerConfig::default()
    };
    Server::start(config, ControlConfig::default(), true).await
}

pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds() {
        assert!(started.elapsed() < DEADLINE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_are_paid_for_by_who_asked() {
    let server = patient().await;
    let (greedy, greedy_client) = server.tenant("greedy").await;
    let (_, other) = server.tenant("other").await;
    server.sandbox_of(&greedy_client, "mine").await;
    server.sandbox_of(&other, "theirs").await;
    let before = resident();
    let body = format!(
        r#"{{"argv":["sh","-c","{}"]}}"#,
        HARD_TO_SAY.replace('\\', "\\\\")
    );
    let path = "/v1/sandboxes/mine/exec";
    // More than a key may hold, had each byte been counted once, and far more as it is encoded.
    let unread: Vec<TcpStream> = (0..24)
        .map(|_| post(&server, &greedy, path, body.len(), &body))
        .collect();
    let share = MEMORY.most() / 2;
    until("a share is held", || {
        server.budget.held() > share - 16 * MIB
    })
    .await;
    // The other one gets all of a large answer meanwhile, in one piece.
    let mut exec = shell("");
    exec.command = None;
    exec.argv = Some(
        ["head", "-c", "4000000", "/dev/zero"]
            .map(str::to_owned)
            .to_vec(),
    );
    let answer = other.exec("theirs", &exec).await.unwrap();
    assert!(!answer.truncated && answer.stdout.len() == 4_000_000);
    let slack = 4 * MIB;
    assert!(
        server.budget.held() <= share + slack,
        "{}",
        server.budget.held()
    );
    let grown = resident().saturating_sub(before) / MIB;
    assert!(grown < 600, "the server grew by {grown} MiB");
    drop(unread);
    until("all was given back", || server.budget.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_hold_up_nobody_but_their_sender() {
    let server = patient().await;
    let (slow, slow_client) = server.tenant("slow").await;
    let (_, other) = server.tenant("other").await;
    server.sandbox_of(&slow_client, "mine").await;
    server.sandbox_of(&other, "theirs").await;
    let path = "/v1/sandboxes/mine/exec";
    let length = 16 * MIB;
    let begun = format!("{{\"stdin\":\"{}", "x".repeat(MIB));
    let bodies: Vec<TcpStream> = (0..40)
        .map(|_| post(&server, &slow, path, length, &begun))
        .collect();
    until("they are being read", || server.budget.held() > 40 * MIB).await;
    let mut exec = shell("");
    exec.command = None;
    exec.argv = Some(
        ["head", "-c", "2000000", "/dev/zero"]
            .map(str::to_owned)
            .to_vec(),
    );
    let answer = other.exec("theirs", &exec).await.unwrap();
    assert!(!answer.truncated && answer.stdout.len() == 2_000_000);
    drop(bodies);
    until("all was given back", || server.budget.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_its_share_a_key_is_told_so_and_when_to_come_back() {
    let server = patient().await;
    let (token, client) = server.tenant("greedy").await;
    server.sandbox_of(&client, "mine").await;
    let path = "/v1/sandboxes/mine/exec";
    let begun = format!("{{\"stdin\":\"{}", "x".repeat(12 * MIB));
    let mut bodies = Vec::new();
    // As many as fit: each is held as it came and as what is read from it.
    let fit = MEMORY.most() / 2 / (24 * MIB);
    for _ in 0..fit {
        let (sent, length) = (begun.clone(), 16 * MIB);
        let stream = post(&server, &token, path, length, &sent);
        bodies.push(stream);
    }
    // All of it: what is still on its way would be refused in place of the one beyond.
    until("the share is held", || {
        server.budget.held() > fit * 24 * MIB - MIB
    })
    .await;
    let mut beyond = post(&server, &token, path, 16 * MIB, "");
    let pump = std::thread::spawn(move || {
        // The server may stop reading at any byte: it has answered then.
        let _ = beyond.write_all(begun.as_bytes());
        read_until(beyond, "limit_reached")
    });
    let answer = tokio::task::spawn_blocking(|| pump.join().unwrap())
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.to_lowercase().contains("retry-after"), "{answer}");
    assert!(answer.contains("limit_reached"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_waited_for_only_where_it_could_be_of_use() {
    let server = Server::bare().await;
    let (manage, client) = server.tenant("one").await;
    server.sandbox_of(&client, "mine").await;
    let read = cove_api::tenancy::CreateKey {
        name: "reader".into(),
        scopes: vec![cove_api::tenancy::Scope::Read],
        expires_in_s: None,
        org: None,
        sandbox: None,
    };
    let reader = server.client.create_key(&read).await.unwrap().token;
    for (token, path, status) in [
        (&manage, "/v1/sandboxes/nothing/exec", "404"),
        (
            &manage,
            "/v1/sandboxes/sbx_aaaaaaaaaaaaaaaaaaaa/files/mkdir",
            "404",
        ),
        (&manage, "/daytona/toolbox/nothing/process/execute", "404"),
        (&reader, "/v1/sandboxes", "403"),
    ] {
        let stream = post(&server, token, path, 100, "{");
        let answer = tokio::task::spawn_blocking(move || read_until(stream, "\r\n"));
        let answer = answer.await.unwrap();
        let expected = format!("HTTP/1.1 {status}");
        assert!(answer.starts_with(&expected), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_an_http2_reader_leaves_unread_is_cut() {
    let config = ServerConfig {
        write_stall: Duration::from_millis(500),
        ..ServerConfig::default()
    };
    let server = Server::start(config, ControlConfig::default(), true).await;
    server.sandbox("box").await;
    let stream = tokio::net::TcpStream::connect(server.address)
        .await
        .unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let mut builder =
        hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
    // No window to speak of: the socket is never full.
    builder
        .initial_stream_window_size(16)
        .initial_connection_window_size(65_535);
    let (mut sender, connection) = builder.handshake(io).await.unwrap();
    let ended = tokio::spawn(connection);
    let body = r#"{"argv":["head","-c","1000000","/dev/zero"]}"#;
    let request = http::Request::post(format!("http://{}/v1/sandboxes/box/exec", server.address))
        .header("authorization", format!("Bearer {}", server.token))
        .header("content-type", "application/json")
        .body(http_body_util::Full::new(bytes::Bytes::from_static(
            body.as_bytes(),
        )))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let gone = tokio::time::timeout(DEADLINE, ended).await;
    assert!(gone.is_ok(), "the connection is cut");
    drop(answer);
    until("all was given back", || server.budget.held() == 0).await;
}

async fn org_of(server: &Server, name: &str) -> OrgId {
    let all = server.client.orgs(&Default::default()).await.unwrap();
    let org = all.items.into_iter().find(|org| org.name == name).unwrap();
    org.id.parse().unwrap()
}

/// One way to hold a place of this kind, which shows whether there is one: the status.
async fn taken(server: &Server, client: &Client, token: &str, sandbox: &str, kind: Kind) -> u16 {
    let of = |rest: &str| format!("/v1/sandboxes/{sandbox}{rest}");
    let plain = async |path: String| ask(client, Verb::Get, &path).await.0;
    match kind {
        Kind::Request => plain(of("")).await,
        Kind::Egress => first_line(server, token, &of("/egress?follow=true")).await,
        Kind::Live => first_line(server, token, "/v1/events?follow=true").await,
        Kind::Run => match client.exec(sandbox, &shell("true")).await {
            Ok(_) => 200,
            Err(error) => refused::<()>(Err(error)).0,
        },
        Kind::Transfer => plain(of("/files?path=/etc/hostname")).await,
        Kind::Visit => {
            let id = client.sandbox(sandbox).await.unwrap().id;
            let port = server.previews.port();
            let host = format!("1-{}.localhost:{port}", id.replace('_', "-"));
            let mut stream = TcpStream::connect(server.previews).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX-Cove-Key: {token}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            status_of(stream).await
        }
        Kind::Port => refused(client.connect_port(sandbox, 1).await.map(drop)).0,
    }
}

async fn first_line(server: &Server, token: &str, path: &str) -> u16 {
    let mut stream = connect(server);
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    status_of(stream).await
}

async fn status_of(mut stream: TcpStream) -> u16 {
    let read = tokio::task::spawn_blocking(move || {
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        String::from_utf8_lossy(&head[9..]).parse().unwrap()
    });
    read.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_place_that_one_tenant_fills_is_there_for_the_other() {
    let server = Server::with_guest().await;
    let (greedy_token, greedy) = server.tenant("greedy").await;
    let (other_token, other) = server.tenant("other").await;
    server.sandbox_of(&greedy, "mine").await;
    server.sandbox_of(&other, "theirs").await;
    let org = org_of(&server, "greedy").await;
    for kind in Kind::ALL {
        let held: Vec<_> = std::iter::from_fn(|| server.streams.enter(&org, kind).ok()).collect();
        assert!(held.len() >= kind.sharing().promised, "{kind:?}");
        let beyond = taken(&server, &greedy, &greedy_token, "mine", kind).await;
        assert_eq!(beyond, 429, "{kind:?}: beyond its share");
        let beside = taken(&server, &other, &other_token, "theirs", kind).await;
        assert_ne!(beside, 429, "{kind:?}: the other one has its own");
        drop(held);
        let again = taken(&server, &greedy, &greedy_token, "mine", kind).await;
        assert_ne!(again, 429, "{kind:?}: given back");
    }
}

/// A WebSocket whose handshake is done, for sending what no client library would.
fn websocket(server: &Server, token: Option<&str>, path: &str) -> TcpStream {
    let mut stream = connect(server);
    let key = token.map_or(String::new(), |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\n{key}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 101"), "{path}: {answer}");
    stream
}

/// The beginning of a binary message of so many bytes, masked with zeros.
fn message_head(length: u64) -> Vec<u8> {
    let mut head = vec![0x82, 0x80 | 127];
    head.extend(length.to_be_bytes());
    head.extend([0; 4]);
    head
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_message_of_a_websocket_is_paid_for_by_its_sender() {
    let server = Server::with_guest().await;
    let (token, client) = server.tenant("greedy").await;
    server.sandbox_of(&client, "mine").await;
    let start = StartProcess {
        argv: Some(vec!["cat".into()]),
        stdin_open: true,
        ..StartProcess::default()
    };
    let process = client.start_process("mine", &start).await.unwrap().id;
    let paths = [
        format!("/v1/sandboxes/mine/processes/{process}/attach"),
        "/daytona/toolbox/mine/process/interpreter/execute".to_owned(),
    ];
    for path in paths {
        let socket_server = &server;
        let mut socket =
            tokio::task::block_in_place(|| websocket(socket_server, Some(&token), &path));
        let sent = MIB / 2;
        socket.write_all(&message_head(MIB as u64)).unwrap();
        socket.write_all(&vec![b'x'; sent]).unwrap();
        until("what came of it is held", || server.budget.held() >= sent).await;
        drop(socket);
        until("all was given back", || server.budget.held() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_on_a_websocket_says_a_few_words_at_most() {
    let server = Server::bare().await;
    let path = "/daytona/socket.io/?EIO=4&transport=websocket";
    let closed = tokio::task::block_in_place(|| {
        let mut socket = websocket(&server, None, path);
        let mut sent = message_head(MIB as u64);
        sent.extend(vec![b'x'; 64 * 1024]);
        // The server may close before it took all of that.
        let _ = socket.write_all(&sent);
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).is_ok() || rest.len() < MIB
    });
    assert!(closed, "a message that long is not waited for");
}
