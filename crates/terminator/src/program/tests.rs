//! Whole connections over loopback: a client, the terminator's part, and a server, in each version of HTTP.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cove_model::secret::{SealedSecret, SecretBinding};
use cove_model::{OrgId, SandboxId, SecretId};
use cove_vault::{About, HostKeys, OpenedKeys};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};

use super::carry::{Counted, Counts, Route, carry};
use super::certificates::Certificates;
use super::serve::take_over;
use super::table::Table;
use crate::call::{Placed, PlacedGrant};
use crate::handover::{self, Handover};

mod asking;
mod budgets;

const HOST: &str = "api.example";
const PLACEHOLDER: &str = "cove-secret-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const VALUE: &str = "sk-canary-0123456789";

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

async fn connect<F>(
    protocol: &[u8],
    serve: impl FnOnce(tokio_rustls::server::TlsStream<TcpStream>) -> F,
) -> TlsStream<TcpStream>
where
    F: Future<Output = ()> + Send + 'static,
{
    connect_with("bearer", VALUE, protocol, serve).await.0
}

/// A client's TLS connection through the terminator to a server that offers `protocol` and is served by `serve`,
/// for a sandbox with one secret; and what the terminator knows.
async fn connect_with<F>(
    usage: &str,
    value: &str,
    protocol: &[u8],
    serve: impl FnOnce(tokio_rustls::server::TlsStream<TcpStream>) -> F,
) -> (TlsStream<TcpStream>, Arc<Table>)
where
    F: Future<Output = ()> + Send + 'static,
{
    connect_asking(usage, value, None, protocol, serve).await
}

/// `ask`: each use needs an approval, and is held for so long.
async fn connect_asking<F>(
    usage: &str,
    value: &str,
    ask: Option<Duration>,
    protocol: &[u8],
    serve: impl FnOnce(tokio_rustls::server::TlsStream<TcpStream>) -> F,
) -> (TlsStream<TcpStream>, Arc<Table>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let binding = SecretBinding {
        hosts: vec![HOST.parse().unwrap()],
        usage: usage.parse().unwrap(),
        ask: ask.is_some(),
        limits: Vec::new(),
    };
    let world = World::new(value, binding, ask.unwrap_or_default());
    let sandbox = world.place(1);
    let client = world.connect(&sandbox, protocol, serve).await;
    (client, world.table)
}

/// A terminator with one secret, and a server that it trusts.
struct World {
    table: Arc<Table>,
    certificates: Arc<Certificates>,
    /// What clients trust.
    authority: String,
    server: ServerConfig,
}

impl World {
    fn new(value: &str, binding: SecretBinding, hold: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = HostKeys::load_or_make(&folder.path().join("secret.key")).unwrap();
        let org = OrgId::random();
        let keys = cove_vault::make_keys(&org, &host).unwrap();
        let opened = || OpenedKeys::unwrap(&keys, &host).unwrap();
        let about = About {
            org: &org,
            name: "token",
            version: 1,
            binding: &binding,
        };
        let sealed = cove_vault::seal(&keys.public, &about, value.as_bytes()).unwrap();
        let table = Arc::new(Table::new(org.clone(), opened(), hold));
        assert!(table.set_secrets(vec![SealedSecret {
            id: SecretId::random(),
            name: "token".into(),
            version: 1,
            binding,
            sealed,
        }]));
        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
        let certificates = Certificates::new(org.as_str(), &opened(), &made.cert.pem()).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        Self {
            table,
            certificates: Arc::new(certificates),
            authority: keys.authority,
            server,
        }
    }

    /// A sandbox that holds the secret.
    fn place(&self, slot: u32) -> SandboxId {
        let sandbox = SandboxId::random();
        self.table.place(Placed {
            sandbox: sandbox.clone(),
            slot,
            grants: vec![PlacedGrant {
                secret: "token".into(),
                slot: 0,
                placeholder: PLACEHOLDER.into(),
            }],
        });
        sandbox
    }

    async fn connect<F>(
        &self,
        sandbox: &SandboxId,
        protocol: &[u8],
        serve: impl FnOnce(tokio_rustls::server::TlsStream<TcpStream>) -> F,
    ) -> TlsStream<TcpStream>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut config = self.server.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        let (inside, client) = pair().await;
        let (server, outside) = pair().await;
        let accepting = TlsAcceptor::from(Arc::new(config)).accept(outside);
        let route = Route {
            host: cove_model::network::Name::from_text(HOST).unwrap(),
            port: 443,
        };
        let connection = self.table.connect(sandbox.clone()).unwrap();
        let certificates = self.certificates.clone();
        tokio::spawn(async move {
            let server = Counted::server(server, Arc::new(Counts::default()));
            let client = Counted::client(Vec::new(), client);
            let _ = carry(&certificates, connection, route, client, server).await;
        });
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(self.authority.as_bytes()).unwrap();
        roots.add(authority).unwrap();
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from(HOST).unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, inside);
        let (accepted, connected) = tokio::join!(accepting, connecting);
        tokio::spawn(serve(accepted.unwrap()));
        connected.unwrap()
    }
}

/// Says in its body and its trailers what it was authorised with.
async fn tell(request: Request<Incoming>) -> Result<Response<Told>, hyper::Error> {
    let seen = request.headers()["authorization"].clone();
    let body = request.into_body().collect().await?.to_bytes();
    let (first, second) = seen.as_bytes().split_at(12);
    let mut trailers = HeaderMap::new();
    trailers.insert("x-seen", seen.clone());
    let frames = vec![
        Ok(Frame::data(Bytes::copy_from_slice(first))),
        Ok(Frame::data(Bytes::copy_from_slice(second))),
        Ok(Frame::data(body)),
        Ok(Frame::trailers(trailers)),
    ];
    let mut response = Response::new(StreamBody::new(futures_of(frames)));
    // For the test alone: that the server had the value.
    let right = (seen == format!("Bearer {VALUE}")).to_string();
    response
        .headers_mut()
        .insert("x-right", right.parse().unwrap());
    Ok(response)
}

type Frames = std::vec::IntoIter<Result<Frame<Bytes>, hyper::Error>>;
type Told = StreamBody<Sequence>;

struct Sequence(Frames);

fn futures_of(frames: Vec<Result<Frame<Bytes>, hyper::Error>>) -> Sequence {
    Sequence(frames.into_iter())
}

impl futures_core::Stream for Sequence {
    type Item = Result<Frame<Bytes>, hyper::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

#[tokio::test]
async fn http_2_is_carried_with_streamed_bodies_and_trailers() {
    let client = connect(b"h2", |server| async move {
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder
            .serve_connection(TokioIo::new(server), service_fn(tell))
            .await;
    })
    .await;
    assert_eq!(client.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client));
    let (mut sender, connection) = shaken.await.unwrap();
    tokio::spawn(connection);
    let request = |authority: &str, token: &str| {
        Request::post(format!("https://{authority}/v1"))
            .version(Version::HTTP_2)
            .header("authorization", format!("Bearer {token}"))
            .body(Full::new(Bytes::from_static(b" and a body")))
            .unwrap()
    };
    let answer = sender
        .send_request(request(HOST, PLACEHOLDER))
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["x-right"], "true");
    let answer = answer.into_body().collect().await.unwrap();
    let trailer = answer.trailers().unwrap()["x-seen"].clone();
    assert_eq!(trailer, format!("Bearer {PLACEHOLDER}"));
    assert_eq!(
        answer.to_bytes(),
        format!("Bearer {PLACEHOLDER} and a body")
    );
    for (authority, token, status) in [
        (
            "other.example",
            PLACEHOLDER,
            StatusCode::MISDIRECTED_REQUEST,
        ),
        (
            "api.example:8443",
            PLACEHOLDER,
            StatusCode::MISDIRECTED_REQUEST,
        ),
        (
            HOST,
            "cove-secret-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
            StatusCode::FORBIDDEN,
        ),
    ] {
        let answer = sender
            .send_request(request(authority, token))
            .await
            .unwrap();
        assert_eq!(answer.status(), status, "{authority} {token}");
    }
}

#[tokio::test]
async fn an_upgraded_connection_is_carried_both_ways() {
    let mut client = connect(b"http/1.1", |mut server| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(server.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(
            head.contains(&format!("Authorization: Bearer {VALUE}\r\n")),
            "{head}"
        );
        let answer =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        server.write_all(answer.as_bytes()).await.unwrap();
        let mut piece = [0; 4];
        while server.read_exact(&mut piece).await.is_ok() {
            server.write_all(&piece).await.unwrap();
        }
    })
    .await;
    let head = format!(
        "GET /socket HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {PLACEHOLDER}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(client.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{answer:?}");
    for text in [b"ping", b"pong", b"last"] {
        client.write_all(text).await.unwrap();
        let mut echoed = [0; 4];
        client.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, text);
    }
}

/// Sends `head` and answers what comes back until the server's side ends, with the request that the server got.
async fn exchange(head: &str, answer: &'static str) -> (String, String) {
    let (heard, hearing) = tokio::sync::oneshot::channel();
    let mut client = connect(b"http/1.1", |mut server| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(server.read_u8().await.unwrap());
        }
        let _ = heard.send(String::from_utf8(head).unwrap());
        server.write_all(answer.as_bytes()).await.unwrap();
        let _ = server.shutdown().await;
    })
    .await;
    let head = format!(
        "{head}Host: {HOST}\r\nAuthorization: Bearer {PLACEHOLDER}\r\nConnection: close\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    // Some servers end without TLS's goodbye.
    let _ = client.read_to_end(&mut got).await;
    (hearing.await.unwrap(), String::from_utf8(got).unwrap())
}

#[tokio::test]
async fn a_guest_cannot_ask_for_answers_that_are_not_scrubbed() {
    let head = "GET / HTTP/1.1\r\nTE: gzip, trailers\r\nGrpc-Accept-Encoding: gzip\r\n\
                Accept-Encoding: br, deflate;q=0.5, zstd\r\nRange: bytes=3-\r\nIf-Range: x\r\nUpgrade: h2c\r\n\
                HTTP2-Settings: AAMAAABk\r\n";
    let fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (asked, got) = exchange(head, fine).await;
    let asked = asked.to_ascii_lowercase();
    assert!(got.starts_with("HTTP/1.1 200"), "{got}");
    for gone in ["gzip", "range", "br,", "zstd", "upgrade", "h2c", "settings"] {
        assert!(!asked.contains(gone), "{gone} in {asked}");
    }
    assert!(asked.contains("accept-encoding: deflate\r\n"), "{asked}");
    assert!(asked.contains("te: trailers\r\n"), "{asked}");
    assert!(
        asked.contains("grpc-accept-encoding: identity\r\n"),
        "{asked}"
    );
}

#[tokio::test]
async fn answers_that_cannot_be_looked_into_are_refused_and_nothing_beside_the_body_tells_a_value()
{
    let plain = "GET / HTTP/1.1\r\n";
    for answer in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nGrpc-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\nraw",
    ] {
        let (_, got) = exchange(plain, answer).await;
        assert!(got.starts_with("HTTP/1.1 502"), "{answer}: {got}");
    }
    let phrase = "HTTP/1.1 200 sk-canary-0123456789\r\nContent-Length: 2\r\n\r\nok";
    let (asked, got) = exchange(plain, phrase).await;
    assert!(asked.contains(VALUE), "{asked}");
    assert!(got.starts_with("HTTP/1.1 200"), "{got}");
    assert!(!got.contains("canary"), "{got}");
    let smuggled = "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n";
    let mut client = connect(b"http/1.1", |_| async {}).await;
    let head = format!("{smuggled}Host: {HOST}\r\n\r\n0\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let mut got = [0; 12];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"HTTP/1.1 400");
}

#[tokio::test]
async fn a_connection_ends_when_the_gateway_closes_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let host = HostKeys::load_or_make(&folder.path().join("secret.key")).unwrap();
    let org = OrgId::random();
    let keys = cove_vault::make_keys(&org, &host).unwrap();
    let opened = || OpenedKeys::unwrap(&keys, &host).unwrap();
    let certificates = Certificates::new(org.as_str(), &opened(), "").unwrap();
    let table = Arc::new(Table::new(org, opened(), Duration::ZERO));
    let (_inside, client) = pair().await;
    let (server, _outside) = pair().await;
    let (gateway, ours) = tokio::net::UnixStream::pair().unwrap();
    let message = Handover::new(SandboxId::random(), HOST.into(), 443, b"");
    handover::send(&gateway, &message, client.as_fd(), server.as_fd())
        .await
        .unwrap();
    drop(gateway);
    let ended = take_over(&table, &certificates, ours).await.unwrap_err();
    assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionAborted);
}

/// Sends raw bytes for a secret in a field of a form; the request that the server got, and what came back.
async fn form(usage: &str, value: &str, request: &str) -> (String, String) {
    let (heard, hearing) = tokio::sync::oneshot::channel();
    let serve = |mut server: tokio_rustls::server::TlsStream<TcpStream>| async move {
        let mut all = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = server.read(&mut piece).await {
            all.extend_from_slice(&piece[..read]);
            let text = String::from_utf8_lossy(&all).into_owned();
            let length = text.to_ascii_lowercase();
            let length = length
                .split_once("content-length: ")
                .map(|(_, rest)| rest.split("\r\n").next().unwrap().parse::<usize>().unwrap());
            if let Some((_, body)) = text.split_once("\r\n\r\n")
                && body.len() >= length.unwrap_or(0)
            {
                break;
            }
        }
        let _ = heard.send(String::from_utf8_lossy(&all).into_owned());
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
        let _ = server.write_all(answer).await;
        let _ = server.shutdown().await;
    };
    let (mut client, _table) = connect_with(usage, value, b"http/1.1", serve).await;
    client.write_all(request.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    // Some servers end without TLS's goodbye.
    let _ = client.read_to_end(&mut got).await;
    // A request that was refused never reached the server, which then heard nothing.
    drop(client);
    let asked = hearing.await.unwrap_or_default();
    (asked, String::from_utf8(got).unwrap())
}

fn form_request(kind: &str, length: &str, body: &str) -> String {
    format!(
        "POST /login HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\n{length}Connection: close\r\n\r\n{body}"
    )
}

const FORM: &str = "application/x-www-form-urlencoded";

#[tokio::test]
async fn a_field_of_a_form_is_swapped_and_the_length_is_the_new_ones() {
    let body = format!("user=a&pass={PLACEHOLDER}&next=%2F");
    let new = "user=a&pass=sk%20%26canary-0123456789&next=%2F";
    let length = format!("Content-Length: {}\r\n", body.len());
    let chunked = format!(
        "5\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
        &body[..5],
        body.len() - 5,
        &body[5..]
    );
    let charset = format!("{FORM}; charset=utf-8");
    for request in [
        form_request(FORM, &length, &body),
        form_request(&charset, &length, &body),
        form_request(FORM, "Transfer-Encoding: chunked\r\n", &chunked),
    ] {
        let (asked, got) = form("form:pass", "sk &canary-0123456789", &request).await;
        assert!(got.starts_with("HTTP/1.1 200"), "{got}");
        let (head, sent) = asked.split_once("\r\n\r\n").unwrap();
        assert_eq!(sent, new);
        let head = head.to_ascii_lowercase();
        assert!(
            head.contains(&format!("content-length: {}", new.len())),
            "{head}"
        );
        assert!(!head.contains("transfer-encoding"), "{head}");
    }
}

#[tokio::test]
async fn a_placeholder_that_is_not_a_field_of_a_form_stays_text_or_is_refused() {
    let other = "cove-secret-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    for (kind, body, status) in [
        // Another field, another type of body.
        (FORM, format!("other={PLACEHOLDER}"), 200),
        ("application/json", format!("pass={PLACEHOLDER}"), 200),
        ("text/plain", format!("pass={PLACEHOLDER}"), 200),
        // Not alone in its field, twice, another sandbox's.
        (FORM, format!("pass=x{PLACEHOLDER}"), 403),
        (FORM, format!("pass={PLACEHOLDER}&pass={PLACEHOLDER}"), 403),
        (FORM, format!("pass={other}"), 403),
        (FORM, format!("pas%73={other}"), 403),
    ] {
        let length = format!("Content-Length: {}\r\n", body.len());
        let (asked, got) = form("form:pass", VALUE, &form_request(kind, &length, &body)).await;
        assert!(
            got.starts_with(&format!("HTTP/1.1 {status}")),
            "{body}: {got}"
        );
        assert!(!asked.contains("canary"), "{body}: {asked}");
        assert_eq!(
            asked.ends_with(&body) && !asked.is_empty(),
            status == 200,
            "{asked}"
        );
    }
    // The header of that name is no field.
    let head = format!(
        "GET / HTTP/1.1\r\nHost: {HOST}\r\nPass: {PLACEHOLDER}\r\nConnection: close\r\n\r\n"
    );
    let (asked, _) = form("form:pass", VALUE, &head).await;
    assert!(
        asked.contains(PLACEHOLDER) && !asked.contains("canary"),
        "{asked}"
    );
}

#[tokio::test]
async fn forms_that_are_too_long_or_have_two_lengths_do_not_reach_the_server() {
    let body = format!("pass={PLACEHOLDER}");
    let long = format!("Content-Length: {}\r\n", (1 << 20) + 1);
    let (asked, got) = form("form:pass", VALUE, &form_request(FORM, &long, &body)).await;
    assert!(got.starts_with("HTTP/1.1 413"), "{got}");
    assert_eq!(asked, "");
    let piece = "x".repeat(1 << 16);
    let pieces = format!("{:x}\r\n{piece}\r\n", piece.len()).repeat(17);
    let endless = form_request(FORM, "Transfer-Encoding: chunked\r\n", &pieces);
    let (asked, got) = form("form:pass", VALUE, &endless).await;
    assert!(got.starts_with("HTTP/1.1 413"), "{got}");
    assert_eq!(asked, "");
    // Two lengths are refused; beside chunks a length does not count, and what follows them is no second request
    // on the server's connection.
    let two = format!("Content-Length: {}\r\nContent-Length: 3\r\n", body.len());
    let (asked, got) = form("form:pass", VALUE, &form_request(FORM, &two, &body)).await;
    assert!(got.starts_with("HTTP/1.1 400"), "{got}");
    assert_eq!(asked, "");
    let both = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n";
    let smuggled = format!(
        "{:x}\r\n{body}\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: {HOST}\r\n\r\n",
        body.len()
    );
    let (asked, _) = form("form:pass", VALUE, &form_request(FORM, both, &smuggled)).await;
    assert!(!asked.contains("smuggled"), "{asked}");
    assert_eq!(
        asked.to_ascii_lowercase().matches("content-length").count(),
        usize::from(!asked.is_empty()),
        "{asked}"
    );
    assert!(
        !asked.to_ascii_lowercase().contains("transfer-encoding"),
        "{asked}"
    );
}

#[tokio::test]
async fn a_code_is_computed_when_it_is_used() {
    let seed = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";
    let body = format!("code={PLACEHOLDER}");
    let length = format!("Content-Length: {}\r\n", body.len());
    let (asked, got) = form("totp:form:code", seed, &form_request(FORM, &length, &body)).await;
    assert!(got.starts_with("HTTP/1.1 200"), "{got}");
    let code = asked.rsplit_once("code=").unwrap().1;
    let digits = code.len() == 6 && code.bytes().all(|b| b.is_ascii_digit());
    assert!(digits && !asked.contains(seed), "{asked}");
    let head =
        format!("GET /?otp={PLACEHOLDER} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
    let (asked, _) = form("totp:query:otp", seed, &head).await;
    assert!(
        asked.starts_with("GET /?otp=") && !asked.contains("cove-secret"),
        "{asked}"
    );
}

#[tokio::test]
async fn a_compressed_answer_is_scrubbed_and_revoking_cuts_http_2() {
    let serve = |server: tokio_rustls::server::TlsStream<TcpStream>| async move {
        let answer = |request: Request<Incoming>| async move {
            let seen = request.headers()["authorization"].as_bytes().to_vec();
            let mut gzip =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            std::io::Write::write_all(&mut gzip, &seen).unwrap();
            let body = Bytes::from(gzip.finish().unwrap());
            let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
            sender.send(body).unwrap();
            if request.uri().path() == "/endless" {
                // Never ends by itself.
                std::mem::forget(sender);
            }
            let mut response = Response::new(StreamBody::new(Endless(receiver)));
            let encoding = "gzip".parse().unwrap();
            response.headers_mut().insert("content-encoding", encoding);
            Ok::<_, std::convert::Infallible>(response)
        };
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder
            .serve_connection(TokioIo::new(server), service_fn(answer))
            .await;
    };
    let (client, table) = connect_with("bearer", VALUE, b"h2", serve).await;
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client));
    let (mut sender, connection) = shaken.await.unwrap();
    tokio::spawn(connection);
    let request = |path: &str| {
        Request::get(format!("https://{HOST}{path}"))
            .version(Version::HTTP_2)
            .header("authorization", format!("Bearer {PLACEHOLDER}"))
            .body(Full::new(Bytes::new()))
            .unwrap()
    };
    let answer = sender.send_request(request("/")).await.unwrap();
    assert!(!answer.headers().contains_key("content-encoding"));
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, format!("Bearer {PLACEHOLDER}"));
    let endless = sender.send_request(request("/endless")).await.unwrap();
    assert_eq!(endless.status(), StatusCode::OK);
    assert!(table.set_secrets(Vec::new()));
    // The whole connection ends, with the stream that was under way.
    assert!(endless.into_body().collect().await.is_err());
    assert!(sender.send_request(request("/")).await.is_err());
}

struct Endless(tokio::sync::mpsc::UnboundedReceiver<Bytes>);

impl futures_core::Stream for Endless {
    type Item = Result<Frame<Bytes>, std::convert::Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0
            .poll_recv(cx)
            .map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
