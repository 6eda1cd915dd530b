//! Leases over HTTP: begun, renewed, taken over and ended.

use cove_api::ErrorCode;
use cove_api::lifecycle::{LeaseRequest, LifecycleRequest, RenewLeases};
use cove_api::sandbox::{CreateSandbox, Sandbox};
use cove_api::snapshot::{Fork, Forked};
use cove_control::ControlConfig;
use cove_model::LeaseTimes;
use cove_server::ServerConfig;

use super::harness::{Server, refused};

fn held_by(holder: &str) -> LeaseRequest {
    LeaseRequest {
        holder: holder.into(),
        renew_within_s: None,
        delete_after_s: None,
    }
}

fn leased(lease: LeaseRequest) -> CreateSandbox {
    CreateSandbox {
        name: Some("agent".into()),
        lifecycle: Some(LifecycleRequest {
            lease: Some(lease),
            ..LifecycleRequest::default()
        }),
        ..CreateSandbox::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_shown_renewed_taken_over_and_ended() {
    let server = Server::bare().await;
    let client = &server.client;
    let asked = LeaseRequest {
        renew_within_s: Some(60),
        ..held_by("one")
    };
    let made = client.create_sandbox(&leased(asked), None).await.unwrap();
    let lease = made.lease.unwrap();
    assert_eq!((lease.renew_within_s, lease.delete_after_s), (60, 86_400));
    let renew = async |holder: &str, ids: Vec<String>| {
        let leases = RenewLeases {
            holder: holder.into(),
            sandboxes: ids,
        };
        client.renew_leases(&leases).await
    };
    let mine = vec![made.id.clone()];
    assert!(renew("one", mine.clone()).await.unwrap().lost.is_empty());
    let taken = client.take_lease("agent", &held_by("two")).await.unwrap();
    assert_eq!(taken.lease.unwrap().renew_within_s, 60);
    assert_eq!(renew("one", mine.clone()).await.unwrap().lost, mine);
    let name = vec!["agent".to_owned()];
    for (holder, ids) in [("two", name), ("two", vec![]), ("", mine.clone())] {
        let (status, error) = refused(renew(holder, ids).await);
        assert_eq!((status, error.code), (422, ErrorCode::InvalidRequest));
    }
    let bad = LeaseRequest {
        renew_within_s: Some(0),
        ..held_by("three")
    };
    assert_eq!(refused(client.take_lease("agent", &bad).await).0, 422);
    client.end_lease("agent").await.unwrap();
    assert_eq!(client.sandbox("agent").await.unwrap().lease, None);
    // Ending what has ended is done already.
    client.end_lease("agent").await.unwrap();
    let other = client.create_sandbox(&leased(held_by("")), None).await;
    assert_eq!(refused(other).0, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn times_that_a_request_does_not_give_are_those_of_the_server() {
    let config = ControlConfig {
        lease_times: LeaseTimes {
            renew_within_s: 70,
            delete_after_s: 700,
        },
        ..ControlConfig::default()
    };
    let server = Server::start(ServerConfig::default(), config, false).await;
    let client = &server.client;
    let times = |sandbox: Sandbox| {
        let lease = sandbox.lease.unwrap();
        (lease.renew_within_s, lease.delete_after_s)
    };
    let made = client.create_sandbox(&leased(held_by("one")), None).await;
    assert_eq!(times(made.unwrap()), (70, 700));
    let fork = Fork {
        name: Some("copy".into()),
        lease: Some(held_by("one")),
        ..Fork::default()
    };
    let copies = client.fork_sandbox("agent", &fork, None).await.unwrap();
    match copies.into_iter().next() {
        Some(Forked::Sandbox(copy)) => assert_eq!(times(*copy), (70, 700)),
        other => panic!("no copy: {other:?}"),
    }
    // Begun where there was none, and taken over where the first holder gave times.
    client.end_lease("agent").await.unwrap();
    let taken = client.take_lease("agent", &held_by("two")).await.unwrap();
    assert_eq!(times(taken), (70, 700));
    let asked = LeaseRequest {
        renew_within_s: Some(80),
        ..held_by("three")
    };
    let taken = client.take_lease("agent", &asked).await.unwrap();
    assert_eq!(times(taken), (80, 700));
    let taken = client.take_lease("agent", &held_by("four")).await.unwrap();
    assert_eq!(times(taken), (80, 700));
}
