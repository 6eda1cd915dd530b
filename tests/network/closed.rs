//! Sandboxes whose network is off: names are refused inside, at once, and reach the log.

use cove_model::{NetworkMode, SandboxId, SnapshotId};
use cove_protocol::client::{FollowEvent, Guest};
use cove_protocol::message;
use cove_runner_api::{
    EgressProtocol, EgressVerdict, FromSnapshot, Refusals, RefusedName, RunnerApi, RunnerError,
    SnapshotRequest,
};
use cove_tests::engine_host::{output, shell};

use crate::names::{DNS, RESOLVER, Resolver};
use crate::stage::*;
use crate::world::*;

/// What a look-up printed, and what the guest reported of it.
async fn look_up(guest: &Guest, name: &str) -> (String, Vec<message::Refusals>) {
    let start = message::Start {
        report_refusals: true,
        ..shell(&format!("nslookup -type=a {name} 2>&1"))
    };
    let mut follow = guest.start_following(start).await.expect("it starts");
    let (mut said, mut reported) = (String::new(), Vec::new());
    while let Some(event) = follow.next().await.expect("it goes on") {
        match event {
            FollowEvent::Output { data, .. } => said += &String::from_utf8_lossy(&data),
            FollowEvent::Refused(refusals) => reported.push(refusals),
            FollowEvent::Started(_) | FollowEvent::Exit(_) => {}
        }
    }
    (said, reported)
}

async fn is_refused_inside(guest: &Guest, name: &str) {
    let (said, reported) = look_up(guest, name).await;
    assert!(said.contains("REFUSED"), "{said}");
    assert_eq!(reported.len(), 1, "{said}");
    assert_eq!(reported[0].names[0].name, name);
}

/// As control does it.
async fn log(stage: &Stage, id: &SandboxId, guest: &Guest) -> Vec<String> {
    let taken = guest.take_refusals().await.expect("a report");
    let names: Vec<RefusedName> = taken
        .names
        .into_iter()
        .map(|it| RefusedName {
            name: it.name,
            queries: it.queries,
        })
        .collect();
    let told = names.iter().map(|it| it.name.clone()).collect();
    let refusals = Refusals {
        names,
        more: taken.more,
        addresses: taken.addresses,
    };
    let client = stage.engine.client();
    client.log_refusals(id, refusals).await.expect("it is kept");
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_names_reach_the_log_and_follow_the_policy() {
    let mut stage = Stage::with(|setup| setup.resolver = Some((RESOLVER, DNS).into())).await;
    let _resolver = Resolver::serve(&stage.world.internet);
    let (id, guest) = stage.sandbox(mode(NetworkMode::None)).await;
    let (other, _guest) = stage.sandbox(mode(NetworkMode::None)).await;
    is_refused_inside(&guest, "good.example").await;
    assert!(ask(&guest, PUBLIC).await.is_err());
    assert_eq!(log(&stage, &id, &guest).await, ["good.example"]);
    let line = stage
        .logged(&id, |entry| entry.name.as_deref() == Some("good.example"))
        .await;
    assert_eq!(line.verdict, EgressVerdict::Denied);
    assert!(line.rule.contains("reported by the sandbox"), "{line:?}");
    let line = stage
        .logged(&id, |entry| entry.protocol == EgressProtocol::Other)
        .await;
    assert!(line.rule.contains("reach an address: 1,"), "{line:?}");

    // What no guest can have said is refused, and changes nothing.
    let client = stage.engine.client();
    let forged = |name: String| Refusals {
        names: vec![RefusedName { name, queries: 1 }],
        ..Refusals::default()
    };
    for name in ["\u{1b}[2J".to_owned(), "a b".to_owned(), "x".repeat(254)] {
        let refused = client.log_refusals(&other, forged(name)).await;
        assert!(matches!(refused, Err(RunnerError::Invalid { .. })));
    }

    // With a network the same resolver answers, and the guest has nothing to do with it.
    client
        .set_network(&id, listed(&["good.example"]))
        .await
        .expect("a change");
    let (said, reported) = look_up(&guest, "good.example").await;
    assert!(said.contains(&PUBLIC.to_string()), "{said}");
    let (said, more) = look_up(&guest, "evil.example").await;
    assert!(said.contains("REFUSED"), "{said}");
    assert_eq!((reported, more), (Vec::new(), Vec::new()));
    client
        .log_refusals(&id, forged("forged.example".into()))
        .await
        .expect("it is ignored");
    let line = stage
        .logged(&id, |entry| entry.name.as_deref() == Some("evil.example"))
        .await;
    assert!(!line.rule.contains("reported"), "{line:?}");

    // Off again it has an interface, and names do not leave by it.
    client
        .set_network(&id, mode(NetworkMode::None))
        .await
        .expect("a change");
    is_refused_inside(&guest, "evil.example").await;
    stage.engine.restart();
    is_refused_inside(&guest, "good.example").await;
    assert_eq!(
        log(&stage, &id, &guest).await,
        ["evil.example", "good.example"]
    );
    let client = stage.engine.client();
    client
        .set_network(&id, listed(&["good.example"]))
        .await
        .expect("a change");
    let (said, _) = look_up(&guest, "good.example").await;
    assert!(said.contains(&PUBLIC.to_string()), "{said}");
    let query = cove_runner_api::EgressQuery {
        sandbox: id.clone(),
        after: 0,
        limit: 1000,
        wait_ms: 0,
        verdict: None,
    };
    let all = client.egress(query).await.expect("a log").entries;
    let named = |name: &str| all.iter().any(|it| it.name.as_deref() == Some(name));
    assert!(named("evil.example") && !named("forged.example"), "{all:?}");
    client.delete(&id).await.expect("it goes");
    client.delete(&other).await.expect("it goes");
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn captures_and_copies_refuse_by_their_own_policy() {
    let stage = Stage::with(|setup| setup.resolver = Some((RESOLVER, DNS).into())).await;
    let _resolver = Resolver::serve(&stage.world.internet);
    let client = stage.engine.client();
    let tiers = client.host().await.expect("a host").tiers;
    let captures = tiers[0].capabilities.contains(&"memory".to_owned());
    if !cove_tests::needs::has("criu", captures) {
        return stage.finish();
    }
    let (id, guest) = stage.sandbox(mode(NetworkMode::None)).await;
    is_refused_inside(&guest, "good.example").await;
    // A pause while the resolver listens, and a process that asks only afterwards.
    client.pause(&id).await.expect("it pauses");
    client.resume(&id).await.expect("it comes back");
    is_refused_inside(&guest, "evil.example").await;
    let snapshot = SnapshotId::random();
    client
        .snapshot(SnapshotRequest {
            id: snapshot.clone(),
            sandbox: id.clone(),
            memory: true,
            unless_unchanged: false,
        })
        .await
        .expect("a snapshot with memory");
    is_refused_inside(&guest, "good.example").await;
    let from = || FromSnapshot {
        snapshot: snapshot.clone(),
        memory: true,
    };
    let (_, closed) = stage.grown(mode(NetworkMode::None), Some(from())).await;
    is_refused_inside(&closed, "good.example").await;
    let (_, open) = stage.grown(listed(&["good.example"]), Some(from())).await;
    let (said, reported) = look_up(&open, "good.example").await;
    assert!(said.contains(&PUBLIC.to_string()), "{said}");
    assert!(reported.is_empty(), "{reported:?}");
    assert_eq!(
        output(&closed, "cat /etc/resolv.conf | head -n1").await,
        "nameserver 198.19.0.1"
    );
    stage.finish();
}
