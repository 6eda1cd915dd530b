//! Unknown senders' connections: many, slow, idle, and taken back. A health check from elsewhere is answered
//! throughout.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use cove_control::ControlConfig;
use cove_server::ServerConfig;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::harness::{DEADLINE, Server};

/// From an address of this machine's own loopback network.
async fn from(last: u8, to: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind((IpAddr::from([127, 0, 0, last]), 0).into())
        .unwrap();
    socket.connect(to).await.ok()
}

async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut rest)).await;
    assert!(read.is_ok(), "the server did not close");
}

/// Still open after what the server had to say about it.
async fn is_open(stream: &mut TcpStream) -> bool {
    let mut byte = [0; 1];
    match timeout(Duration::from_millis(20), stream.read(&mut byte)).await {
        Err(_) => true,
        Ok(read) => read.is_ok_and(|count| count > 0),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_does_not_take_every_place() {
    // Nothing but the share of their address ends a connection here.
    let ages = Duration::from_secs(3600);
    let config = ServerConfig {
        connections_max: 64,
        header_timeout: ages,
        keep_alive: ages,
        ..ServerConfig::default()
    };
    let share = cove_server::connection_sharing(64).most();
    let server = Server::start(config, ControlConfig::default(), false).await;
    let mut held = Vec::new();
    for last in [2, 3, 4, 5, 6, 7, 8, 9] {
        for _ in 0..80 {
            held.extend(from(last, server.address).await);
        }
        server.client.health().await.unwrap();
    }
    // Those that lost their places are closed a moment later.
    let started = std::time::Instant::now();
    loop {
        let mut open = 0;
        for stream in held.iter_mut().take(80) {
            open += usize::from(is_open(stream).await);
        }
        if open <= share {
            break;
        }
        let late = started.elapsed() >= DEADLINE;
        assert!(!late, "{open} of one address are open");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_that_drip_are_cut_and_do_not_keep_others_waiting() {
    let config = ServerConfig {
        header_timeout: Duration::from_secs(2),
        ..ServerConfig::default()
    };
    let server = Server::start(config, ControlConfig::default(), false).await;
    let mut drips = tokio::task::JoinSet::new();
    for number in 0..40 {
        let mut stream = from(2 + number % 4, server.address).await.unwrap();
        drips.spawn(async move {
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
                .await
                .unwrap();
            let started = std::time::Instant::now();
            // Always a byte before anything could call it idle.
            while stream.write_all(b"x").await.is_ok() {
                assert!(started.elapsed() < DEADLINE, "it may go on for ever");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    server.answers().await;
    while let Some(drip) = drips.join_next().await {
        drip.unwrap();
    }
    server.answers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_headers_is_refused_and_the_connection_closed() {
    let server = Server::bare().await;
    for flood in [
        "X: y\r\n".repeat(5000),
        format!("X: {}\r\n", "y".repeat(1 << 20)),
    ] {
        let mut stream = from(2, server.address).await.unwrap();
        let head = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{flood}\r\n");
        // The server may close before it took all of it.
        let _ = stream.write_all(head.as_bytes()).await;
        closed(&mut stream).await;
        server.client.health().await.unwrap();
    }
}

type Sender = hyper::client::conn::http2::SendRequest<Body>;

async fn second(server: &Server) -> (Sender, tokio::task::JoinHandle<()>) {
    let stream = from(2, server.address).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(50))
        .keep_alive_while_idle(true);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    let task = tokio::spawn(async move {
        // However it ends.
        let _ = connection.await;
    });
    (sender, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_connection_that_only_pings_ends() {
    let config = ServerConfig {
        header_timeout: Duration::from_secs(3),
        keep_alive: Duration::from_secs(5),
        ..ServerConfig::default()
    };
    let server = Server::start(config, ControlConfig::default(), false).await;
    let (mut sender, connection) = second(&server).await;
    let health = Request::get(format!("http://{}/healthz", server.address));
    let answer = sender
        .send_request(health.body(Body::empty()).unwrap())
        .await;
    answer.unwrap().into_body().collect().await.unwrap();
    let ended = timeout(DEADLINE, connection).await;
    assert!(ended.is_ok(), "it is kept for its pings");
    // One that never asked anything ends too.
    let (_sender, connection) = second(&server).await;
    assert!(timeout(DEADLINE, connection).await.is_ok());
    server.answers().await;
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Header fields as they stand, none of them remembered.
fn fields(all: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in all {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_taken_back_as_fast_as_they_come_end_their_connection() {
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const SETTINGS: u8 = 4;
    const END_HEADERS: u8 = 4;
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    let server = Server::bare().await;
    let key = format!("Bearer {}", server.token);
    let block = fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1/sandboxes"),
        (":authority", "x"),
        ("authorization", &key),
        ("content-type", "application/json"),
    ]);
    // Taken back at once, and after the handler waits for the body: several together then, because so many have to be
    // taken back within some seconds, however slow the machine is.
    for (pause, at_once) in [(Duration::ZERO, 1_u32), (Duration::from_millis(5), 10)] {
        let mut stream = from(2, server.address).await.unwrap();
        let mut first = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        first.extend(frame(SETTINGS, 0, 0, &[]));
        stream.write_all(&first).await.unwrap();
        let (mut reading, mut writing) = stream.into_split();
        let resetting = async {
            for round in 0_u32.. {
                let numbers = (round * at_once..(round + 1) * at_once).map(|one| 2 * one + 1);
                let ask = |number| frame(HEADERS, END_HEADERS, number, &block);
                let asked: Vec<u8> = numbers.clone().flat_map(ask).collect();
                if writing.write_all(&asked).await.is_err() {
                    return;
                }
                tokio::time::sleep(pause).await;
                let take_back = |number| frame(RESET, 0, number, &CANCEL);
                let reset: Vec<u8> = numbers.flat_map(take_back).collect();
                if writing.write_all(&reset).await.is_err() {
                    return;
                }
            }
        };
        let closing = async {
            let mut rest = Vec::new();
            // However it ends.
            reading.read_to_end(&mut rest).await.ok();
        };
        let ended = timeout(DEADLINE, async {
            tokio::select! { () = resetting => {}, () = closing => {} }
        });
        assert!(
            ended.await.is_ok(),
            "it goes on for ever with {pause:?} between"
        );
        server.client.health().await.unwrap();
    }
}
