//! Sandboxes with isolation gvisor take their interface over when they start. The rules around it are the same.

use cove_model::{NetworkMode, SandboxId, SandboxSpec};
use cove_protocol::client::Guest;
use cove_runner_api::{CreateRequest, EgressEntry, EgressVerdict, RunnerApi};
use cove_tests::engine_host::{eventually, exec, guest, small_spec};

use crate::stage::*;
use crate::world::*;

async fn sandbox(stage: &Stage, network: cove_model::NetworkPolicy) -> (SandboxId, Guest) {
    let id = SandboxId::random();
    let spec = SandboxSpec {
        isolation: "gvisor".into(),
        network,
        ..small_spec()
    };
    let request = CreateRequest {
        owner: None,
        id: id.clone(),
        spec,
        from: None,
    };
    let client = stage.engine.client();
    client.create(request).await.expect("a sandbox is created");
    let guest = guest(&client, &id);
    (id, guest)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_decides_what_the_interface_of_a_gvisor_sandbox_reaches() {
    let mut stage = Stage::new().await;
    let (id, inside) = sandbox(&stage, mode(NetworkMode::None)).await;
    let client = stage.engine.client();
    // The interface is there, and nothing comes through.
    let routes = exec(&inside, "busybox route -n").await;
    let routes = String::from_utf8_lossy(&routes.stdout).into_owned();
    assert!(routes.contains("eth0"), "{routes}");
    for address in [PUBLIC, OTHER_PUBLIC, HOST, PRIVATE, METADATA, SHARED] {
        assert!(ask(&inside, address).await.is_err(), "{address}");
    }
    // Opened while it runs: the world, but neither the host nor what is private.
    let opened = client.set_network(&id, mode(NetworkMode::Open)).await;
    opened.expect("it can be opened");
    assert_eq!(ask(&inside, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    for address in [HOST, PRIVATE, METADATA, SHARED] {
        assert!(ask(&inside, address).await.is_err(), "{address}");
    }
    // A list goes through the gateway, and every decision is in the log.
    let listing = client.set_network(&id, listed(&["1.2.3.4:7"])).await;
    listing.expect("it can be narrowed");
    assert_eq!(ask(&inside, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    assert!(ask(&inside, OTHER_PUBLIC).await.is_err());
    let denied = |entry: &EgressEntry| {
        entry.address == Some(OTHER_PUBLIC.into()) && entry.verdict == EgressVerdict::Denied
    };
    stage.logged(&id, denied).await;
    let asked = exec(&inside, &format!("nslookup example.org {OTHER_PUBLIC}")).await;
    assert_ne!(asked.exit.code, 0, "another resolver answered");

    // A killed engine changes nothing; the next one finds the interface and goes on with it.
    stage.engine.kill();
    stage.engine.launch();
    let inside = guest(&stage.engine.client(), &id);
    assert_eq!(ask(&inside, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    assert!(ask(&inside, OTHER_PUBLIC).await.is_err());
    let client = stage.engine.client();
    let used = client.sample(&id).await.expect("figures");
    assert!(
        used.network_sent_bytes > 0 && used.network_received_bytes > 0,
        "{used:?}"
    );
    let closed = client.set_network(&id, mode(NetworkMode::None)).await;
    closed.expect("it can be closed");
    assert!(ask(&inside, PUBLIC).await.is_err());
    let opened = client.set_network(&id, mode(NetworkMode::Open)).await;
    opened.expect("it can be opened again");
    eventually("it reaches the world again", || async {
        ask(&inside, PUBLIC).await.ok()
    })
    .await;
    client.delete(&id).await.expect("it is deleted");
    stage.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn gvisor_sandboxes_and_containers_do_not_reach_each_other() {
    let stage = Stage::new().await;
    let (_, one) = sandbox(&stage, mode(NetworkMode::Open)).await;
    let (_, two) = sandbox(&stage, mode(NetworkMode::Open)).await;
    let (_, container) = stage.sandbox(mode(NetworkMode::Open)).await;
    for listener in [&one, &two, &container] {
        let listen = "busybox nc -ll -p 99 -e echo reached > /dev/null 2>&1 & echo on";
        let on = exec(listener, listen).await;
        assert_eq!(on.exit.code, 0);
        // Each reaches its own.
        eventually("it listens", || async {
            let own = exec(listener, "nc -w 2 127.0.0.1 99 < /dev/null").await;
            String::from_utf8_lossy(&own.stdout)
                .contains("reached")
                .then_some(())
        })
        .await;
    }
    // As the host's routes name them: each is the address of one sandbox.
    let (_, routes) = stage.world.host.program("ip -4 -o route show table all");
    let addresses: Vec<&str> = routes
        .lines()
        .filter(|route| route.contains(" dev cv"))
        .filter_map(|route| route.split_whitespace().next())
        .collect();
    assert_eq!(addresses.len(), 3, "{routes}");
    for asker in [&one, &two, &container] {
        let command = format!(
            "for to in {}; do nc -w 1 $to 99 < /dev/null; done; true",
            addresses.join(" ")
        );
        let found = exec(asker, &command).await;
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        assert!(!found.contains("reached"), "{found}");
    }
    stage.finish();
}
