//! Policies through the engine, from inside sandboxes as root.

use cove_model::{NetworkMode, NetworkPolicy, SandboxId, SandboxSpec};
use cove_protocol::client::Guest;
use cove_runner::{CreateRequest, RunnerApi};
use cove_tests::engine_host::{World as Engine, exec, guest, output, small_spec};

use crate::world::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_engine-host");

/// An engine in a host namespace, with the internet behind it.
struct Stage {
    engine: Engine,
    world: World,
}

impl Stage {
    async fn new() -> Self {
        let world = World::new();
        let path = world.host.path().into();
        let engine = Engine::with(PROGRAM, |setup| setup.namespace = Some(path)).await;
        Self { engine, world }
    }

    async fn sandbox(&self, network: NetworkPolicy) -> (SandboxId, Guest) {
        let id = SandboxId::random();
        let spec = SandboxSpec {
            network,
            ..small_spec()
        };
        let request = CreateRequest {
            id: id.clone(),
            spec,
            from: None,
        };
        let client = self.engine.client();
        client.create(request).await.expect("a sandbox is created");
        let guest = guest(&client, &id);
        (id, guest)
    }

    fn finish(self) {
        self.engine.finish();
        let (_, links) = self.world.host.program("ip -o link show");
        assert!(!links.contains(" cv"), "interfaces are left: {links}");
        let (_, tables) = self.world.host.program("nft list tables");
        assert_eq!(tables.trim(), "", "tables are left");
        let (_, routes) = self.world.host.program("ip route show table local");
        assert!(!routes.contains("198.19."), "routes are left: {routes}");
    }
}

fn mode(mode: NetworkMode) -> NetworkPolicy {
    NetworkPolicy {
        mode,
        ..NetworkPolicy::default()
    }
}

/// What an echo server answers to a sandbox, or what went wrong.
async fn ask(guest: &Guest, address: std::net::Ipv4Addr) -> Result<String, String> {
    let command = format!("echo hello | nc -w 5 {address} {ECHO}");
    let result = exec(guest, &command).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if result.stdout.is_empty() {
        Err(text(&result.stderr))
    } else {
        Ok(text(&result.stdout))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_has_the_network_it_was_created_with_and_it_changes_live() {
    let mut stage = Stage::new().await;
    let (id, guest) = stage.sandbox(mode(NetworkMode::Open)).await;
    assert_eq!(ask(&guest, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    let (_, none) = stage.sandbox(mode(NetworkMode::None)).await;
    assert!(ask(&none, PUBLIC).await.unwrap_err().contains("refused"));
    assert_eq!(
        output(&guest, "cat /etc/resolv.conf | head -n1").await,
        "nameserver 198.19.0.1"
    );

    let client = stage.engine.client();
    let sample = client.sample(&id).await.expect("figures");
    assert!(sample.network_sent_bytes > 100, "{sample:?}");
    assert!(sample.network_received_bytes > 100, "{sample:?}");

    let view = client
        .set_network(&id, mode(NetworkMode::None))
        .await
        .expect("a change");
    assert_eq!(view.spec.network.mode, NetworkMode::None);
    assert!(ask(&guest, PUBLIC).await.unwrap_err().contains("refused"));
    client
        .set_network(&id, mode(NetworkMode::Open))
        .await
        .expect("a change");
    assert!(ask(&guest, PUBLIC).await.is_ok());

    stage.engine.restart();
    assert_eq!(ask(&guest, PUBLIC).await.unwrap(), format!("{HOST} hello"));
    assert!(ask(&none, PUBLIC).await.is_err());
    stage.finish();
}
