//! The process as the engine runs it, confined: what it may use of a budget it asks for, and uses no more.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cove_model::secret::{BudgetUnit, SealedSecret, SecretBinding};
use cove_model::{OrgId, SandboxId, SecretId};
use cove_terminator::call::{Call, Granted, Placed, PlacedGrant, Purse, Reply, Start, Wanted};
use cove_terminator::handover::{self, Handover};
use cove_terminator::host::Process;
use cove_vault::{About, HostKeys, OpenedKeys};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_rustls::{client, server};

const HOST: &str = "api.example";
const PLACEHOLDER: &str = "cove-secret-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// Of a secret that is bound to another host.
const ELSEWHERE: &str = "cove-secret-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
/// Of nobody here.
const STRANGE: &str = "cove-secret-cccccccccccccccccccccccccccccccc";
const VALUE: &str = "sk-canary-0123456789";
/// A user that owns nothing.
const NOBODY: u32 = 65_534;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// The status of one answer, which has no body.
async fn status(client: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> String {
    let request =
        format!("HEAD / HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {PLACEHOLDER}\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
    client.flush().await.unwrap();
    let mut got = Vec::new();
    while !got.windows(4).any(|it| it == b"\r\n\r\n") {
        got.push(client.read_u8().await.unwrap());
    }
    String::from_utf8(got[9..12].to_vec()).unwrap()
}

/// Nothing of it is swapped or dumped, and no process of its user can read it.
fn keeps_its_memory_to_itself(pid: u32) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    let kilobytes = |name: &str| -> u64 {
        let value = field(name);
        value.trim_end_matches(" kB").parse().unwrap()
    };
    assert_eq!(field("Uid:").split_whitespace().next(), Some("65534"));
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = |name: &str| -> String {
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        let hard = line.and_then(|line| line.split_whitespace().nth(1));
        hard.unwrap().to_owned()
    };
    // Raising the limit needs a capability that root does not have everywhere.
    match limit("Max locked memory").as_str() {
        "1073741824" => assert!(
            // All but what the kernel itself maps.
            kilobytes("VmLck:") * 10 > kilobytes("VmSize:") * 9,
            "{status}"
        ),
        _ => eprintln!("memory is not locked: this host lacks CAP_SYS_RESOURCE"),
    }
    // Locked as it is used: not all that could be.
    assert!(kilobytes("VmRSS:") < 64 * 1024, "{status}");
    assert_eq!(limit("Max core file size"), "0");
    // A process that may be dumped, or traced by its user, has files in /proc that are its user's.
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(format!("/proc/{pid}/maps"))
        .unwrap()
        .uid();
    assert_eq!(owner, 0);
}

/// The process, with one organisation and its secret.
struct Terminator {
    process: Process,
    rung: UnixStream,
    address: SocketAddr,
    server: Arc<ServerConfig>,
    client: ClientConfig,
    _listener: UnixListener,
}

impl Terminator {
    async fn launch(limits: &[&str]) -> Self {
        assert!(
            rustix::process::getuid().is_root(),
            "the process gives up rights of root"
        );
        let folder = tempfile::tempdir().unwrap();
        let host = HostKeys::load_or_make(&folder.path().join("secret.key")).unwrap();
        let org = OrgId::random();
        let keys = cove_vault::make_keys(&org, &host).unwrap();
        let opened = OpenedKeys::unwrap(&keys, &host).unwrap();
        let (opening, authority) = opened.parts();
        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
        let start = Start {
            org: org.clone(),
            uid: NOBODY,
            gid: NOBODY,
            gateway_uid: 0,
            approval_hold_s: 0,
            opening: STANDARD.encode(opening),
            authority: STANDARD.encode(authority),
            roots: made.cert.pem(),
        };
        let name = format!("cove-test-{}", SandboxId::random());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (rung, bell) = UnixStream::pair().unwrap();
        let program = std::fs::read(env!("CARGO_BIN_EXE_cove-terminator")).unwrap();
        let launched = Process::launch(&program, &start, &listener, bell.as_fd()).await;
        let mut process = launched.unwrap();
        let binding = SecretBinding {
            hosts: vec![HOST.parse().unwrap()],
            usage: "bearer".parse().unwrap(),
            ask: false,
            limits: limits.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let elsewhere = SecretBinding {
            hosts: vec!["other.example".parse().unwrap()],
            limits: Vec::new(),
            ..binding.clone()
        };
        let seal = |name: &str, binding: SecretBinding| {
            let about = About {
                org: &org,
                name,
                version: 1,
                binding: &binding,
            };
            let sealed = cove_vault::seal(&keys.public, &about, VALUE.as_bytes()).unwrap();
            SealedSecret {
                id: SecretId::random(),
                name: name.into(),
                version: 1,
                binding,
                sealed,
            }
        };
        let secrets = vec![seal("token", binding), seal("elsewhere", elsewhere)];
        let set = process.call(&Call::Secrets(secrets)).await;
        assert_eq!(set.unwrap(), Reply::Done);
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into());
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(keys.authority.as_bytes()).unwrap();
        roots.add(authority).unwrap();
        let client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            process,
            rung,
            address,
            server: Arc::new(server.unwrap()),
            client,
            _listener: listener,
        }
    }

    async fn place(&mut self, slot: u32) -> SandboxId {
        let sandbox = SandboxId::random();
        let placed = Placed {
            sandbox: sandbox.clone(),
            slot,
            grants: [("token", 7, PLACEHOLDER), ("elsewhere", 8, ELSEWHERE)]
                .map(|(secret, slot, placeholder)| PlacedGrant {
                    secret: secret.into(),
                    slot,
                    placeholder: placeholder.into(),
                })
                .to_vec(),
        };
        let placed = self.process.call(&Call::Place(placed)).await;
        assert_eq!(placed.unwrap(), Reply::Done);
        sandbox
    }

    /// Both ends of a connection of a sandbox: the server's and the client's. The gateway's end stays open with them.
    async fn connect(
        &self,
        sandbox: &SandboxId,
        protocols: &[&[u8]],
    ) -> Option<(
        server::TlsStream<TcpStream>,
        client::TlsStream<TcpStream>,
        tokio::net::UnixStream,
    )> {
        let (inside, client) = pair().await;
        let (upstream, outside) = pair().await;
        let gateway = UnixStream::connect_addr(&self.address).unwrap();
        gateway.set_nonblocking(true).unwrap();
        let gateway = tokio::net::UnixStream::from_std(gateway).unwrap();
        let message = Handover::new(sandbox.clone(), HOST.into(), 443, b"");
        let handed = handover::send(&gateway, &message, client.as_fd(), upstream.as_fd());
        handed.await.unwrap();
        // Only the process has them now.
        drop((client, upstream));
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|it| it.to_vec()).collect();
        let mut offered = self.client.clone();
        offered.alpn_protocols.clone_from(&protocols);
        let mut chosen = (*self.server).clone();
        chosen.alpn_protocols = protocols;
        let name = ServerName::try_from(HOST).unwrap();
        let (accepted, connected) = tokio::join!(
            TlsAcceptor::from(Arc::new(chosen)).accept(outside),
            TlsConnector::from(Arc::new(offered)).connect(name, inside),
        );
        Some((accepted.ok()?, connected.ok()?, gateway))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confined_process_asks_for_what_it_uses_of_a_budget() {
    let mut terminator = Terminator::launch(&["requests=1/day"]).await;
    keeps_its_memory_to_itself(terminator.process.id());
    let sandbox = terminator.place(3).await;
    let connected = terminator.connect(&sandbox, &[]).await;
    let (mut accepted, mut client, _gateway) = connected.unwrap();
    let Terminator {
        mut process,
        mut rung,
        ..
    } = terminator;
    let serving = tokio::spawn(async move {
        let (mut head, mut served) = (Vec::new(), 0);
        while let Ok(byte) = accepted.read_u8().await {
            head.push(byte);
            if head.ends_with(b"\r\n\r\n") {
                assert!(String::from_utf8_lossy(&head).contains(VALUE));
                head.clear();
                served += 1;
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                accepted.write_all(answer).await.unwrap();
                accepted.flush().await.unwrap();
            }
        }
        served
    });

    let asking = tokio::spawn(async move {
        let first = status(&mut client).await;
        (first, status(&mut client).await)
    });
    let rings = tokio::task::spawn_blocking(move || {
        let heard = rung.read(&mut [0; 16]);
        (heard, rung)
    });
    let (heard, mut rung) = rings.await.unwrap();
    assert!(heard.unwrap() > 0);
    let purse = Purse {
        secret: 7,
        sandbox: None,
        of: BudgetUnit::Requests,
    };
    let need = Wanted::Need {
        purse,
        asker: 3,
        need: 1,
        more: 0,
    };
    let wanted = process.call(&Call::Wanted).await.unwrap();
    assert_eq!(wanted, Reply::Wanted(vec![need]));
    // The engine's end is for hearing only: what it says there changes nothing.
    rung.write_all(b"more").unwrap();
    let granted = Granted {
        purse,
        amount: 1,
        left: 0,
        day: 20_000,
        lasts_ms: 3_600_000,
        renews_ms: None,
    };
    let granted = process.call(&Call::Grant(vec![granted])).await.unwrap();
    assert_eq!(granted, Reply::Done);
    // For the second, in case that the first took long.
    let again = Granted {
        purse,
        amount: 0,
        left: 0,
        day: 20_000,
        lasts_ms: 3_600_000,
        renews_ms: None,
    };
    while !asking.is_finished() {
        process
            .call(&Call::Grant(vec![again.clone()]))
            .await
            .unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(asking.await.unwrap(), ("200".into(), "429".into()));
    drop(process);
    assert_eq!(serving.await.unwrap(), 1);
}

fn memory_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

fn frame(kind: u8, flags: u8, stream: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), body].concat()
}

/// Asks for as many answers as one connection may, and reads none of them.
async fn flood(client: &mut client::TlsStream<TcpStream>) {
    let window = i32::MAX.to_be_bytes();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &[&[0, 4][..], &window].concat()));
    let more = (i32::MAX - 65_535).to_be_bytes();
    sent.extend(frame(8, 0, 0, &more));
    // GET https://HOST/ in the static table's numbers.
    let host = u8::try_from(HOST.len()).unwrap();
    let head = [&[0x82, 0x87, 0x84, 0x01, host], HOST.as_bytes()].concat();
    for stream in 0..100 {
        sent.extend(frame(1, 5, 2 * stream + 1, &head));
    }
    client.write_all(&sent).await.unwrap();
    client.flush().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_reads_no_answers_leaves_memory_for_its_neighbour() {
    let mut terminator = Terminator::launch(&[]).await;
    let pid = terminator.process.id();
    let (greedy, other) = (terminator.place(1).await, terminator.place(2).await);
    let both: &[&[u8]] = &[b"h2", b"http/1.1"];
    let (mut held, mut multiplexed) = (Vec::new(), 0);
    for _ in 0..256 {
        let Some((server, mut client, gateway)) = terminator.connect(&greedy, both).await else {
            continue;
        };
        if client.get_ref().1.alpn_protocol() == Some(b"h2") {
            multiplexed += 1;
            let answer = |_| async {
                let body = Full::new(Bytes::from_static(&[b'x'; 60_000]));
                Ok::<_, std::convert::Infallible>(hyper::Response::new(body))
            };
            tokio::spawn(async move {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(server), service_fn(answer));
                let _ = server.await;
            });
            flood(&mut client).await;
            held.push((client, gateway, None));
        } else {
            held.push((client, gateway, Some(server)));
        }
    }
    assert!(multiplexed > 0 && held.len() == 256, "{multiplexed}");
    // It takes what it can get; then it grows no more.
    let mut before = 0;
    while memory_kb(pid) != before {
        before = memory_kb(pid);
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    assert!(before < 400 << 10, "{before} KiB for one sandbox");
    let (mut server, mut client, _gateway) = terminator.connect(&other, &[]).await.unwrap();
    let serving = tokio::spawn(async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(server.read_u8().await.unwrap());
        }
        assert!(String::from_utf8_lossy(&head).contains(VALUE));
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        server.write_all(answer).await.unwrap();
        server.flush().await.unwrap();
        server
    });
    assert_eq!(status(&mut client).await, "200");
    serving.await.unwrap();
}

/// Sends raw bytes on a connection of its own: the status of the first answer, and the requests that an honest server
/// reads, each as its path, its host and what it is authorised with.
async fn ask_raw(
    terminator: &Terminator,
    sandbox: &SandboxId,
    raw: &str,
) -> (String, Vec<[String; 3]>) {
    let connected = terminator.connect(sandbox, &[b"http/1.1"]).await;
    let (server, mut client, gateway) = connected.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let answer = move |request: hyper::Request<hyper::body::Incoming>| {
        let header = |name: &str| {
            let value = request.headers().get(name);
            value.map_or_else(String::new, |it| it.to_str().unwrap().to_owned())
        };
        let path = request.uri().to_string();
        told.lock()
            .unwrap()
            .push([path, header("host"), header("authorization")]);
        async move {
            // As much of the body as there is.
            let _ = http_body_util::BodyExt::collect(request.into_body()).await;
            Ok::<_, std::convert::Infallible>(hyper::Response::new(Full::new(Bytes::new())))
        }
    };
    let serving = tokio::spawn(async move {
        let builder = hyper::server::conn::http1::Builder::new();
        let _ = builder
            .serve_connection(TokioIo::new(server), service_fn(answer))
            .await;
    });
    client.write_all(raw.as_bytes()).await.unwrap();
    client.flush().await.unwrap();
    let mut got = vec![0; 12];
    let read = client.read_exact(&mut got);
    let read = tokio::time::timeout(std::time::Duration::from_secs(120), read).await;
    read.expect("it answers or ends").ok();
    // What the server has got by now it reads to the end.
    let _ = client.shutdown().await;
    drop((client, gateway));
    let _ = serving.await;
    let status = String::from_utf8_lossy(got.get(9..12).unwrap_or_default()).into_owned();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    (status, seen)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_framing_and_foreign_placeholders_get_no_value() {
    let mut terminator = Terminator::launch(&[]).await;
    let sandbox = terminator.place(1).await;
    let request = |path: &str, host: &str, more: &str| {
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n")
    };
    let bearer = |placeholder: &str| format!("Authorization: Bearer {placeholder}\r\n");
    // The same name, however it is written.
    for host in [HOST, "API.Example", "api.example:443"] {
        let raw = request("/", host, &bearer(PLACEHOLDER));
        let (status, seen) = ask_raw(&terminator, &sandbox, &raw).await;
        assert_eq!(status, "200", "{host}");
        assert_eq!(seen[0][2], format!("Bearer {VALUE}"), "{host}");
    }
    for host in [
        "other.example",
        "api.example:8443",
        "api.example:",
        "api.example:443:443",
        "api.example:0x1bb",
        "api.example.evil.example",
        "evil.example#api.example",
        "api.example@evil.example",
        "evil.example@api.example",
        "api.example, evil.example",
        "api.example evil.example",
        "api.example\\.evil.example",
        "api.example/evil",
        "api.example%00.evil.example",
        "api.example\0.evil.example",
        "[api.example]",
        "api..example",
        ".api.example",
        "\u{ff41}pi.example",
        "api\u{3002}example",
        "",
    ] {
        let raw = request("/", host, &bearer(PLACEHOLDER));
        let (status, seen) = ask_raw(&terminator, &sandbox, &raw).await;
        assert!(status.starts_with('4'), "{host:?}: {status}");
        assert_eq!(seen, Vec::<[String; 3]>::new(), "{host:?}");
    }
    let twice = format!("Host: evil.example\r\n{}", bearer(PLACEHOLDER));
    let absolute = request("https://evil.example/", HOST, &bearer(PLACEHOLDER));
    for raw in [request("/", HOST, &twice), absolute] {
        let (status, seen) = ask_raw(&terminator, &sandbox, &raw).await;
        assert!(
            status.starts_with('4') && seen.is_empty(),
            "{raw}: {status}"
        );
    }
    // Placeholders that stand for nothing here.
    for more in [
        bearer(ELSEWHERE),
        bearer(STRANGE),
        format!("X-Other: {ELSEWHERE}\r\n"),
        format!("Cookie: a={ELSEWHERE}\r\n"),
    ] {
        let raw = request("/", HOST, &more);
        let (status, seen) = ask_raw(&terminator, &sandbox, &raw).await;
        assert_eq!((status.as_str(), seen.len()), ("403", 0), "{more}");
    }
    let raw = request(&format!("/?a={ELSEWHERE}"), HOST, "");
    assert_eq!(ask_raw(&terminator, &sandbox, &raw).await.0, "403");
    // In a text that is nearly one, or beside another one, nothing is put in.
    for value in [
        PLACEHOLDER.to_uppercase(),
        format!("{PLACEHOLDER}x"),
        format!("{PLACEHOLDER}%00"),
        format!("{PLACEHOLDER}, {PLACEHOLDER}"),
        format!("{PLACEHOLDER}."),
    ] {
        let (_, seen) = ask_raw(&terminator, &sandbox, &request("/", HOST, &bearer(&value))).await;
        assert!(
            seen.iter().all(|it| !it[2].contains(VALUE)),
            "{value}: {seen:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_does_not_become_a_request_of_its_own() {
    let mut terminator = Terminator::launch(&[]).await;
    let sandbox = terminator.place(1).await;
    // For a host that is refused where the terminator sees it as a request.
    let smuggled = format!(
        "GET /smuggled HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer {PLACEHOLDER}\r\n\r\n"
    );
    let length = smuggled.len();
    let chunks = format!("0\r\n\r\n{smuggled}");
    let with_chunks = chunks.len();
    for (framing, body) in [
        (
            format!("Content-Length: {with_chunks}\r\nTransfer-Encoding: chunked\r\n"),
            &chunks,
        ),
        (
            format!("Transfer-Encoding: chunked\r\nContent-Length: {with_chunks}\r\n"),
            &chunks,
        ),
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n".into(),
            &chunks,
        ),
        (
            format!("Content-Length: {with_chunks}\r\nTransfer-Encoding: identity, chunked\r\n"),
            &chunks,
        ),
        (
            format!(
                "Content-Length: {with_chunks}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"
            ),
            &chunks,
        ),
        (
            format!("Content-Length: {with_chunks}\r\nTransfer-Encoding : chunked\r\n"),
            &chunks,
        ),
        (
            format!("Content-Length: {with_chunks}\r\nTransfer-Encoding:\x0bchunked\r\n"),
            &chunks,
        ),
        (
            format!("Content-Length: {with_chunks}\r\nTransfer-Encoding: xchunked\r\n"),
            &chunks,
        ),
        (
            format!("Content-Length: {with_chunks}\r\nX: y\r\n Transfer-Encoding: chunked\r\n"),
            &chunks,
        ),
        (
            format!("Content-Length: {with_chunks}\r\nX: y\rTransfer-Encoding: chunked\r\n"),
            &chunks,
        ),
        (
            format!("Content-Length: {with_chunks}\r\nX: y\nTransfer-Encoding: chunked\r\n"),
            &chunks,
        ),
        (
            format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
            &smuggled,
        ),
        (
            format!("Content-Length: {length}\r\nContent-Length: 0\r\n"),
            &smuggled,
        ),
        (format!("Content-Length: 0, {length}\r\n"), &smuggled),
        ("Content-Length: +0\r\n".into(), &smuggled),
        ("Content-Length: -1\r\n".into(), &smuggled),
        ("Content-Length: 18446744073709551616\r\n".into(), &smuggled),
        (
            format!("Connection: Content-Length\r\nContent-Length: {length}\r\n"),
            &smuggled,
        ),
        (
            "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n".into(),
            &chunks,
        ),
        (
            "Transfer-Encoding: chunked\r\n".into(),
            &format!("0;a\nb\r\n\r\n{smuggled}"),
        ),
        (
            "Transfer-Encoding: chunked\r\n".into(),
            &format!("10000000000000000\r\n{smuggled}"),
        ),
        (
            "Transfer-Encoding: chunked\r\n".into(),
            &format!("0\r\nTransfer-Encoding: x\r\n\r\n{smuggled}"),
        ),
    ] {
        let raw = format!("POST /first HTTP/1.1\r\nHost: {HOST}\r\n{framing}\r\n{body}");
        let (_, seen) = ask_raw(&terminator, &sandbox, &raw).await;
        assert!(
            seen.iter()
                .all(|it| it[0] == "/first" && it[1] == HOST && it[2].is_empty()),
            "{framing:?}: {seen:?}"
        );
    }
}
