//! What the network costs: at a create, for each connection, for each byte, and at a change of policy.
//!
//! Measured in namespaces made here, against a plain routed wire in the same minute.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cove_gateway::host::{Gateway, GatewayConfig, PackageHosts, Presets};
use cove_model::network::Cidr;
use cove_model::{NetworkMode, NetworkPolicy, SandboxId};
use cove_network::{Addresses, Gate, Network, NetworkConfig, Ports};

use crate::host::ms;
use crate::report::{Bar, Report, Sample};

mod fabric;
mod links;

use fabric::{Fabric, Namespace, greeted, hold, throughput};

const INSTANCE: &str = "be4c4000";
const PORTS: Ports = Ports {
    dns: 5053,
    tcp: 5080,
};
/// Below all that engines hand out, so that names of interfaces cannot meet.
const FIRST: u32 = 20_000;
const MANY: u32 = 1000;
/// Idle connections, and the megabytes they may cost.
const IDLE: [(usize, f64); 2] = [(3000, 100.0), (10_000, 300.0)];
/// Of one sandbox; it may have more, but not all.
const IDLE_OF_ONE: usize = 1000;
/// What the gateway keeps for other things, and room for the rest of this program.
const DESCRIPTORS_BESIDE: u64 = 8192;
const GATEWAY_UID: u32 = 0x6ffe_0000;

struct Gatekeeper(Gateway);

impl Gate for Gatekeeper {
    fn place(&self, outer: Ipv4Addr, id: &SandboxId, policy: &NetworkPolicy) -> io::Result<()> {
        let set = self.0.set_policy_blocking(outer, id, policy);
        set.map_err(io::Error::other)
    }

    fn remove(&self, outer: Ipv4Addr) {
        // The gateway ends with the benchmark.
        let _ = self.0.remove_blocking(outer);
    }
}

/// A host with the network of one engine, and its gateway.
struct Stage {
    network: Network,
    gateway: Gateway,
    runtime: tokio::runtime::Runtime,
    fabric: Fabric,
    _directory: tempfile::TempDir,
}

impl Stage {
    fn new() -> Result<Self> {
        let fabric = Fabric::new()?;
        let host = fabric.host.handle()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(move || fabric::enter(&host))
            .enable_all()
            .build()?;
        let addresses = Addresses::default();
        let network = fabric.host.enter(|| {
            Network::open(NetworkConfig {
                instance: INSTANCE.into(),
                addresses,
            })
        })?;
        let directory = tempfile::tempdir()?;
        let (range, prefix) = addresses.range();
        let config = GatewayConfig {
            terminations: Default::default(),
            owners: Default::default(),
            program: cove_embedded::GATEWAY,
            directory: directory.path().join("gateway"),
            instance: INSTANCE.into(),
            uid: GATEWAY_UID,
            gid: GATEWAY_UID,
            dns: SocketAddrV4::new(addresses.gateway(), PORTS.dns),
            proxy: SocketAddrV4::new(addresses.gateway(), PORTS.tcp),
            resolvers: vec![(fabric::PUBLIC, 53).into()],
            resolv_conf: "/nonexistent".into(),
            presets: Presets {
                tenant_ranges: Vec::new(),
                file: None,
                packages: PackageHosts {
                    ask_tools: None,
                    ..PackageHosts::default()
                },
            },
            reserved: vec![Cidr::new(range, prefix)],
            limits: Default::default(),
        };
        let started = runtime.spawn(Gateway::start(config, Vec::new()));
        let gateway = runtime.block_on(started)??;
        network.set_listeners(Some(PORTS), None)?;
        network.set_gate(Arc::new(Gatekeeper(gateway.clone())));
        Ok(Self {
            network,
            gateway,
            runtime,
            fabric,
            _directory: directory,
        })
    }

    /// Runs a call on the host and tells how long it took, in milliseconds.
    fn timed(&self, work: impl FnOnce(&Network) -> Result<()> + Send) -> Result<f64> {
        self.fabric.host.enter(|| {
            let begun = Instant::now();
            work(&self.network)?;
            Ok(ms(begun.elapsed()))
        })
    }

    fn attach(&self, index: u32) -> Result<(Namespace, f64)> {
        let inside = Namespace::new()?;
        let took = self.timed(|network| Ok(network.attach(index, inside.fd())?))?;
        Ok((inside, took))
    }

    fn set(&self, index: u32, inside: BorrowedFd<'_>, policy: &NetworkPolicy) -> Result<f64> {
        let id = SandboxId::random();
        self.timed(|network| Ok(network.set(index, inside, &id, policy)?))
    }

    fn gateway_pid(&self) -> Result<u32> {
        let gateway = self.gateway.clone();
        let hello = self.runtime.spawn(async move { gateway.hello().await });
        Ok(self.runtime.block_on(hello)??.pid)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let gateway = self.gateway.clone();
        let stopped = self.runtime.spawn(async move { gateway.stop().await });
        // Without us it ends by itself, since its directory is gone.
        let _ = self.runtime.block_on(stopped);
    }
}

fn open() -> NetworkPolicy {
    NetworkPolicy {
        mode: NetworkMode::Open,
        ..NetworkPolicy::default()
    }
}

fn listed(entry: &str) -> NetworkPolicy {
    NetworkPolicy {
        mode: NetworkMode::Allowlist,
        allow: Some(vec![entry.parse().expect("an entry")]),
        ..NetworkPolicy::default()
    }
}

pub fn run(report: &mut Report, quick: bool) -> Result<()> {
    apart(|| measure(report, quick))
}

/// Only what bytes cost, against a plain routed wire: done in a minute, also where nothing but this program is.
pub fn routed(report: &mut Report, quick: bool) -> Result<()> {
    apart(|| {
        let stage = Stage::new().context("make a network to measure")?;
        stage.timed(|network| Ok(network.build()?))?;
        carried(&stage, report, quick)
    })
}

/// On threads of its own: they enter and leave namespaces, and one runs a second runtime.
fn apart(work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    std::thread::scope(|scope| {
        scope
            .spawn(work)
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn measure(report: &mut Report, quick: bool) -> Result<()> {
    let rounds = if quick { 15 } else { 50 };
    let stage = Stage::new().context("make a network to measure")?;
    let first = creates(&stage, FIRST, rounds)?;
    report.figure(
        "an interface with nothing allowed, median",
        first.attach,
        "ms",
    );
    for (what, took) in [("open", first.open), ("allowlist", first.listed)] {
        let name = format!("network's share of a create, {what}, median");
        report.bar(&name, first.attach + took, "ms", Bar::AtMost(1.5));
    }
    // As an engine that opens knows them: rules without interfaces.
    for index in FIRST + 5000..FIRST + 5000 + MANY {
        let id = SandboxId::random();
        stage.network.adopt(index, &id, &listed("example.com"));
    }
    let later = creates(&stage, FIRST + 1000, rounds)?;
    let ratio = (later.attach + later.open) / (first.attach + first.open);
    let name = "the 1,000th sandbox's interface and rules against the first's";
    report.bar(name, ratio, "x", Bar::AtMost(1.5));
    changes(&stage, report, rounds)?;
    carried(&stage, report, quick)?;
    idle(&stage, report)
}

struct Creates {
    attach: f64,
    open: f64,
    listed: f64,
}

fn creates(stage: &Stage, first: u32, rounds: u32) -> Result<Creates> {
    stage.timed(|network| Ok(network.build()?))?;
    let (mut attach, mut opened, mut lists) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        for (policy, took) in [(open(), &mut opened), (listed("example.com"), &mut lists)] {
            let index = first + 2 * round + u32::from(policy.mode == NetworkMode::Open);
            let (inside, made) = stage.attach(index)?;
            attach.push(made);
            took.push(stage.set(index, inside.fd(), &policy)?);
            stage.timed(|network| Ok(network.release(index)?))?;
        }
    }
    Ok(Creates {
        attach: Sample::new(attach).median(),
        open: Sample::new(opened).median(),
        listed: Sample::new(lists).median(),
    })
}

fn changes(stage: &Stage, report: &mut Report, rounds: u32) -> Result<()> {
    let index = FIRST + 3000;
    let (inside, _) = stage.attach(index)?;
    let mut took = Vec::new();
    for _ in 0..rounds {
        stage.set(index, inside.fd(), &open())?;
        // Something to cut.
        let held = hold(&inside, 20)?;
        took.push(stage.set(index, inside.fd(), &listed("1.2.3.4"))?);
        drop(held);
        let held = hold(&inside, 20)?;
        took.push(stage.set(index, inside.fd(), &NetworkPolicy::default())?);
        drop(held);
    }
    let took = Sample::new(took);
    let name = "policy change in force, 20 connections to cut, median";
    report.bar(name, took.median(), "ms", Bar::AtMost(20.0));
    report.figure("the same, longest", took.quantile(1.0), "ms");
    Ok(stage.network.release(index)?)
}

/// All three ways in turn, so that what else the machine does meets each.
fn carried(stage: &Stage, report: &mut Report, quick: bool) -> Result<()> {
    let (rounds, time) = if quick { (5, 300) } else { (11, 1000) };
    let time = Duration::from_millis(time);
    let router = Fabric::new()?;
    let plain = router.plain()?;
    let (direct, gated) = (stage.attach(FIRST + 3100)?.0, stage.attach(FIRST + 3101)?.0);
    stage.set(FIRST + 3100, direct.fd(), &open())?;
    stage.set(FIRST + 3101, gated.fd(), &listed("1.2.3.4"))?;
    let (mut wire, mut opened, mut spliced) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let base = throughput(&plain, time)?;
        wire.push(base * 8e-9);
        opened.push(throughput(&direct, time)? / base * 100.0);
        spliced.push(throughput(&gated, time)? / base * 100.0);
    }
    let (wire, opened) = (Sample::new(wire).median(), Sample::new(opened).median());
    let spliced = Sample::new(spliced).median();
    report.figure("plain routed wire, median", wire, "Gb/s");
    let name = "throughput of an open sandbox against that";
    report.bar(name, opened, "%", Bar::AtLeast(80.0));
    let name = "throughput through the gateway against that";
    report.bar(name, spliced, "%", Bar::AtLeast(50.0));

    let tries = if quick { 50 } else { 300 };
    let (mut straight, mut through) = (Vec::new(), Vec::new());
    for _ in 0..tries {
        straight.push(ms(greeted(&plain)?));
        through.push(ms(greeted(&gated)?));
    }
    let (straight, through) = (
        Sample::new(straight).median(),
        Sample::new(through).median(),
    );
    report.figure(
        "connection to the first byte, plain, median",
        straight,
        "ms",
    );
    let name = "the same through the gateway, more than plain";
    report.bar(name, through - straight, "ms", Bar::AtMost(1.0));
    stage.network.release(FIRST + 3100)?;
    Ok(stage.network.release(FIRST + 3101)?)
}

/// Both ends of each connection are here as well as in the gateway, which keeps a part free for others.
fn descriptors_for(connections: usize) -> u64 {
    3 * connections as u64 + DESCRIPTORS_BESIDE
}

fn idle(stage: &Stage, report: &mut Report) -> Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised)?;
    for (connections, megabytes) in IDLE {
        let wanted = descriptors_for(connections);
        let name = format!("the gateway's memory with {connections} idle connections");
        if most < wanted {
            eprintln!(
                "{name}: skipped, because it needs {wanted} descriptors and there are {most}"
            );
            continue;
        }
        let resident = resident_with(stage, connections)?;
        report.bar(&name, resident, "MB", Bar::AtMost(megabytes));
    }
    Ok(())
}

/// Megabytes of the gateway while it holds that many, of as many sandboxes as it takes.
fn resident_with(stage: &Stage, connections: usize) -> Result<f64> {
    let (mut boxes, mut held) = (Vec::new(), Vec::new());
    let mut index = FIRST + 3200;
    while held.len() < connections {
        let (inside, _) = stage.attach(index)?;
        stage.set(index, inside.fd(), &listed("1.2.3.4"))?;
        let more = IDLE_OF_ONE.min(connections - held.len());
        held.extend(hold(&inside, more).context("hold connections; they need descriptors")?);
        boxes.push((index, inside));
        index += 1;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", stage.gateway_pid()?))?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|text| text.trim().trim_end_matches(" kB").parse::<f64>().ok())
        .context("read the gateway's memory")?;
    drop(held);
    for (index, _) in &boxes {
        stage.network.release(*index)?;
    }
    Ok(resident / 1024.0)
}
