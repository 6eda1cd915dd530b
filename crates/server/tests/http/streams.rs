//! Many streams of one tenant, and a command of another beside them.

use std::time::{Duration, Instant};

use cove_client::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::{DEADLINE, Server, shell};

const STREAMS: usize = 200;
const RUNS: usize = 15;
/// What a bystander may take for a command compared with the same on a quiet server. Generous: this
/// machine may have other things to do. One wake-up of every stream for each event is far beyond it.
const SLOWER_MAX: u32 = 8;
/// Below this a ratio says nothing.
const FLOOR: Duration = Duration::from_millis(30);

async fn open(server: &Server, token: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let read = tokio::time::timeout(DEADLINE, stream.read_exact(&mut answer)).await;
    read.unwrap().unwrap();
    if !answer.ends_with(b"200") {
        let mut rest = [0; 2048];
        let count = stream.read(&mut rest).await.unwrap();
        panic!("{path}: {}", String::from_utf8_lossy(&rest[..count]));
    }
    stream
}

/// The median of some commands.
async fn median(client: &Client) -> Duration {
    let mut exec = shell("");
    exec.command = None;
    exec.argv = Some(vec!["true".into()]);
    let mut all = Vec::new();
    for _ in 0..RUNS {
        let started = Instant::now();
        client.exec("quiet", &exec).await.unwrap();
        all.push(started.elapsed());
    }
    all.sort();
    all[RUNS / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bystander_s_commands_stay_quick_beside_many_streams() {
    let server = Server::with_guest().await;
    let (token, loud) = server.tenant("loud").await;
    let (_, quiet) = server.tenant("quiet").await;
    server.sandbox_of(&loud, "loud").await;
    server.sandbox_of(&quiet, "quiet").await;
    let alone = median(&quiet).await;
    let script = "while :; do echo line; sleep 0.02; done";
    let start = cove_api::process::StartProcess {
        argv: Some(["sh", "-c", script].map(str::to_owned).to_vec()),
        ..Default::default()
    };
    let process = loud.start_process("loud", &start).await.unwrap();
    let mut streams = tokio::task::JoinSet::new();
    for number in 0..STREAMS {
        // A guest takes few calls from its own machine, which is this one here.
        let path = match number % 5 {
            0 => format!(
                "/v1/sandboxes/loud/processes/{}/output?follow=true",
                process.id
            ),
            _ => "/v1/events?follow=true".to_owned(),
        };
        let mut stream = open(&server, &token, &path).await;
        streams.spawn(async move {
            let mut sink = tokio::io::sink();
            tokio::io::copy(&mut stream, &mut sink).await.ok();
        });
    }
    // Something happens for those who follow events, too.
    let stirring = tokio::spawn({
        let loud = loud.clone();
        async move {
            loop {
                loud.freeze_sandbox("loud").await.ok();
                loud.resume_sandbox("loud").await.ok();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    // The rest of the machine is not quiet all the time either: it must not be slow for long, and what is slow without
    // the streams too is not slow because of them.
    let mut beside = Duration::MAX;
    for _ in 0..3 {
        beside = beside.min(median(&quiet).await);
    }
    stirring.abort();
    streams.shutdown().await;
    let alone = alone.max(median(&quiet).await);
    println!("{beside:?} beside {STREAMS} streams, {alone:?} alone");
    assert!(
        beside < alone.max(FLOOR) * SLOWER_MAX,
        "{beside:?} beside {STREAMS} streams, {alone:?} alone"
    );
}
