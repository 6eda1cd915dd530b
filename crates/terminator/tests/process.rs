//! The process as the engine runs it, confined: what it may use of a budget it asks for, and uses no more.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;

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

const HOST: &str = "api.example";
const PLACEHOLDER: &str = "cove-secret-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confined_process_asks_for_what_it_uses_of_a_budget() {
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
    let (mut rung, bell) = UnixStream::pair().unwrap();
    let program = std::fs::read(env!("CARGO_BIN_EXE_cove-terminator")).unwrap();
    let launched = Process::launch(&program, &start, &listener, bell.as_fd()).await;
    let mut process = launched.unwrap();
    drop(bell);
    let binding = SecretBinding {
        hosts: vec![HOST.parse().unwrap()],
        usage: "bearer".parse().unwrap(),
        ask: false,
        limits: vec!["requests=1/day".parse().unwrap()],
    };
    let about = About {
        org: &org,
        name: "token",
        version: 1,
        binding: &binding,
    };
    let sealed = cove_vault::seal(&keys.public, &about, VALUE.as_bytes()).unwrap();
    let sandbox = SandboxId::random();
    let placed = Placed {
        sandbox: sandbox.clone(),
        slot: 3,
        grants: vec![PlacedGrant {
            secret: "token".into(),
            slot: 7,
            placeholder: PLACEHOLDER.into(),
        }],
    };
    let secrets = vec![SealedSecret {
        id: SecretId::random(),
        name: "token".into(),
        version: 1,
        binding,
        sealed,
    }];
    for call in [Call::Secrets(secrets), Call::Place(placed)] {
        assert_eq!(process.call(&call).await.unwrap(), Reply::Done);
    }

    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    let (inside, client) = pair().await;
    let (upstream, outside) = pair().await;
    let gateway = UnixStream::connect_addr(&address).unwrap();
    gateway.set_nonblocking(true).unwrap();
    let gateway = tokio::net::UnixStream::from_std(gateway).unwrap();
    let message = Handover::new(sandbox, HOST.into(), 443, b"");
    let handed = handover::send(&gateway, &message, client.as_fd(), upstream.as_fd());
    handed.await.unwrap();
    // Only the process has them now.
    drop((client, upstream));
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(keys.authority.as_bytes()).unwrap();
    roots.add(authority).unwrap();
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (accepted, connected) = tokio::join!(
        TlsAcceptor::from(Arc::new(server)).accept(outside),
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(HOST).unwrap(), inside),
    );
    let (mut accepted, mut client) = (accepted.unwrap(), connected.unwrap());
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
