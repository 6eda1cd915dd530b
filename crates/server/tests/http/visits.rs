//! Visits that are more than a question and an answer: live streams, HTTP/2, calls of procedures, TLS inside,
//! and visitors that take nothing.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use cove_control::ControlConfig;
use cove_server::ServerConfig;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::harness::{DEADLINE, Server};
use super::previews::{host, read_head};

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_while_the_answer_is_still_being_made() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let (inside, port) = listener().await;
    let (next, mut told) = tokio::sync::mpsc::channel::<String>(1);
    let serving = tokio::spawn(async move {
        let (mut stream, _) = inside.accept().await.unwrap();
        read_head(&mut stream).await;
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // The next event is made only once the one before has arrived.
        while let Some(event) = told.recv().await {
            stream.write_all(event.as_bytes()).await.unwrap();
        }
    });
    let mut stream = TcpStream::connect(server.previews).await.unwrap();
    let request = format!(
        "GET /events HTTP/1.1\r\nHost: {}\r\nX-Cove-Key: {}\r\nAccept: text/event-stream\r\n\r\n",
        host(&server, &sandbox, port),
        server.token
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = timeout(DEADLINE, read_head(&mut stream)).await.unwrap();
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    for number in 0..5 {
        let event = format!("data: {number}\n\n");
        next.send(event.clone()).await.unwrap();
        let mut seen = String::new();
        while !seen.contains(&event) {
            let byte = timeout(DEADLINE, stream.read_u8()).await.unwrap().unwrap();
            seen.push(byte.into());
        }
    }
    drop(next);
    serving.await.unwrap();
}

/// A visitor that speaks HTTP/2 from its first byte.
async fn second(server: &Server, request: Request<Full<Bytes>>) -> Response<Incoming> {
    let stream = TcpStream::connect(server.previews).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    timeout(DEADLINE, sender.send_request(request))
        .await
        .unwrap()
        .unwrap()
}

fn asking(server: &Server, host: &str, kind: &str, body: &'static [u8]) -> Request<Full<Bytes>> {
    Request::post(format!("http://{host}/pkg.Service/Method"))
        .header("x-cove-key", &server.token)
        .header("content-type", kind)
        .body(Full::new(Bytes::from_static(body)))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn procedures_are_called_over_http_2_to_the_end_with_their_trailers() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let (inside, port) = listener().await;
    tokio::spawn(async move {
        let (stream, _) = inside.accept().await.unwrap();
        let service = service_fn(|request: Request<Incoming>| async move {
            assert_eq!(request.version(), Version::HTTP_2);
            assert!(!request.headers().contains_key("x-cove-key"));
            let said = request.into_body().collect().await.unwrap().to_bytes();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let frames = [Ok(Frame::data(said)), Ok(Frame::trailers(trailers))];
            let body = StreamBody::new(futures_util::stream::iter(
                frames.map(|frame: Result<_, Infallible>| frame),
            ));
            let answer = Response::builder().header("content-type", "application/grpc");
            Ok::<_, Infallible>(answer.body(body).unwrap())
        });
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await
            .ok();
    });
    let host = host(&server, &sandbox, port);
    let request = asking(&server, &host, "application/grpc", b"\0\0\0\0\x02hi");
    let answer = second(&server, request).await;
    assert_eq!(answer.status(), 200);
    let body = timeout(DEADLINE, answer.into_body().collect()).await;
    let body = body.unwrap().unwrap();
    let status = body.trailers().and_then(|all| all.get("grpc-status"));
    assert_eq!(status.map(|value| value.as_bytes()), Some(&b"0"[..]));
    assert_eq!(body.to_bytes(), &b"\0\0\0\0\x02hi"[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_visitor_may_speak_http_2_to_a_server_that_does_not() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let (inside, port) = listener().await;
    let said = tokio::spawn(async move {
        let (mut stream, _) = inside.accept().await.unwrap();
        let head = read_head(&mut stream).await;
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nold";
        stream.write_all(answer.as_bytes()).await.unwrap();
        head
    });
    let host = host(&server, &sandbox, port);
    let answer = second(&server, asking(&server, &host, "text/plain", b"new")).await;
    assert_eq!(answer.version(), Version::HTTP_2);
    let body = timeout(DEADLINE, answer.into_body().collect()).await;
    assert_eq!(body.unwrap().unwrap().to_bytes(), "old");
    let head = said.await.unwrap();
    assert!(
        head.starts_with("post /pkg.service/method http/1.1"),
        "{head}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_visitor_that_takes_nothing_is_given_up_and_lets_the_server_inside_go() {
    let config = ServerConfig {
        write_stall: Duration::from_millis(500),
        ..ServerConfig::default()
    };
    let server = Server::start(config, ControlConfig::default(), true).await;
    let sandbox = server.sandbox("box").await;
    let (inside, port) = listener().await;
    let serving = tokio::spawn(async move {
        let (mut stream, _) = inside.accept().await.unwrap();
        read_head(&mut stream).await;
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let block = vec![7; 64 * 1024];
        let mut sent = 0_usize;
        while stream.write_all(&block).await.is_ok() {
            sent += block.len();
        }
        sent
    });
    let mut visitor = TcpStream::connect(server.previews).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {}\r\nX-Cove-Key: {}\r\n\r\n",
        host(&server, &sandbox, port),
        server.token
    );
    visitor.write_all(request.as_bytes()).await.unwrap();
    // Nothing is read here; what was on its way is bounded by sockets and one buffer or two.
    let sent = timeout(DEADLINE, serving)
        .await
        .expect("the server inside is let go")
        .unwrap();
    assert!(sent < 64 * 1024 * 1024, "{sent} bytes were taken from it");
    drop(visitor);
}
