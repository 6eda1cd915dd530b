//! Services over HTTP, with a real guest.

use std::collections::BTreeMap;

use cove_api::process::{OutputEvent, OutputQuery};
use cove_api::service::{RestartPolicy, Service, ServiceState, StartService};
use cove_client::Client;
use tokio::time::{Instant, sleep};

use super::harness::{DEADLINE, Server, refused};

fn service(name: &str, command: &str) -> StartService {
    StartService {
        name: name.into(),
        command: Some(command.into()),
        restart: RestartPolicy::Always,
        ..StartService::default()
    }
}

async fn becomes(client: &Client, what: &str, is: impl Fn(&Service) -> bool) -> Service {
    let started = Instant::now();
    loop {
        let all = client.services("box").await.unwrap().items;
        if let Some(found) = all.into_iter().find(&is) {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "never happened: {what}");
        sleep(std::time::Duration::from_millis(10)).await;
    }
}

async fn comes_out(client: &Client, process: &str, expected: &str) {
    let started = Instant::now();
    loop {
        let text = output(client, process).await;
        if text == expected {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "{text:?}");
    }
}

async fn output(client: &Client, process: &str) -> String {
    let query = OutputQuery::default();
    let mut lines = client.output("box", process, &query).await.unwrap();
    let mut text = String::new();
    while let Some(event) = lines.next().await.unwrap() {
        if let OutputEvent::Stdout(chunk) = event {
            text.push_str(&chunk.text.unwrap());
        }
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_started_listed_restarted_and_removed() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let client = &server.client;
    let start = StartService {
        env: BTreeMap::from([("OWN".into(), "mine".into())]),
        ..service("web", "echo own=$OWN; exec sleep 100000")
    };
    let made = client.start_service("box", &start).await.unwrap();
    assert_eq!((made.name.as_str(), made.restarts), ("web", 0));
    assert_eq!(made.state, ServiceState::Running);
    assert_eq!(made.restart, RestartPolicy::Always);
    let (status, error) = refused(client.start_service("box", &start).await);
    assert_eq!((status, error.code.as_str()), (409, "already_exists"));

    comes_out(client, &made.process, "own=mine\n").await;
    client.signal("box", &made.process, "KILL").await.unwrap();
    let again = becomes(client, "it was started again", |it| {
        it.restarts == 1 && it.state == ServiceState::Running
    })
    .await;
    assert_eq!(again.process, made.process);
    assert_eq!(again.last_exit, None);
    comes_out(client, &made.process, "own=mine\nown=mine\n").await;
    let process = client.process("box", &made.process).await.unwrap();
    assert_eq!(process.owner.as_deref(), Some("service:web"));
    assert_eq!(process.exit, None);

    client.remove_service("box", "web").await.unwrap();
    assert!(client.services("box").await.unwrap().items.is_empty());
    let process = client.process("box", &made.process).await.unwrap();
    assert_eq!(process.exit.unwrap().signal, Some(15));
    for missing in ["web", "Not-A-Name"] {
        let (status, error) = refused(client.remove_service("box", missing).await);
        assert_eq!((status, error.code.as_str()), (404, "not_found"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_services_are_refused_and_leave_nothing() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let client = &server.client;
    let good = || service("web", "true");
    let long = "x".repeat(cove_limits::SERVICE_BYTES_MAX);
    for (bad, code) in [
        (service("Web", "true"), "invalid_request"),
        (service("", "true"), "invalid_request"),
        (service("web", ""), "invalid_request"),
        (service("web", &long), "invalid_request"),
        (
            StartService {
                argv: Some(vec!["true".into()]),
                ..good()
            },
            "invalid_request",
        ),
        (
            StartService {
                cwd: Some("relative".into()),
                ..good()
            },
            "invalid_request",
        ),
        (
            StartService {
                user: Some("no-such-user".into()),
                ..good()
            },
            "no_such_user",
        ),
        (
            StartService {
                command: None,
                argv: Some(vec!["no-such-program".into()]),
                ..good()
            },
            "command_not_found",
        ),
    ] {
        let (status, error) = refused(client.start_service("box", &bad).await);
        assert_eq!((status, error.code.as_str()), (422, code), "{bad:?}");
    }
    assert!(client.services("box").await.unwrap().items.is_empty());
}
