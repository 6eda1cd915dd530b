//! Visits to servers inside, by those who may and those who may not. The servers here are the test's
//! own: the guest dials this machine's loopback.

use std::net::SocketAddr;

use cove_api::port::SharePort;
use cove_api::sandbox::Sandbox;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::harness::{DEADLINE, Server};

/// A server inside: hands over what each connection said up to the end of its headers, and answers
/// with the text it was given.
pub struct Inside {
    pub port: u16,
    said: mpsc::UnboundedReceiver<String>,
}

impl Inside {
    pub async fn answering(answer: &'static str) -> Self {
        Self::at("127.0.0.1:0", answer).await
    }

    async fn at(address: &str, answer: &'static str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, said) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let tell = tell.clone();
                tokio::spawn(async move {
                    let head = read_head(&mut stream).await;
                    tell.send(head).ok();
                    stream.write_all(answer.as_bytes()).await.ok();
                    // What comes after an answer that changed the protocol is echoed.
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await.ok();
                });
            }
        });
        Self { port, said }
    }

    /// The headers of the next request it got.
    async fn next(&mut self) -> String {
        timeout(DEADLINE, self.said.recv()).await.unwrap().unwrap()
    }

    fn nobody_came(&mut self) -> bool {
        self.said.try_recv().is_err()
    }
}

pub async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).to_lowercase()
}

const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine";

/// Sends bytes as they are; everything that comes back until the server closes.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
    match read.expect("an answer in time") {
        Ok(_) => {}
        // Something of the request was left unread when the server closed; the answer came before.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("no answer: {error}"),
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// A port that stays free: it is somebody's, and nobody listens.
pub fn closed_port() -> (TcpSocket, u16) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

struct Visit<'a> {
    server: &'a Server,
    host: String,
}

impl Visit<'_> {
    async fn get(&self, path: &str, headers: &str) -> String {
        let host = &self.host;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
        raw(self.server.previews, &request).await
    }
}

pub fn host(server: &Server, sandbox: &Sandbox, port: u16) -> String {
    let id = sandbox.id.replace('_', "-");
    format!("{port}-{id}.localhost:{}", server.previews.port())
}

fn visit<'a>(server: &'a Server, sandbox: &Sandbox, port: u16) -> Visit<'a> {
    Visit {
        server,
        host: host(server, sandbox, port),
    }
}

fn status(answer: &str) -> u16 {
    let word = answer.split(' ').nth(1).unwrap_or_default();
    word.parse()
        .unwrap_or_else(|_| panic!("no status: {answer}"))
}

fn header<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

pub async fn token(server: &Server, sandbox: &Sandbox, port: u16) -> String {
    let share = SharePort::default();
    let share = server.client.share_port(&sandbox.id, port, &share).await;
    share.unwrap().token.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_is_private_and_strangers_cannot_tell_which_exist() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let mut inside = Inside::answering(FINE).await;
    let there = visit(&server, &sandbox, inside.port).get("/", "").await;
    let other = Sandbox {
        id: cove_model::SandboxId::random().to_string(),
        ..sandbox.clone()
    };
    let nowhere = visit(&server, &other, inside.port).get("/", "").await;
    for answer in [&there, &nowhere] {
        assert_eq!(status(answer), 401, "{answer}");
        assert!(answer.contains("this preview is private"), "{answer}");
    }
    let wrong = format!("Authorization: Bearer cove_{}\r\n", "0".repeat(64));
    let answer = visit(&server, &sandbox, inside.port).get("/", &wrong).await;
    assert_eq!(status(&answer), 401);
    assert!(inside.nobody_came());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_lets_in_and_never_reaches_the_server() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let mut inside = Inside::answering(FINE).await;
    let place = visit(&server, &sandbox, inside.port);
    for name in ["Authorization: Bearer ", "X-Cove-Key: "] {
        let key = format!("{name}{}\r\nX-Forwarded-For: 9.9.9.9\r\n", server.token);
        let answer = place.get("/a/b?c=d", &key).await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(answer.ends_with("fine"));
        let head = inside.next().await;
        assert!(head.starts_with("get /a/b?c=d http/1.1\r\n"), "{head}");
        assert!(
            head.contains(&format!("\r\nhost: {}\r\n", place.host)),
            "{head}"
        );
        assert!(
            head.contains("\r\nx-forwarded-for: 127.0.0.1\r\n"),
            "{head}"
        );
        assert!(
            !head.contains("cove_") && !head.contains("authorization"),
            "{head}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_becomes_a_cookie_that_opens_this_port_of_this_sandbox_only() {
    let server = Server::with_guest().await;
    let (sandbox, other) = (server.sandbox("one").await, server.sandbox("two").await);
    let mut inside = Inside::answering(FINE).await;
    let elsewhere = Inside::answering(FINE).await;
    let token = token(&server, &sandbox, inside.port).await;
    let place = visit(&server, &sandbox, inside.port);
    let page = place
        .get(
            &format!("/x?a=1&cove_token={token}"),
            "Accept: text/html\r\n",
        )
        .await;
    assert_eq!(status(&page), 303, "{page}");
    assert_eq!(header(&page, "location"), Some("/x?a=1"));
    let cookie = header(&page, "set-cookie").unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"),
        "{cookie}"
    );
    assert!(!cookie.to_lowercase().contains("domain"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let sent = format!("Cookie: own=1; {cookie}\r\n");
    let answer = place.get("/x", &sent).await;
    assert_eq!(status(&answer), 200, "{answer}");
    let head = inside.next().await;
    assert!(head.contains("\r\ncookie: own=1\r\n"), "{head}");
    assert!(!head.contains("cove"), "{head}");
    // The same cookie anywhere else.
    for (sandbox, port) in [(&other, inside.port), (&sandbox, elsewhere.port)] {
        let answer = visit(&server, sandbox, port).get("/", &sent).await;
        assert_eq!(status(&answer), 401, "{answer}");
    }
    // In somebody else's hands: a page of another sandbox, by request and by WebSocket.
    let origin = format!("Origin: http://{}\r\n", host(&server, &other, inside.port));
    let socket = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    for headers in [format!("{sent}{origin}"), format!("{sent}{origin}{socket}")] {
        assert_eq!(status(&place.get("/", &headers).await), 401);
    }
    // The API takes no cookie at all.
    let request =
        format!("GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{sent}\r\n");
    assert_eq!(status(&raw(server.address, &request).await), 401);
    assert!(inside.nobody_came());
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_expired_and_revoked_tokens_are_worthless() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let inside = Inside::answering(FINE).await;
    let place = visit(&server, &sandbox, inside.port);
    let good = token(&server, &sandbox, inside.port).await;
    let ask = async |token: &str| {
        let answer = place.get("/", &format!("X-Cove-Token: {token}\r\n")).await;
        status(&answer)
    };
    assert_eq!(ask(&good).await, 200);
    let mut parts: Vec<String> = good.splitn(3, '.').map(str::to_owned).collect();
    parts[0] = "99999999999".into();
    assert_eq!(ask(&parts.join(".")).await, 401, "a later end");
    let mut flipped = good.clone().into_bytes();
    let last = flipped.len() - 5;
    flipped[last] = if flipped[last] == b'A' { b'B' } else { b'A' };
    assert_eq!(ask(&String::from_utf8(flipped).unwrap()).await, 401);
    let client = &server.client;
    client.unshare_port(&sandbox.id, inside.port).await.unwrap();
    assert_eq!(ask(&good).await, 401, "taken back");
    assert_eq!(ask(&token(&server, &sandbox, inside.port).await).await, 200);
    assert_eq!(ask(&good).await, 401, "still");
    // Open to everybody, and closed again.
    let open = SharePort {
        public: true,
        expires_s: None,
    };
    let share = client
        .share_port(&sandbox.id, inside.port, &open)
        .await
        .unwrap();
    assert!(share.public && share.token.is_none() && !share.url.contains("token"));
    assert_eq!(status(&place.get("/", "").await), 200);
    let ports = client.ports(&sandbox.id).await.unwrap().items;
    let shown = ports
        .iter()
        .find(|port| port.port == u32::from(inside.port));
    let shown = shown.expect("the port is listed");
    assert!(shown.public && shown.url.as_ref().unwrap().contains(&place.host));
    client.unshare_port(&sandbox.id, inside.port).await.unwrap();
    assert_eq!(status(&place.get("/", "").await), 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_host_and_one_length() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let mut inside = Inside::answering(FINE).await;
    let key = format!("X-Cove-Key: {}\r\nConnection: close\r\n", server.token);
    let host = host(&server, &sandbox, inside.port);
    for head in [
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: other\r\n"),
        format!("GET http://other/ HTTP/1.1\r\nHost: {host}\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {host}@evil\r\n"),
        format!("GET / HTTP/1.1\r\nHost: x/{host}\r\n"),
        "GET / HTTP/1.1\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1\r\nContent-Length: 2\r\n"),
    ] {
        let answer = raw(server.previews, &format!("{head}{key}\r\n")).await;
        assert_eq!(status(&answer), 400, "{head}{answer}");
    }
    let dotted = host.replace(".localhost:", ".localhost.:");
    let request = format!("GET / HTTP/1.1\r\nHost: {dotted}\r\n{key}\r\n");
    assert_eq!(status(&raw(server.previews, &request).await), 404);
    assert!(inside.nobody_came());
    // Both framings at once: whatever is made of it, the server inside sees one request and one framing.
    let smuggled = "0\r\n\r\nGET /evil HTTP/1.1\r\nHost: x\r\n\r\n";
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {host}\r\nX-Cove-Key: {}\r\nContent-Length: {}\r\n\
         Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n{smuggled}",
        server.token,
        smuggled.len()
    );
    let answer = raw(server.previews, &request).await;
    if status(&answer) == 200 {
        let head = inside.next().await;
        let framings = ["content-length", "transfer-encoding"];
        let framed = framings.iter().filter(|name| head.contains(*name)).count();
        assert!(framed <= 1 && !head.contains("evil"), "{head}");
    }
    assert!(inside.nobody_came(), "a second request got through");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_server_cannot_reach_beyond_its_host() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let inside = Inside::answering(
        "HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Domain=localhost; Path=/\r\n\
         Set-Cookie: cove_preview=stolen\r\nClear-Site-Data: \"*\"\r\nAlt-Svc: h2=\"evil:1\"\r\n\
         Strict-Transport-Security: max-age=1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    )
    .await;
    let key = format!("X-Cove-Key: {}\r\n", server.token);
    let answer = visit(&server, &sandbox, inside.port).get("/", &key).await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert_eq!(header(&answer, "set-cookie"), Some("a=1; Path=/"));
    let lower = answer.to_lowercase();
    for gone in [
        "cove_preview",
        "clear-site-data",
        "alt-svc",
        "strict-transport",
    ] {
        assert!(!lower.contains(gone), "{answer}");
    }
    // An upgrade nobody asked for, and no HTTP at all.
    for nonsense in [
        "HTTP/1.1 101 Sure\r\nUpgrade: x\r\n\r\n",
        "220 smtp ready\r\n",
    ] {
        let inside = Inside::answering(nonsense).await;
        let answer = visit(&server, &sandbox, inside.port).get("/", &key).await;
        assert_eq!(status(&answer), 502, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_protocol_may_follow_an_upgrade() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let mut inside = Inside::answering(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
    )
    .await;
    let host = host(&server, &sandbox, inside.port);
    let mut stream = TcpStream::connect(server.previews).await.unwrap();
    let request = format!(
        "GET /ws HTTP/1.1\r\nHost: {host}\r\nX-Cove-Key: {}\r\nConnection: Upgrade\r\n\
         Upgrade: echo\r\n\r\n",
        server.token
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = timeout(DEADLINE, read_head(&mut stream)).await.unwrap();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("\r\nupgrade: echo\r\n"), "{head}");
    assert!(inside.next().await.contains("\r\nupgrade: echo\r\n"));
    stream.write_all(b"\0\x01 any bytes").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut echoed = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut echoed))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(echoed, b"\0\x01 any bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn loopback_of_both_kinds_and_both_addresses_lead_inside() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let key = format!("X-Cove-Key: {}\r\n", server.token);
    let six = Inside::at("[::1]:0", FINE).await;
    let answer = visit(&server, &sandbox, six.port).get("/", &key).await;
    assert_eq!(status(&answer), 200, "{answer}");
    let mut inside = Inside::answering(
        "HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    )
    .await;
    let prefix = format!("/p/{}/{}", sandbox.id, inside.port);
    let by_path = Visit {
        server: &server,
        host: format!("127.0.0.1:{}", server.previews.port()),
    };
    let answer = by_path.get(&format!("{prefix}/a?b"), &key).await;
    assert_eq!(
        header(&answer, "location"),
        Some(format!("{prefix}/login").as_str())
    );
    assert!(
        header(&answer, "content-security-policy")
            .unwrap()
            .starts_with("sandbox")
    );
    let head = inside.next().await;
    assert!(head.starts_with("get /a?b http/1.1\r\n"), "{head}");
    assert!(
        head.contains(&format!("\r\nhost: localhost:{}\r\n", inside.port)),
        "{head}"
    );
    assert!(
        head.contains(&format!("\r\nx-forwarded-prefix: {prefix}\r\n")),
        "{head}"
    );
    // A cookie would be every sandbox's there.
    let token = token(&server, &sandbox, inside.port).await;
    let cookie = format!("Cookie: cove_preview={token}\r\n");
    assert_eq!(status(&by_path.get(&prefix, &cookie).await), 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_shown_is_told_to_people_and_to_programs() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let key = format!("X-Cove-Key: {}\r\n", server.token);
    let (_closed, port) = closed_port();
    let place = visit(&server, &sandbox, port);
    let answer = place.get("/", &key).await;
    assert_eq!(status(&answer), 502, "{answer}");
    assert!(answer.contains("\"port_closed\""), "{answer}");
    let page = place.get("/", &format!("{key}Accept: text/html\r\n")).await;
    assert_eq!(status(&page), 502);
    assert!(page.contains("<h1>Nothing listens here yet</h1>"), "{page}");
    let stop = cove_api::sandbox::StopSandbox::default();
    server
        .client
        .stop_sandbox(&sandbox.id, &stop)
        .await
        .unwrap();
    let answer = place.get("/", &key).await;
    assert_eq!(status(&answer), 409, "{answer}");
    assert!(answer.contains("the sandbox is stopped"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_flow_both_ways() {
    const LENGTH: usize = 24 * 1024 * 1024;
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let inside = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = inside.local_addr().unwrap().port();
    let echo = tokio::spawn(async move {
        let (mut stream, _) = inside.accept().await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(
            head.contains(&format!("\r\ncontent-length: {LENGTH}\r\n")),
            "{head}"
        );
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.ok();
    });
    let mut stream = TcpStream::connect(server.previews).await.unwrap();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {}\r\nX-Cove-Key: {}\r\nConnection: close\r\n\
         Content-Length: {LENGTH}\r\n\r\n",
        host(&server, &sandbox, port),
        server.token
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let sending = tokio::spawn(async move {
        let block: Vec<u8> = (0..64 * 1024).map(|at: u32| at as u8).collect();
        for _ in 0..LENGTH / block.len() {
            to.write_all(&block).await.unwrap();
        }
        to
    });
    let mut answer = Vec::new();
    timeout(DEADLINE, from.read_to_end(&mut answer))
        .await
        .unwrap()
        .unwrap();
    sending.await.unwrap();
    let at = answer
        .windows(4)
        .position(|part| part == b"\r\n\r\n")
        .unwrap()
        + 4;
    assert_eq!(answer.len() - at, LENGTH);
    assert!(
        answer[at..]
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == at as u8)
    );
    echo.await.unwrap();
}
