//! Answers and conversations under way when their key is revoked, in every dialect.

use cove_api::ErrorCode;
use cove_api::file::WatchFiles;
use cove_api::process::{AttachQuery, OutputQuery, StartProcess, TerminalSize};
use cove_api::tenancy::{CreateKey, NewKey, Scope};
use cove_client::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::harness::{DEADLINE, Server, refused, shell};

/// Live streams of one organisation.
const LIVE_MAX: usize = 1024;

/// Goes on for longer than any test.
const WAITING: &str = "sleep 12345";

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

async fn sleeper(server: &Server) -> String {
    let start = StartProcess {
        command: Some("while read line; do echo said $line; done".into()),
        pty: Some(TerminalSize { cols: 80, rows: 24 }),
        ..StartProcess::default()
    };
    let process = server.client.start_process("box", &start).await.unwrap();
    process.id
}

/// A request written out, and what comes back until the other side ends or `enough` is seen.
struct Plain(TcpStream);

impl Plain {
    async fn ask(server: &Server, key: &str, head: &str) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let (line, headers) = head.split_once('\n').unwrap_or((head, ""));
        let headers = headers.replace('\n', "\r\n");
        let request = format!(
            "{line} HTTP/1.1\r\nHost: cove\r\nAuthorization: Bearer {key}\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        Self(stream)
    }

    /// Until it contains `wanted`.
    async fn until(&mut self, wanted: &str) {
        let mut seen = Vec::new();
        let read = async {
            while !String::from_utf8_lossy(&seen).contains(wanted) {
                let mut piece = [0; 4096];
                let count = self.0.read(&mut piece).await.unwrap();
                assert!(count > 0, "it ended: {}", String::from_utf8_lossy(&seen));
                seen.extend_from_slice(&piece[..count]);
            }
        };
        timeout(DEADLINE, read).await.expect("it is told");
    }

    /// What it still says until it ends, or breaks.
    async fn rest(&mut self) -> String {
        let mut seen = Vec::new();
        let read = self.0.read_to_end(&mut seen);
        // A connection that was cut may end with an error too.
        let _ = timeout(DEADLINE, read).await.expect("it is still open");
        String::from_utf8_lossy(&seen).into_owned()
    }
}

const UPGRADE: &str = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_sees_nothing_more_of_what_it_follows() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let process = sleeper(&server).await;
    let (gone, with_gone) = key(&server, "gone").await;
    let (_stays, with_stays) = key(&server, "stays").await;

    let attach = AttachQuery::default();
    let mut terminal = with_gone.attach("box", &process, &attach).await.unwrap();
    let mut kept = with_stays.attach("box", &process, &attach).await.unwrap();
    let follow = OutputQuery {
        follow: true,
        ..OutputQuery::default()
    };
    let mut output = with_gone.output("box", &process, &follow).await.unwrap();
    let mut events = with_gone.follow_events(None, None).await.unwrap();
    let watch = WatchFiles {
        path: "/".into(),
        user: None,
        recursive: false,
    };
    let mut changes = with_gone.watch_files("box", &watch).await.unwrap();
    changes.next().await.unwrap().expect("it is ready");
    let mut live = with_gone
        .exec_live("box", &shell("echo on; sleep 1000"))
        .await
        .unwrap();
    live.next().await.unwrap().expect("it has started");
    let piece = {
        let client = server.client_with(Some(&gone.token));
        tokio::spawn(async move { client.exec("box", &shell(WAITING)).await })
    };
    // The command in one piece runs when somebody else sees it.
    let running = async {
        loop {
            let all = server.client.processes("box").await.unwrap();
            let argv = all.items.iter().flat_map(|process| &process.argv);
            if argv.into_iter().any(|part| part.ends_with(WAITING)) {
                return;
            }
        }
    };
    timeout(DEADLINE, running).await.expect("it runs");

    server.client.revoke_key(&gone.key.id).await.unwrap();
    let over = async {
        while let Ok(Some(_)) = terminal.receiver.next().await {}
        while let Ok(Some(_)) = output.next().await {}
        while let Ok(Some(_)) = events.next().await {}
        while let Ok(Some(_)) = changes.next().await {}
        while let Ok(Some(_)) = live.next().await {}
        let (status, detail) = refused(piece.await.unwrap());
        assert_eq!((status, detail.code), (401, ErrorCode::Unauthenticated));
    };
    timeout(DEADLINE, over).await.expect("all of it ends");

    kept.sender.input(b"hello\n".to_vec()).await.unwrap();
    let heard = async {
        loop {
            let message = kept.receiver.next().await.unwrap().expect("it goes on");
            if let cove_client::AttachMessage::Output { data, .. } = message
                && String::from_utf8_lossy(&data).contains("said hello")
            {
                return;
            }
        }
    };
    timeout(DEADLINE, heard).await.expect("others stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_out_of_another_dialect_s_terminal_and_of_its_own_upload() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let (gone, _) = key(&server, "gone").await;
    let connect = format!(
        "GET /daytona/toolbox/box/process/pty/create-connect?id=one&cols=80&rows=24\n{UPGRADE}"
    );
    let mut terminal = Plain::ask(&server, &gone.token, &connect).await;
    terminal.until("connected").await;
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("half");
    let put = format!(
        "PUT /v1/sandboxes/box/files?path={}\nContent-Length: 1000\nExpect: 100-continue\n",
        path.display()
    );
    let mut upload = Plain::ask(&server, &gone.token, &put).await;
    // Asked for once the key was found good.
    upload.until("100 Continue").await;
    upload.0.write_all(b"a part").await.unwrap();
    server.client.revoke_key(&gone.key.id).await.unwrap();
    assert!(
        terminal.rest().await.contains("was revoked"),
        "it is told why"
    );
    let told = upload.rest().await;
    assert!(
        told.contains("401") && told.contains("unauthenticated"),
        "{told}"
    );
    assert!(!path.exists(), "a part of a file is not kept");
    let figures = server.client.prometheus().await.unwrap();
    let counted = "operation=\"GET /daytona/toolbox/{sandbox}/process/pty/create-connect\"";
    assert!(figures.contains(counted), "{figures}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_revokes_itself_hears_that_it_did_and_is_written_down_once() {
    let server = Server::bare().await;
    for number in 0..10 {
        let create = CreateKey {
            name: format!("own-{number}"),
            scopes: vec![Scope::Admin],
            expires_in_s: None,
            org: None,
            sandbox: None,
        };
        let own = server.client.create_key(&create).await.unwrap();
        let client = server.client_with(Some(&own.token));
        let mut events = client.follow_events(None, None).await.unwrap();
        client.revoke_key(&own.key.id).await.expect("it is told so");
        let over = async { while let Ok(Some(_)) = events.next().await {} };
        timeout(DEADLINE, over).await.expect("its streams end");
        let (status, _) = refused(client.ssh_keys(&Default::default()).await);
        assert_eq!(status, 401);
        let trail = server.client.audit(&Default::default()).await.unwrap();
        let records = trail.items.iter().filter(|record| {
            record.action == "key.revoke" && record.target.as_deref() == Some(&own.key.id)
        });
        let ends: Vec<&str> = records.map(|record| record.result.as_str()).collect();
        assert_eq!(ends, ["ok"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_key_goes_however_often_others_are_revoked() {
    let server = Server::bare().await;
    server.sandbox("box").await;
    let following = async |expires_s: u64| {
        let create = CreateKey {
            name: "short".into(),
            scopes: vec![Scope::Read],
            expires_in_s: Some(expires_s),
            org: None,
            sandbox: None,
        };
        let short = server.client.create_key(&create).await.unwrap();
        let client = server.client_with(Some(&short.token));
        let events = client.follow_events(None, None).await;
        events.map(|events| (client, events))
    };
    // A busy machine needs longer to begin than the shortest life.
    let mut lives = [1, 5, 25, 125].into_iter();
    let (_client, mut events) = loop {
        let life = lives.next().expect("one life is long enough");
        match following(life).await {
            Ok(both) => break both,
            Err(error) => assert_eq!(refused::<()>(Err(error)).0, 401),
        }
    };
    let others = async {
        loop {
            let (other, _) = key(&server, "other").await;
            server.client.revoke_key(&other.key.id).await.unwrap();
        }
    };
    let over = async { while let Ok(Some(_)) = events.next().await {} };
    tokio::select! {
        () = others => {}
        ended = timeout(2 * DEADLINE, over) => ended.expect("it ends"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn live_commands_and_terminals_count_among_an_organisation_s_streams() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let process = sleeper(&server).await;
    let mut held = Vec::new();
    for _ in 0..LIVE_MAX {
        held.push(server.client.follow_events(None, None).await.unwrap());
    }
    let attach = AttachQuery::default();
    let before = server.client.processes("box").await.unwrap().items.len();
    for refused in [
        refused(server.client.exec_live("box", &shell("true")).await),
        refused(server.client.attach("box", &process, &attach).await),
    ] {
        assert_eq!(refused.1.code, ErrorCode::LimitReached, "{refused:?}");
    }
    let after = server.client.processes("box").await.unwrap().items.len();
    assert_eq!(before, after, "what was refused did not run");
    // What is answered in one piece needs no place.
    server.client.exec("box", &shell("true")).await.unwrap();
}
