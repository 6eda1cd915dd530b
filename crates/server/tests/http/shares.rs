//! Two tenants: one asks for more than its share, the other must not notice.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use cove_control::ControlConfig;
use cove_control::budget::MEMORY;
use cove_server::ServerConfig;

use super::harness::{DEADLINE, Server, shell};

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

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds() {
        assert!(started.elapsed() < DEADLINE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_are_paid_for_by_who_asked() {
    let server = Server::with_guest().await;
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
    let server = Server::with_guest().await;
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
    let server = Server::with_guest().await;
    let (token, client) = server.tenant("greedy").await;
    server.sandbox_of(&client, "mine").await;
    let path = "/v1/sandboxes/mine/exec";
    let begun = format!("{{\"stdin\":\"{}", "x".repeat(12 * MIB));
    let mut bodies = Vec::new();
    // As many as fit: each is held as it came and as what is read from it.
    for _ in 0..MEMORY.most() / 2 / (24 * MIB) {
        let (sent, length) = (begun.clone(), 16 * MIB);
        let stream = post(&server, &token, path, length, &sent);
        bodies.push(stream);
    }
    until("the share is held", || server.budget.held() > 100 * MIB).await;
    let mut refused = post(&server, &token, path, 16 * MIB, "");
    let pump = std::thread::spawn(move || {
        // The server may stop reading at any byte: it has answered then.
        let _ = refused.write_all(begun.as_bytes());
        let mut answer = [0; 1024];
        let count = refused.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..count]).into_owned()
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
        let answer = tokio::task::spawn_blocking(move || {
            let mut stream = stream;
            let mut answer = [0; 512];
            let count = stream.read(&mut answer).unwrap();
            String::from_utf8_lossy(&answer[..count]).into_owned()
        });
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
