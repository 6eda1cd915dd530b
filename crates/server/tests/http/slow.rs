//! Clients that take their time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use cove_control::ControlConfig;
use cove_server::ServerConfig;

use super::harness::{DEADLINE, Server};

fn impatient() -> ServerConfig {
    ServerConfig {
        header_timeout: Duration::from_millis(300),
        keep_alive: Duration::from_millis(300),
        ..ServerConfig::default()
    }
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Everything until the server closes.
fn to_the_end(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server did not close: {error}"),
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_never_end_are_cut_off() {
    let server = Server::start(impatient(), ControlConfig::default(), false).await;
    let mut stream = connect(&server);
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        .unwrap();
    tokio::task::spawn_blocking(move || to_the_end(stream))
        .await
        .unwrap();
    server.answers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_told_so() {
    // The head may come late.
    let config = ServerConfig {
        keep_alive: Duration::from_secs(5),
        body_timeout: Duration::from_millis(300),
        ..ServerConfig::default()
    };
    let server = Server::start(config, ControlConfig::default(), false).await;
    let mut stream = connect(&server);
    let head = format!(
        "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{",
        server.token
    );
    stream.write_all(head.as_bytes()).unwrap();
    let answer = tokio::task::spawn_blocking(move || to_the_end(stream))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_its_answer_is_let_go() {
    // Nothing else has to be quick, the client of this test least of all.
    let config = ServerConfig {
        keep_alive: Duration::from_secs(2),
        write_stall: Duration::from_secs(2),
        ..ServerConfig::default()
    };
    let server = Server::start(config, ControlConfig::default(), true).await;
    server.sandbox("box").await;
    let mut stream = connect(&server);
    let head = format!(
        "GET /v1/sandboxes/box/files?path=/dev/../proc/kallsyms HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        server.token
    );
    // Many answers that nobody reads: sooner or later the server cannot send any more.
    for _ in 0..64 {
        if stream.write_all(head.as_bytes()).is_err() {
            break;
        }
    }
    let gone = async {
        loop {
            let text = server.client.prometheus().await.unwrap();
            let open = text
                .lines()
                .find(|line| line.starts_with("cove_http_connections "))
                .unwrap();
            if open == "cove_http_connections 1" {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, gone)
        .await
        .expect("the connection is closed");
    drop(stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_wait_for_a_place() {
    let config = ServerConfig {
        connections_max: 2,
        ..impatient()
    };
    let server = Server::start(config, ControlConfig::default(), false).await;
    let idle: Vec<_> = (0..2).map(|_| connect(&server)).collect();
    // Both places are taken until their header time is over; then this one is served.
    server.answers().await;
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_instead_of_http_hurts_nobody() {
    let server = Server::bare().await;
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01"[..],
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxxxx",
    ] {
        let mut stream = connect(&server);
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        tokio::task::spawn_blocking(move || to_the_end(stream))
            .await
            .unwrap();
    }
    server.client.health().await.unwrap();
}
