//! Those who are in when their key or link is taken back, and what those who stay may hold.

use std::net::SocketAddr;

use axum::body::Body;
use axum::http::Request;
use cove_api::ErrorCode;
use cove_api::egress::EgressQuery;
use cove_api::port::SharePort;
use cove_api::tenancy::{CreateKey, NewKey, Scope};
use cove_client::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::harness::{DEADLINE, Server, refused};
use super::previews::{Inside, host, read_head, token};

const ECHO: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
const ENDLESS: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegin";

/// A visit that has become a stream of bytes.
async fn tunnel(previews: SocketAddr, host: &str, pass: &str) -> TcpStream {
    let mut stream = TcpStream::connect(previews).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\n{pass}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = timeout(DEADLINE, read_head(&mut stream)).await.unwrap();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(echoes(&mut stream).await);
    stream
}

async fn echoes(stream: &mut TcpStream) -> bool {
    let mut echoed = [0; 4];
    stream.write_all(b"ping").await.is_ok()
        && timeout(DEADLINE, stream.read_exact(&mut echoed))
            .await
            .unwrap()
            .is_ok()
}

/// Whether the other side ended it, however it did.
async fn ends(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut rest = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut rest))
        .await
        .is_ok()
}

async fn key(server: &Server, name: &str) -> (NewKey, Client) {
    let create = CreateKey {
        name: name.into(),
        scopes: vec![Scope::Read, Scope::Use],
        expires_in_s: None,
        org: None,
        sandbox: None,
    };
    let new = server.client.create_key(&create).await.unwrap();
    let client = server.client_with(Some(&new.token));
    (new, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn taking_a_ports_links_back_ends_the_visits_that_they_opened() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let (inside, other) = (Inside::answering(ECHO).await, Inside::answering(ECHO).await);
    let mut open = Vec::new();
    for port in [inside.port, other.port] {
        let pass = format!("X-Cove-Token: {}", token(&server, &sandbox, port).await);
        let host = host(&server, &sandbox, port);
        open.push(tunnel(server.previews, &host, &pass).await);
    }
    let by_key = format!("X-Cove-Key: {}", server.token);
    let named = host(&server, &sandbox, inside.port);
    let mut by_key = tunnel(server.previews, &named, &by_key).await;
    let client = &server.client;
    client.unshare_port(&sandbox.id, inside.port).await.unwrap();
    assert!(ends(&mut open[0]).await, "it is still open");
    assert!(echoes(&mut open[1]).await, "another port's links hold");
    assert!(echoes(&mut by_key).await, "a key needs no link");
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_a_public_port_ends_answers_that_are_under_way() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let inside = Inside::answering(ENDLESS).await;
    let open = SharePort {
        public: true,
        expires_s: None,
    };
    let client = &server.client;
    let shared = client.share_port(&sandbox.id, inside.port, &open).await;
    shared.unwrap();
    let mut stream = TcpStream::connect(server.previews).await.unwrap();
    let host = host(&server, &sandbox, inside.port);
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = timeout(DEADLINE, read_head(&mut stream)).await.unwrap();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let mut begun = [0; 5];
    let begun = timeout(DEADLINE, stream.read_exact(&mut begun)).await;
    begun.unwrap().unwrap();
    client.unshare_port(&sandbox.id, inside.port).await.unwrap();
    assert!(ends(&mut stream).await, "it is still open");
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_a_key_ends_its_visits_and_connections_and_no_others() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let inside = Inside::answering(ECHO).await;
    let host = host(&server, &sandbox, inside.port);
    let (gone, with_gone) = key(&server, "gone").await;
    let (stays, with_stays) = key(&server, "stays").await;
    let pass = |key: &NewKey| format!("X-Cove-Key: {}", key.token);
    let mut visit = tunnel(server.previews, &host, &pass(&gone)).await;
    let mut other = tunnel(server.previews, &host, &pass(&stays)).await;
    let port = inside.port;
    let mut connection = with_gone.connect_port("box", port).await.unwrap();
    let mut kept = with_stays.connect_port("box", port).await.unwrap();
    server.client.revoke_key(&gone.key.id).await.unwrap();
    assert!(ends(&mut visit).await, "the visit is still open");
    assert!(ends(&mut connection).await, "the connection is still open");
    assert!(echoes(&mut other).await);
    kept.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = vec![0; ECHO.len()];
    let answered = timeout(DEADLINE, kept.read_exact(&mut answer)).await;
    answered.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_organisation_follows_so_many_logs_and_no_more() {
    const FOLLOWED_MAX: usize = 64;
    let server = Server::bare().await;
    server.sandbox("box").await;
    let query = EgressQuery::default();
    let mut open = Vec::new();
    for _ in 0..FOLLOWED_MAX {
        open.push(server.client.follow_egress("box", &query).await.unwrap());
    }
    let (_, detail) = refused(server.client.follow_egress("box", &query).await);
    assert_eq!(detail.code, ErrorCode::LimitReached, "{detail:?}");
    // Reading what there is needs no place.
    server.client.egress("box", &query).await.unwrap();
    open.pop();
    let again = async {
        while server.client.follow_egress("box", &query).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, again).await.expect("there is room again");
}

/// Header and content of an HTTP/2 frame.
async fn frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut header = [0; 9];
    stream.read_exact(&mut header).await.unwrap();
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    let mut content = vec![0; length as usize];
    stream.read_exact(&mut content).await.unwrap();
    (header[3], content)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_inside_may_send_little_ahead_of_a_visitor_over_http2() {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    const INITIAL_WINDOW: u16 = 4;
    const PREFACE: usize = 24;
    const ROOM: u32 = 64 * 1024;
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let inside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = inside.local_addr().unwrap().port();
    let visitor = TcpStream::connect(server.previews).await.unwrap();
    let executor = TokioExecutor::new();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(executor)
        .handshake(TokioIo::new(visitor))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let host = host(&server, &sandbox, port);
    let request = Request::post(format!("http://{host}/a.Service/Call"))
        .header("content-type", "application/grpc")
        .header("x-cove-key", &server.token)
        .body(Body::empty())
        .unwrap();
    let visit = tokio::spawn(async move { sender.send_request(request).await.map(drop) });
    let (mut stream, _) = timeout(DEADLINE, inside.accept()).await.unwrap().unwrap();
    // What both windows are when nothing is said.
    let (mut each, mut whole) = (65_535, 65_535);
    let read = async {
        stream.read_exact(&mut [0; PREFACE]).await.unwrap();
        stream
            .write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
            .await
            .unwrap();
        loop {
            match frame(&mut stream).await {
                (SETTINGS, content) => {
                    for setting in content.chunks_exact(6) {
                        if u16::from_be_bytes([setting[0], setting[1]]) == INITIAL_WINDOW {
                            each = u32::from_be_bytes(setting[2..].try_into().unwrap());
                        }
                    }
                }
                (WINDOW_UPDATE, content) => {
                    whole += u32::from_be_bytes(content.try_into().unwrap());
                }
                (HEADERS, _) => return,
                _ => {}
            }
        }
    };
    timeout(DEADLINE, read).await.unwrap();
    assert!(each <= ROOM && whole <= ROOM, "{each} and {whole}");
    visit.abort();
    connection.abort();
}
