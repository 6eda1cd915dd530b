//! An engine in a host namespace with the internet behind it, and what tests ask of it.

use std::collections::BTreeSet;

use cove_model::{NetworkMode, NetworkPolicy, SandboxId, SandboxSpec};
use cove_protocol::client::Guest;
use cove_runner_api::{
    CreateRequest, EgressEntry, EgressQuery, FromSnapshot, RunnerApi, SandboxView,
};
use cove_tests::engine_host::{Setup, World as Engine, exec, guest, small_spec};

use crate::world::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_engine-host");

/// An engine in a host namespace, with the internet behind it.
pub struct Stage {
    pub engine: Engine,
    pub world: World,
}

impl Stage {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let world = World::new();
        let engine = Self::engine_in(&world, change).await;
        Self { engine, world }
    }

    /// An engine of its own on a host where others may be.
    pub async fn engine_in(world: &World, change: impl FnOnce(&mut Setup)) -> Engine {
        let path = world.host.path().into();
        Engine::with(PROGRAM, |setup| {
            setup.namespace = Some(path);
            change(setup);
        })
        .await
    }

    pub async fn sandbox(&self, network: NetworkPolicy) -> (SandboxId, Guest) {
        self.grown(network, None).await
    }

    /// From a snapshot, where one is given.
    pub async fn grown(
        &self,
        network: NetworkPolicy,
        from: Option<FromSnapshot>,
    ) -> (SandboxId, Guest) {
        let id = SandboxId::random();
        let spec = SandboxSpec {
            network,
            ..small_spec()
        };
        let request = CreateRequest {
            owner: None,
            id: id.clone(),
            spec,
            from,
        };
        let client = self.engine.client();
        client.create(request).await.expect("a sandbox is created");
        let guest = guest(&client, &id);
        (id, guest)
    }

    /// A sandbox, and a process in its network.
    pub async fn start(&self, request: CreateRequest) -> (SandboxView, i32) {
        let before = self.inside();
        let made = self.engine.client().create(request).await;
        let made = made.expect("a sandbox");
        let new: Vec<i32> = self.inside().difference(&before).copied().collect();
        let pid = new.first().copied().expect("it has processes");
        (made, pid)
    }

    /// Processes of sandboxes: not the gateway, not the terminators.
    pub fn inside(&self) -> BTreeSet<i32> {
        let all = self.engine.traces().processes;
        let guests = all.into_iter().filter(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            !name.is_ok_and(|name| name.starts_with("cove-"))
        });
        guests.collect()
    }

    pub fn finish(self) {
        self.engine.finish();
        let (_, links) = self.world.host.program("ip -o link show");
        assert!(!links.contains(" cv"), "interfaces are left: {links}");
        let (_, tables) = self.world.host.program("nft list tables");
        assert_eq!(tables.trim(), "", "tables are left");
        let (_, routes) = self.world.host.program("ip route show table local");
        assert!(!routes.contains("198.19."), "routes are left: {routes}");
    }
}

pub fn mode(mode: NetworkMode) -> NetworkPolicy {
    NetworkPolicy {
        mode,
        ..NetworkPolicy::default()
    }
}

/// What an echo server answers to a sandbox, or what went wrong.
pub async fn ask(guest: &Guest, address: std::net::Ipv4Addr) -> Result<String, String> {
    let command = format!("echo hello | nc -w 60 {address} {ECHO}");
    let result = exec(guest, &command).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if result.stdout.is_empty() {
        Err(text(&result.stderr))
    } else {
        Ok(text(&result.stdout))
    }
}

pub fn listed(entries: &[&str]) -> NetworkPolicy {
    NetworkPolicy {
        mode: NetworkMode::Allowlist,
        allow: Some(
            entries
                .iter()
                .map(|entry| entry.parse().expect("an entry"))
                .collect(),
        ),
        ..NetworkPolicy::default()
    }
}

impl Stage {
    /// The sandbox's log once it has an entry that `wanted` says yes to.
    pub async fn logged(
        &self,
        id: &SandboxId,
        wanted: impl Fn(&EgressEntry) -> bool,
    ) -> EgressEntry {
        let client = self.engine.client();
        let mut after = 0;
        let mut seen = Vec::new();
        let deadline = std::time::Instant::now() + PATIENCE;
        while std::time::Instant::now() < deadline {
            let query = EgressQuery {
                sandbox: id.clone(),
                after,
                limit: 100,
                wait_ms: 500,
                verdict: None,
            };
            let batch = client.egress(query).await.expect("a log");
            seen.extend(batch.entries);
            if let Some(entry) = seen.iter().find(|entry| wanted(entry)) {
                return entry.clone();
            }
            after = batch.next;
        }
        panic!("no such line came, but {seen:#?}");
    }

    pub fn gateway_pid(&self) -> u32 {
        let file = self.engine.setup.data_dir().join("gateway/process");
        let text = std::fs::read_to_string(file).expect("the gateway runs");
        text.split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok())
            .expect("a pid")
    }
}
