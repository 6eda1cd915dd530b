//! The server ends: what can be resumed says so, what is short comes to its end.

use std::time::Duration;

use cove_api::process::{OutputEvent, OutputQuery, StartProcess};
use cove_control::ControlConfig;
use cove_server::ServerConfig;
use tokio::time::timeout;

use super::harness::{DEADLINE, Server, shell};

/// What ends by itself has as long as it needs.
async fn patient() -> Server {
    let config = ServerConfig {
        shutdown_grace: DEADLINE,
        ..ServerConfig::default()
    };
    Server::start(config, ControlConfig::default(), true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_command_is_told_to_be_followed_again() {
    let mut server = patient().await;
    server.sandbox("box").await;
    let start = StartProcess {
        command: Some("echo on; sleep 1000".into()),
        ..StartProcess::default()
    };
    let process = server.client.start_process("box", &start).await.unwrap();
    let query = OutputQuery {
        follow: true,
        ..OutputQuery::default()
    };
    let mut lines = server
        .client
        .output("box", &process.id, &query)
        .await
        .unwrap();
    assert!(matches!(
        lines.next().await.unwrap(),
        Some(OutputEvent::Stdout(_))
    ));
    server.begin_shutdown();
    let last = timeout(DEADLINE, lines.next())
        .await
        .expect("a last line comes")
        .unwrap();
    let Some(OutputEvent::Error { error }) = last else {
        panic!("{last:?}")
    };
    assert_eq!(error.code.as_str(), "unavailable");
    assert!(lines.next().await.unwrap().is_none());
    server.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_under_way_gets_its_answer() {
    let mut server = patient().await;
    server.sandbox("box").await;
    let client = server.client.clone();
    let mut lines = client
        .exec_live("box", &shell("echo begun; sleep 0.3; echo done"))
        .await
        .unwrap();
    while !matches!(lines.next().await.unwrap(), Some(OutputEvent::Stdout(_))) {}
    server.begin_shutdown();
    let mut exit = None;
    while let Some(event) = lines.next().await.unwrap() {
        if let OutputEvent::Exit(told) = event {
            exit = Some(told.exit_code);
        }
    }
    assert_eq!(exit, Some(0));
    drop(lines);
    server.ended().await;
    assert!(client.health().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_in_its_time_is_cut() {
    let config = ServerConfig {
        shutdown_grace: Duration::from_millis(100),
        ..ServerConfig::default()
    };
    let mut server = Server::start(config, ControlConfig::default(), true).await;
    server.sandbox("box").await;
    let mut lines = server
        .client
        .exec_live("box", &shell("sleep 1000"))
        .await
        .unwrap();
    assert!(matches!(
        lines.next().await.unwrap(),
        Some(OutputEvent::Started { .. })
    ));
    server.begin_shutdown();
    server.ended().await;
    let last = lines.next().await;
    assert!(
        matches!(last, Ok(Some(OutputEvent::Error { .. }))),
        "{last:?}"
    );
}
