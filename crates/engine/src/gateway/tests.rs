//! A gateway that cannot start at first, and what the sandboxes that wait for it get.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use cove_gateway::host::{GatewayConfig, PackageHosts, Presets};
use cove_model::{NetworkPolicy, SandboxId};
use cove_network::Gate;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

use super::Gatekeeper;

const DEADLINE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const ADOPTED: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// A loopback address of this test's own, so that nobody else takes a port that is let go for a moment.
fn loopback() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(64);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, NEXT.fetch_add(1, Ordering::Relaxed), high, low)
}

struct Blocked {
    keeper: Arc<Gatekeeper>,
    /// Somebody else has the port; dropping it frees the port.
    in_the_way: Option<TcpListener>,
    _directory: TempDir,
}

impl Blocked {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = loopback();
        let in_the_way = TcpListener::bind((address, 0)).unwrap();
        let free = std::net::UdpSocket::bind((address, 0)).unwrap();
        let here = |port| SocketAddrV4::new(address, port);
        let config = GatewayConfig {
            terminations: Default::default(),
            owners: Default::default(),
            program: cove_embedded::GATEWAY,
            directory: directory.path().join("gateway"),
            instance: "blocked".into(),
            uid: 65_533,
            gid: 65_533,
            dns: here(free.local_addr().unwrap().port()),
            proxy: here(in_the_way.local_addr().unwrap().port()),
            resolvers: vec![here(9).into()],
            resolv_conf: "/nonexistent".into(),
            presets: Presets {
                file: None,
                packages: PackageHosts::default(),
                tenant_ranges: Vec::new(),
            },
            reserved: Vec::new(),
            limits: Default::default(),
        };
        let keeper = Arc::new(Gatekeeper {
            config,
            runtime: Handle::current(),
            running: OnceCell::new(),
            beginning: tokio::sync::Mutex::default(),
        });
        let policy = NetworkPolicy::default();
        keeper
            .adopt(vec![(ADOPTED, SandboxId::random(), policy)])
            .await;
        assert!(keeper.start().await.is_err(), "the port is taken");
        Self {
            keeper,
            in_the_way: Some(in_the_way),
            _directory: directory,
        }
    }

    /// Frees the port, and waits until it is free: a child that another test forks may hold the listening socket until
    /// it runs its program.
    async fn clear_the_way(&mut self) {
        let Some(listener) = self.in_the_way.take() else {
            return;
        };
        let address = listener.local_addr().unwrap();
        drop(listener);
        let deadline = Instant::now() + DEADLINE;
        while TcpListener::bind(address).is_err() {
            assert!(Instant::now() < deadline, "the port is still taken");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn sandboxes(&self) -> u64 {
        let gateway = self.keeper.running().expect("it runs");
        gateway.hello().await.unwrap().sandboxes
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let stopped = self.keeper.wait(async {
            match self.keeper.running() {
                Some(gateway) => gateway.stop().await,
                None => Ok(()),
            }
        });
        drop(stopped);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_starts_late_knows_the_sandboxes_that_were_there_before() {
    let mut blocked = Blocked::new().await;
    blocked.clear_the_way().await;
    let newcomer = Ipv4Addr::new(10, 9, 0, 2);
    let policy = NetworkPolicy::default();
    blocked
        .keeper
        .place(newcomer, &SandboxId::random(), &policy)
        .unwrap();
    assert_eq!(blocked.sandboxes().await, 2);
    blocked.keeper.remove(ADOPTED);
    assert_eq!(blocked.sandboxes().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_did_not_start_is_tried_again_by_itself() {
    let mut blocked = Blocked::new().await;
    blocked.keeper.keep_trying();
    blocked.in_the_way = None;
    let deadline = Instant::now() + DEADLINE;
    while blocked.keeper.running().is_none() {
        assert!(Instant::now() < deadline, "nobody tried again");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    assert_eq!(blocked.sandboxes().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_went_while_there_was_no_gateway_is_not_introduced_to_it() {
    let mut blocked = Blocked::new().await;
    blocked.keeper.remove(ADOPTED);
    blocked.clear_the_way().await;
    blocked.keeper.start().await.unwrap();
    assert_eq!(blocked.sandboxes().await, 0);
}
