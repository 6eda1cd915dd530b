//! The log of network decisions.

use cove_api::egress::{EgressLine, EgressProtocol, EgressQuery, EgressVerdict};
use cove_model::SandboxId;
use tokio::time::timeout;

use super::harness::{DEADLINE, Server, refused};

fn record(server: &Server, id: &str, name: &str, denied: bool) {
    let entry = cove_runner_api::EgressEntry {
        sequence: 0,
        at: time::OffsetDateTime::now_utc(),
        protocol: cove_runner_api::EgressProtocol::Dns,
        name: Some(name.into()),
        address: None,
        port: None,
        verdict: if denied {
            cove_runner_api::EgressVerdict::Denied
        } else {
            cove_runner_api::EgressVerdict::Allowed
        },
        rule: "a rule".into(),
        sent_bytes: 0,
        received_bytes: 0,
    };
    let id: SandboxId = id.parse().unwrap();
    server.runner.egress.record(&id, entry);
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_listed_and_filtered() {
    let server = Server::bare().await;
    let sandbox = server.sandbox("box").await;
    for (name, denied) in [
        ("good.example", false),
        ("evil.example", true),
        ("a.good.example", false),
        ("notgood.example", true),
    ] {
        record(&server, &sandbox.id, name, denied);
    }
    let names = async |query: EgressQuery| -> Vec<String> {
        let list = server.client.egress("box", &query).await.unwrap();
        list.items.into_iter().filter_map(|it| it.name).collect()
    };
    assert_eq!(names(EgressQuery::default()).await.len(), 4);
    let denied = EgressQuery {
        verdict: Some(EgressVerdict::Denied),
        ..EgressQuery::default()
    };
    assert_eq!(names(denied).await, ["evil.example", "notgood.example"]);
    let named = EgressQuery {
        name: Some("Good.example".into()),
        ..EgressQuery::default()
    };
    assert_eq!(names(named).await, ["good.example", "a.good.example"]);
    let other = EgressQuery {
        protocol: Some(EgressProtocol::Tcp),
        ..EgressQuery::default()
    };
    assert!(names(other).await.is_empty());
    // Page by page, each once.
    let mut query = EgressQuery {
        limit: Some(3),
        ..EgressQuery::default()
    };
    let first = server.client.egress("box", &query).await.unwrap();
    assert_eq!(first.items.len(), 3);
    query.after = Some(first.next);
    assert_eq!(names(query.clone()).await, ["notgood.example"]);
    query.limit = Some(0);
    assert_eq!(refused(server.client.egress("box", &query).await).0, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_hears_what_is_decided_later() {
    let server = Server::bare().await;
    let sandbox = server.sandbox("box").await;
    record(&server, &sandbox.id, "first.example", false);
    let query = EgressQuery::default();
    let mut lines = server.client.follow_egress("box", &query).await.unwrap();
    for name in ["first.example", "second.example", "third.example"] {
        if name != "first.example" {
            record(&server, &sandbox.id, name, true);
        }
        let line = timeout(DEADLINE, lines.next()).await.unwrap().unwrap();
        let Some(EgressLine::Entry(entry)) = line else {
            panic!("{line:?}");
        };
        assert_eq!(entry.name.as_deref(), Some(name));
    }
}
