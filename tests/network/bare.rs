//! The network alone: what its rules let through, and what an attacker with every right inside gets.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU32, Ordering};

use cove_model::{NetworkMode, NetworkPolicy, SandboxId};
use cove_network::{Network, NetworkConfig};

use crate::world::*;

/// A host with the network of one engine.
struct Bare {
    network: Network,
    world: World,
}

impl Bare {
    fn new() -> Self {
        let world = World::new();
        let network = world.host.enter(|| {
            let network = Network::open(NetworkConfig {
                instance: "0badcafe".into(),
                addresses: Default::default(),
            })
            .expect("the network opens");
            network.build().expect("the rules are made");
            network
        });
        Self { network, world }
    }

    fn sandbox(&self) -> Sandbox<'_> {
        static INDEX: AtomicU32 = AtomicU32::new(28_672);
        let index = INDEX.fetch_add(1, Ordering::Relaxed);
        let inside = Namespace::new("box");
        self.world
            .host
            .enter(|| self.network.attach(index, inside.fd()))
            .expect("a sandbox is attached");
        Sandbox {
            bare: self,
            index,
            id: SandboxId::random(),
            inside,
        }
    }

    fn open(&self) -> Sandbox<'_> {
        let sandbox = self.sandbox();
        sandbox.set(NetworkMode::Open, &[]);
        sandbox
    }
}

struct Sandbox<'a> {
    bare: &'a Bare,
    index: u32,
    id: SandboxId,
    inside: Namespace,
}

impl Sandbox<'_> {
    fn set(&self, mode: NetworkMode, allow: &[&str]) {
        self.apply(&NetworkPolicy {
            mode,
            allow: Some(allow.iter().map(|entry| (*entry).to_owned()).collect()),
            ..NetworkPolicy::default()
        });
    }

    fn apply(&self, policy: &NetworkPolicy) {
        let network = &self.bare.network;
        self.bare
            .world
            .host
            .enter(|| network.set(self.index, self.inside.fd(), &self.id, policy))
            .expect("the policy is set");
    }
}

#[test]
fn an_open_sandbox_reaches_the_internet_with_the_hosts_address() {
    let bare = Bare::new();
    let sandbox = bare.open();
    let mut stream = sandbox
        .inside
        .connect(PUBLIC, ECHO)
        .expect("the internet is open");
    assert_eq!(exchange(&mut stream, "hi").unwrap(), format!("{HOST} hi"));
    let text = echo(&sandbox.inside.udp(), PUBLIC, 443, "quic").unwrap();
    assert_eq!(text, format!("{HOST} quic"));
    ping(&sandbox.inside, PUBLIC).expect("an answer comes");
}

#[test]
fn a_sandbox_without_a_network_is_told_no_at_once() {
    let bare = Bare::new();
    let sandbox = bare.sandbox();
    for (address, port) in [(PUBLIC, ECHO), (PRIVATE, ECHO), (HOST, ECHO)] {
        let refused = sandbox.inside.connect(address, port).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{address}");
        let refused = echo(&sandbox.inside.udp(), address, port, "x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::HostUnreachable, "{address}");
    }
}
