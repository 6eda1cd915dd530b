//! The fleet: join tokens and nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cove_limits::{HOST_LABELS_MAX, HOST_TAINTS_MAX};
use cove_model::{HostId, HostTraits, State, TraitsChange};
use cove_store::{
    FleetRecord, JoinTokenRecord, Joined, NodeRecord, SandboxRecord, Store, StoreError,
};

use crate::rows::{at, org, sandbox};

fn node(name: &str, host: &HostId) -> NodeRecord {
    NodeRecord {
        host: host.clone(),
        name: name.into(),
        address: "192.0.2.1:7071".into(),
        public_key: format!("04{name}"),
        cordoned: false,
        traits: HostTraits::default(),
        joined_at: at(10),
        expires_at: at(1000),
    }
}

async fn token(store: &dyn Store, id: &str, expires: i64) {
    let token = JoinTokenRecord {
        id: id.into(),
        wrapped: "secret".into(),
        created_at: at(1),
        expires_at: at(expires),
        host: None,
    };
    store.create_join_token(&token, at(1)).await.unwrap();
}

pub async fn a_token_takes_one_host_in_and_refuses_the_rest(store: Arc<dyn Store>) {
    let fleet = |id: &str| FleetRecord {
        id: id.into(),
        authority: "pem".into(),
        wrapped: "key".into(),
    };
    assert_eq!(store.fleet().await.unwrap(), None);
    assert_eq!(store.keep_fleet(&fleet("a")).await.unwrap(), fleet("a"));
    assert_eq!(store.keep_fleet(&fleet("b")).await.unwrap(), fleet("a"));
    let own = HostId::random();
    store
        .register_hosts(std::slice::from_ref(&own), at(1))
        .await
        .unwrap();
    let (one, two) = (HostId::random(), HostId::random());
    let join = async |by: &str, name: &str, host: &HostId, now| {
        store
            .join_node(by, &node(name, host), at(now))
            .await
            .unwrap()
    };
    assert_eq!(join("none", "n1", &one, 5).await, Joined::NoToken);
    token(&*store, "first", 100).await;
    token(&*store, "second", 100).await;
    assert_eq!(join("first", "n1", &one, 100).await, Joined::Expired);
    assert!(store.nodes().await.unwrap().is_empty());
    assert_eq!(join("first", "n1", &one, 5).await, Joined::New);
    // An answer that was lost is asked for again; nobody else gets in by it.
    assert_eq!(join("first", "n1", &one, 50).await, Joined::Again);
    assert_eq!(join("first", "n1", &one, 100).await, Joined::Expired);
    assert_eq!(join("first", "n2", &two, 5).await, Joined::Used);
    assert_eq!(join("second", "n1", &two, 5).await, Joined::NameTaken);
    let taken = join("second", "n2", &one, 5).await;
    assert!(matches!(taken, Joined::HostTaken { name } if name == "n1"));
    assert!(matches!(
        join("second", "n2", &own, 5).await,
        Joined::HostTaken { .. }
    ));
    assert_eq!(
        store.join_token("second").await.unwrap().unwrap().host,
        None
    );
    assert_eq!(join("second", "n2", &two, 5).await, Joined::New);
    // With another certificate it has had the answer.
    store.renew_node(&two, at(2000)).await.unwrap();
    assert_eq!(join("second", "n2", &two, 6).await, Joined::Used);
    let names = |nodes: Vec<NodeRecord>| nodes.into_iter().map(|node| node.name);
    let found: Vec<_> = names(store.nodes().await.unwrap()).collect();
    assert_eq!(found, ["n1", "n2"]);
    // The control plane starts again without naming them.
    store
        .register_hosts(std::slice::from_ref(&own), at(20))
        .await
        .unwrap();
}

pub async fn a_node_is_removed_only_when_it_is_empty(store: Arc<dyn Store>) {
    let host = HostId::random();
    token(&*store, "first", 100).await;
    let joined = store.join_node("first", &node("n1", &host), at(5)).await;
    assert_eq!(joined.unwrap(), Joined::New);
    store.cordon_node(&host, true).await.unwrap();
    store.renew_node(&host, at(2000)).await.unwrap();
    let known = store.nodes().await.unwrap().remove(0);
    assert!(known.cordoned);
    assert_eq!(known.expires_at, at(2000));
    let ours = org(&store, "ours").await;
    let sandbox = SandboxRecord {
        host: host.clone(),
        state: State::Creating,
        ..sandbox(&ours, None)
    };
    store.create_sandbox(&sandbox, None).await.unwrap();
    let held = store.remove_node(&host, at(6)).await.unwrap();
    assert_eq!(held, Some(("sandboxes", 1)));
    // While it is being made it may go elsewhere, once.
    let other = HostId::random();
    store
        .place_sandbox(&sandbox.id, &host, &other)
        .await
        .unwrap();
    let stale = store.place_sandbox(&sandbox.id, &host, &other).await;
    assert!(matches!(stale, Err(StoreError::Stale)));
    assert_eq!(store.remove_node(&host, at(7)).await.unwrap(), None);
    assert!(store.nodes().await.unwrap().is_empty());
    let gone = store.remove_node(&host, at(8)).await;
    assert!(matches!(gone, Err(StoreError::NotFound { .. })));
    // Nothing comes to it any more.
    let back = store.place_sandbox(&sandbox.id, &other, &host).await;
    assert!(matches!(back, Err(StoreError::NodeRemoved)));
    let late = SandboxRecord {
        host: host.clone(),
        ..crate::rows::sandbox(&ours, None)
    };
    let refused = store.create_sandbox(&late, None).await;
    assert!(matches!(refused, Err(StoreError::NodeRemoved)));
    assert!(store.any_sandbox(&late.id).await.unwrap().is_none());
    let kept = store.any_sandbox(&sandbox.id).await.unwrap().unwrap();
    assert_eq!(kept.host, other);
    // The name is free, and the host may come back.
    token(&*store, "second", 100).await;
    let again = store.join_node("second", &node("n1", &host), at(9)).await;
    assert_eq!(again.unwrap(), Joined::New);
}

pub async fn traits_of_a_node_change_and_stay_within_their_limits(store: Arc<dyn Store>) {
    let (one, two) = (HostId::random(), HostId::random());
    token(&*store, "first", 100).await;
    token(&*store, "second", 100).await;
    let given = HostTraits {
        zone: "a".into(),
        labels: BTreeMap::from([("gpu".into(), "h100".into())]),
        taints: BTreeSet::from(["team".into()]),
    };
    let asked = NodeRecord {
        traits: given.clone(),
        ..node("n1", &one)
    };
    let join =
        async |token: &str, node: &NodeRecord| store.join_node(token, node, at(5)).await.unwrap();
    assert_eq!(join("first", &asked).await, Joined::New);
    assert_eq!(join("first", &asked).await, Joined::Again);
    // Asked again for less, the node would come without its taint.
    assert_eq!(join("first", &node("n1", &one)).await, Joined::Used);
    assert_eq!(join("second", &node("n2", &two)).await, Joined::New);
    let traits = async || {
        let known = store.nodes().await.unwrap().into_iter();
        known.map(|node| node.traits).collect::<Vec<_>>()
    };
    assert_eq!(traits().await, [given.clone(), HostTraits::default()]);
    let change = TraitsChange {
        zone: Some("b".into()),
        labels: BTreeMap::from([("gpu".into(), None), ("disk".into(), Some("ssd".into()))]),
        taints: BTreeMap::from([("spot".into(), true)]),
    };
    let changed = store.change_traits(&one, &change).await.unwrap();
    assert_eq!(changed, given.changed(&change));
    assert_eq!(traits().await, [changed.clone(), HostTraits::default()]);
    for many in [
        TraitsChange {
            labels: (0..=HOST_LABELS_MAX)
                .map(|number| (number.to_string(), Some("x".into())))
                .collect(),
            ..TraitsChange::default()
        },
        TraitsChange {
            taints: (0..=HOST_TAINTS_MAX)
                .map(|number| (number.to_string(), true))
                .collect(),
            ..TraitsChange::default()
        },
    ] {
        let refused = store.change_traits(&one, &many).await;
        assert!(matches!(refused, Err(StoreError::TooMany { .. })));
    }
    assert_eq!(traits().await[0], changed);
    let unknown = store.change_traits(&HostId::random(), &change).await;
    assert!(matches!(unknown, Err(StoreError::NotFound { .. })));
    store.remove_node(&one, at(6)).await.unwrap();
    let removed = store.change_traits(&one, &change).await;
    assert!(matches!(removed, Err(StoreError::NotFound { .. })));
}
