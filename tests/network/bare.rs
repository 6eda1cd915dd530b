//! A host with the network of one engine and nothing else; sandboxes are plain namespaces whose root has
//! every right, as a virtual machine's guest would.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cove_model::network::Entry;
use cove_model::{NetworkMode, NetworkPolicy, SandboxId};
use cove_network::{Gate, Network, NetworkConfig, Ports};

use crate::world::{Namespace, World};

/// Where a gateway that has died would listen.
const DEAD: Ports = Ports {
    dns: 5053,
    tcp: 5080,
};

pub struct Bare {
    pub network: Network,
    pub world: World,
}

/// Stands where the gateway was before it died: takes policies, and nobody listens.
struct Dead;

impl Gate for Dead {
    fn place(&self, _: Ipv4Addr, _: &SandboxId, _: &NetworkPolicy) -> std::io::Result<()> {
        Ok(())
    }

    fn remove(&self, _: Ipv4Addr) {}
}

impl Bare {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(prepare: impl FnOnce(&Network) + Send) -> Self {
        let world = World::new();
        let network = world.host.enter(|| {
            let network = Self::open();
            prepare(&network);
            network.build().expect("the rules are made");
            network
        });
        Self { network, world }
    }

    /// To be called inside the host.
    pub fn open() -> Network {
        let network = Network::open(NetworkConfig {
            instance: "0badcafe".into(),
            addresses: Default::default(),
        })
        .expect("the network opens");
        network
            .set_listeners(Some(DEAD), None)
            .expect("nothing is built yet");
        network.set_gate(Arc::new(Dead));
        network
    }

    /// With nothing allowed.
    pub fn sandbox(&self) -> Sandbox<'_> {
        static INDEX: AtomicU32 = AtomicU32::new(28_672);
        let index = INDEX.fetch_add(1, Ordering::Relaxed);
        let inside = Namespace::new("box");
        self.world
            .host
            .enter(|| self.network.attach(index, inside.fd()))
            .expect("a sandbox is attached");
        cove_network::let_ping(inside.fd(), 0..=65_535).expect("a setting of the namespace");
        Sandbox {
            bare: self,
            index,
            id: SandboxId::random(),
            inside,
        }
    }

    pub fn open_sandbox(&self) -> Sandbox<'_> {
        let sandbox = self.sandbox();
        sandbox.set(NetworkMode::Open, &[]);
        sandbox
    }
}

pub struct Sandbox<'a> {
    bare: &'a Bare,
    pub index: u32,
    id: SandboxId,
    pub inside: Namespace,
}

impl Sandbox<'_> {
    pub fn set(&self, mode: NetworkMode, allow: &[&str]) {
        self.apply(&NetworkPolicy {
            mode,
            allow: Some(Entry::list(allow.iter().copied()).expect("entries")),
            ..NetworkPolicy::default()
        });
    }

    pub fn apply(&self, policy: &NetworkPolicy) {
        let network = &self.bare.network;
        self.bare
            .world
            .host
            .enter(|| network.set(self.index, self.inside.fd(), &self.id, policy))
            .expect("the policy is set");
    }

    pub fn outer(&self) -> Ipv4Addr {
        self.bare.network.addresses().outer(self.index)
    }

    pub fn inner(&self) -> Ipv4Addr {
        self.bare.network.addresses().inner()
    }

    pub fn gateway(&self) -> Ipv4Addr {
        self.bare.network.addresses().gateway()
    }
}
