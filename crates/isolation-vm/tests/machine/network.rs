//! A machine behind the interface and the rules that a container would be behind. The host and the internet are
//! namespaces of the test.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use cove_isolation::{Isolation, Machine};
use cove_model::{NetworkMode, NetworkPolicy};
use cove_network::{Addresses, Network, NetworkConfig};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::LONG;
use crate::fixture::{TestTier, end, exec, has_qemu, limits, run};

const PUBLIC: &str = "1.2.3.4";
/// A cloud's metadata, and an address that is private.
const FORBIDDEN: [&str; 3] = ["169.254.169.254", "10.9.8.7", "7.7.7.1"];

fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments}: {said}");
}

/// The host's namespace and the internet's, gone when dropped.
struct World {
    host: String,
    internet: String,
    server: Option<Child>,
}

impl World {
    fn new() -> Self {
        let number = std::process::id();
        let world = Self {
            host: format!("cove-vmh{number}"),
            internet: format!("cove-vmi{number}"),
            server: None,
        };
        let (host, internet) = (&world.host, &world.internet);
        ip(&format!("netns add {host}"));
        ip(&format!("netns add {internet}"));
        ip(&format!(
            "-n {host} link add out type veth peer name in netns {internet}"
        ));
        for (of, rest) in [
            (host, "link set lo up"),
            (host, "addr add 7.7.7.1/24 dev out"),
            (host, "link set out up"),
            (host, "route add default via 7.7.7.2"),
            (internet, "link set lo up"),
            (internet, "addr add 7.7.7.2/24 dev in"),
            (internet, "link set in up"),
        ] {
            ip(&format!("-n {of} {rest}"));
        }
        for address in [PUBLIC, FORBIDDEN[0], FORBIDDEN[1]] {
            ip(&format!("-n {internet} addr add {address}/32 dev lo"));
        }
        let mut world = world;
        let forward = format!(
            "netns exec {} busybox sysctl -w net.ipv4.ip_forward=1",
            world.host
        );
        ip(&forward);
        let server = [
            "netns",
            "exec",
            &world.internet,
            "busybox",
            "httpd",
            "-f",
            "-p",
            "8080",
        ];
        let server = Command::new("ip")
            .args(server)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        world.server = Some(server);
        world
    }

    /// Made in the host's namespace, whose tables its sockets then speak of.
    fn network(&self) -> Arc<Network> {
        let namespace = File::open(format!("/run/netns/{}", self.host)).unwrap();
        let opened = std::thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            let network = Network::open(NetworkConfig {
                instance: format!("{:08x}", std::process::id()),
                addresses: Addresses::default(),
            });
            let network = network.unwrap();
            network.build().unwrap();
            network
        });
        Arc::new(opened.join().unwrap())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
        for name in [&self.host, &self.internet] {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn mode(mode: NetworkMode) -> NetworkPolicy {
    NetworkPolicy {
        mode,
        ..NetworkPolicy::default()
    }
}

/// Whether a server of the internet answers at the address, with whatever it says.
async fn reaches(machine: &Arc<dyn Machine>, address: &str) -> bool {
    let script = format!("(echo GET /hello; sleep 2) | nc -w 5 {address} 8080");
    let said = exec(machine, &script).await.stdout;
    String::from_utf8_lossy(&said).contains("HTTP")
}

/// What is open is reached, if not at once: a machine in software may need longer than one try lasts.
async fn comes_to_reach(machine: &Arc<dyn Machine>, address: &str) {
    let deadline = Instant::now() + LONG;
    while !reaches(machine, address).await {
        assert!(Instant::now() < deadline, "{address} is not reached");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_decides_what_a_machine_reaches() {
    if !has_qemu() {
        return;
    }
    let world = World::new();
    let network = world.network();
    let tier = TestTier::in_network("vmnet", |_| Some(Arc::clone(&network)));
    let (image, volume) = (tier.image(), tier.volume());
    let boot = tier.boot_of(&image, &volume, limits());
    let machine: Arc<dyn Machine> = tier.tier.boot(boot).await.unwrap().into();
    // The interface is there, and nothing comes through.
    let inside = run(
        &machine,
        "ip addr show eth0; ip route; cat /etc/resolv.conf",
    )
    .await;
    assert!(
        inside.contains("198.19.0.2/30") && inside.contains("198.19.0.1"),
        "{inside}"
    );
    assert!(!reaches(&machine, PUBLIC).await);
    // Opened while it runs: the world, and nothing else.
    machine.set_network(&mode(NetworkMode::Open)).await.unwrap();
    comes_to_reach(&machine, PUBLIC).await;
    for address in FORBIDDEN {
        assert!(!reaches(&machine, address).await, "{address}");
    }
    // Another source than its own gets no answer.
    let spoof = "ip addr add 198.18.0.77/32 dev eth0; ping -c 2 -W 2 -I 198.18.0.77 1.2.3.4";
    assert_ne!(exec(&machine, spoof).await.exit.code, 0);
    comes_to_reach(&machine, PUBLIC).await;
    let usage = machine.usage().await.unwrap();
    assert!(
        usage.network_sent_bytes > 0 && usage.network_received_bytes > 0,
        "{usage:?}"
    );
    machine.set_network(&mode(NetworkMode::None)).await.unwrap();
    assert!(!reaches(&machine, PUBLIC).await);
    end(&machine).await;
    tier.close().await;
    drop(network);
}
