//! The gateway of this engine: started when a sandbox first may reach something or is refused something,
//! adopted when an earlier engine left it running, informed of every sandbox and every refusal.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cove_gateway::host::{
    Audience, Gateway, GatewayConfig, GatewayError, Owners, PackageHosts, Presets, Terminations,
};
use cove_isolation::accounts;
use cove_isolation::finding::warning;
use cove_model::network::Cidr;
use cove_model::{Backoff, NetworkMode, NetworkPolicy, SandboxId};
use cove_network::{Denial, Denials, Gate, Network, Ports};
use cove_runner_api::{
    EgressBatch, EgressEntry, EgressProtocol, EgressQuery, EgressVerdict, Finding, RunnerError,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::block_in_place;

use crate::config::EngineConfig;
use crate::engine::{Engine, Inner};
use crate::error::{chain, internal};
use crate::record::Record;

/// What the gateway's user id is claimed as.
const ACCOUNT: &str = "gateway";
/// Whose user id package managers of the host are asked under.
const TOOLS_ACCOUNT: &str = "package-tools";
/// How often a pair of ports is tried.
const PORT_TRIES: u32 = 16;
/// How long the thread that hears of refusals waits before it looks whether the engine still is.
const HEARING: Duration = Duration::from_millis(500);
/// Between tries to start a gateway for sandboxes that were there before this engine.
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// The longest a caller may wait for entries in one call.
const EGRESS_WAIT_MAX_MS: u64 = 60_000;

pub struct Gatekeeper {
    config: GatewayConfig,
    runtime: Handle,
    running: OnceCell<Gateway>,
    /// What the gateway starts with. Held while it starts, so that nothing is missed in between.
    beginning: tokio::sync::Mutex<Beginning>,
}

#[derive(Default)]
struct Beginning {
    /// The sandboxes that ran before this engine, by their addresses.
    adopted: BTreeMap<Ipv4Addr, (SandboxId, NetworkPolicy)>,
    /// The engine ends and wants none any more.
    closed: bool,
}

#[derive(Serialize, Deserialize)]
struct KeptPorts {
    dns: u16,
    tcp: u16,
}

impl Gatekeeper {
    /// Chooses where it will listen, the same in every life of the engine. Starts nothing.
    pub fn open(
        network: &Network,
        engine: &EngineConfig,
        instance: &str,
    ) -> io::Result<(Arc<Self>, Ports)> {
        let addresses = network.addresses();
        let address = addresses.gateway();
        let directory = engine.data_dir.join("gateway");
        let ports = ports(&directory.with_extension("ports"), address)?;
        let (range, prefix) = addresses.range();
        let claim = |account| accounts::claim(&engine.host_cache, &engine.data_dir, account, None);
        let uid = claim(ACCOUNT)?;
        let packages = PackageHosts {
            ask_tools: Some(claim(TOOLS_ACCOUNT)?),
            ..PackageHosts::default()
        };
        let config = GatewayConfig {
            owners: Default::default(),
            terminations: Default::default(),
            program: cove_embedded::GATEWAY,
            directory,
            instance: instance.to_owned(),
            uid,
            gid: uid,
            dns: SocketAddrV4::new(address, ports.dns),
            proxy: SocketAddrV4::new(address, ports.tcp),
            resolvers: engine.network_resolvers.clone(),
            resolv_conf: "/etc/resolv.conf".into(),
            presets: Presets {
                file: engine.network_presets.clone(),
                packages,
                tenant_ranges: engine.tenant_private_ranges.clone(),
            },
            reserved: vec![Cidr::new(range, prefix)],
            limits: Default::default(),
        };
        let gatekeeper = Self {
            config,
            runtime: Handle::current(),
            running: OnceCell::new(),
            beginning: tokio::sync::Mutex::default(),
        };
        Ok((Arc::new(gatekeeper), ports))
    }

    /// Whether an earlier engine left one behind.
    pub fn was_left_running(&self) -> bool {
        self.config.directory.join("control.sock").exists()
    }

    /// Whether a gateway that is gone left a log.
    fn has_logged(&self) -> bool {
        self.config.directory.join("egress.0").exists()
    }

    /// Notes sandboxes that are there already: whenever the gateway starts, it starts with them.
    async fn adopt(&self, placed: Vec<(Ipv4Addr, SandboxId, NetworkPolicy)>) {
        let placed = placed
            .into_iter()
            .map(|(outer, sandbox, policy)| (outer, (sandbox, policy)));
        self.beginning.lock().await.adopted = placed.collect();
    }

    async fn start(&self) -> Result<&Gateway, GatewayError> {
        if let Some(gateway) = self.running.get() {
            return Ok(gateway);
        }
        let beginning = self.beginning.lock().await;
        if beginning.closed {
            return Err(GatewayError::Silent(io::ErrorKind::NotConnected.into()));
        }
        let adopted = beginning.adopted.iter();
        let placed = adopted
            .map(|(outer, (sandbox, policy))| (*outer, sandbox.clone(), policy.clone()))
            .collect();
        self.running
            .get_or_try_init(|| Gateway::start(self.config.clone(), placed))
            .await
    }

    /// Tries until the gateway runs or the engine is gone: sandboxes that depend on it do not start it.
    fn keep_trying(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.runtime.spawn(async move {
            let mut retry = Backoff::new(RETRY_FIRST, RETRY_MAX);
            loop {
                tokio::time::sleep(retry.pause()).await;
                let Some(keeper) = weak.upgrade() else {
                    return;
                };
                match keeper.start().await {
                    Ok(_) => {
                        tracing::info!("the egress gateway runs again");
                        return;
                    }
                    Err(_) if keeper.beginning.lock().await.closed => return,
                    Err(error) => {
                        tracing::warn!(
                            error = chain(&error),
                            "the egress gateway still does not start"
                        );
                    }
                }
            }
        });
    }

    /// What the operator should know about the presets of this host.
    pub fn preset_findings(&self) -> Vec<Finding> {
        let closed = match self.config.presets.closed_to_tenants() {
            Ok(closed) => closed,
            Err(error) => {
                let hint = "correct the file that the setting network_presets names";
                return vec![warning("presets", chain(&error), hint.into())];
            }
        };
        let findings = closed.into_iter().map(|(name, block)| {
            warning(
                "presets",
                format!(
                    "preset '{name}' holds the private address {block}; only the home organisation can use it"
                ),
                format!(
                    "to open it to all organisations, write [{name} tenants] in the presets file"
                ),
            )
        });
        findings.collect()
    }

    /// Whose the sandboxes are.
    pub fn owners(&self) -> &Owners {
        &self.config.owners
    }

    /// Which of them hold secrets.
    pub fn terminations(&self) -> &Terminations {
        &self.config.terminations
    }

    /// Who the gateway process is.
    pub fn uid(&self) -> u32 {
        self.config.uid
    }

    pub fn running(&self) -> Option<&Gateway> {
        self.running.get()
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, GatewayError>>) -> io::Result<T> {
        block_in_place(|| self.runtime.block_on(work))
            .map_err(|error| io::Error::other(chain(&error)))
    }
}

impl Gate for Gatekeeper {
    fn place(
        &self,
        outer: Ipv4Addr,
        sandbox: &SandboxId,
        policy: &NetworkPolicy,
    ) -> io::Result<()> {
        self.wait(async {
            let gateway = self.start().await?;
            gateway.set_policy(outer, sandbox, policy).await
        })
    }

    fn remove(&self, outer: Ipv4Addr) {
        let removed = self.wait(async {
            self.beginning.lock().await.adopted.remove(&outer);
            match self.running() {
                Some(gateway) => gateway.remove(outer).await,
                None => Ok(()),
            }
        });
        if let Err(error) = removed {
            // The next sandbox at that address is announced before it runs.
            tracing::warn!(%error, %outer, "cannot remove a deleted sandbox from the gateway");
        }
    }
}

/// Ports from the file, or new ones that are free now.
fn ports(file: &Path, address: Ipv4Addr) -> io::Result<Ports> {
    if let Some(kept) = fs::read(file)
        .ok()
        .and_then(|text| serde_json::from_slice::<KeptPorts>(&text).ok())
    {
        return Ok(Ports {
            dns: kept.dns,
            tcp: kept.tcp,
        });
    }
    for _ in 0..PORT_TRIES {
        let tcp = TcpListener::bind((address, 0))?;
        let datagrams = UdpSocket::bind((address, 0))?;
        let ports = KeptPorts {
            dns: datagrams.local_addr()?.port(),
            tcp: tcp.local_addr()?.port(),
        };
        if TcpListener::bind((address, ports.dns)).is_err() {
            continue;
        }
        fs::write(file, serde_json::to_vec(&ports)?)?;
        return Ok(Ports {
            dns: ports.dns,
            tcp: ports.tcp,
        });
    }
    Err(io::Error::other("no two ports are free for the gateway"))
}

impl Engine {
    /// Takes over a gateway that runs, with the policies of everything that may run.
    pub(crate) async fn adopt_gateway(&self, records: &[Record]) {
        let Ok(network) = &self.inner.network else {
            return;
        };
        let Some(gatekeeper) = self.inner.gatekeeper.get() else {
            return;
        };
        for record in records {
            if let Some(owner) = &record.owner {
                gatekeeper
                    .owners()
                    .note(&record.id, owner, record.audience());
            }
        }
        for record in records {
            // Bound names are refused until control has said what the secrets are.
            if let Err(error) = self.inner.place_secrets(record).await {
                tracing::warn!(%error, sandbox = %record.id, "cannot use the secrets of a sandbox");
            }
        }
        let placed: Vec<_> = records
            .iter()
            .filter_map(|record| {
                let placed = self.inner.tiers.placed(record.machine.as_ref()?)?;
                let outer = network.addresses().outer(placed.index);
                Some((outer, placed.sandbox, record.spec.network.clone()))
            })
            .collect();
        let wanted = placed
            .iter()
            .any(|(_, _, policy)| policy.mode != NetworkMode::None);
        gatekeeper.adopt(placed).await;
        if (wanted || gatekeeper.was_left_running())
            && let Err(error) = gatekeeper.start().await
        {
            tracing::error!(
                error = chain(&error),
                "cannot take over the gateway; refusing its connections until that works"
            );
            gatekeeper.keep_trying();
        }
    }

    /// Ends the gateway of an engine that leaves nothing running, or leaves it to the next engine.
    pub(crate) async fn close_gateway(&self, needed: bool) {
        let Some(gatekeeper) = self.inner.gatekeeper.get() else {
            return;
        };
        gatekeeper.beginning.lock().await.closed = true;
        match gatekeeper.running() {
            Some(gateway) if needed => gateway.let_go().await,
            Some(gateway) => {
                if let Err(error) = gateway.stop().await {
                    tracing::warn!(error = chain(&error), "cannot stop the egress gateway");
                }
            }
            None => {}
        }
    }

    pub(crate) async fn egress_of(
        &self,
        mut query: EgressQuery,
    ) -> Result<EgressBatch, RunnerError> {
        self.inner.find(&query.sandbox)?;
        query.wait_ms = query.wait_ms.min(EGRESS_WAIT_MAX_MS);
        let running = match self.inner.gatekeeper.get() {
            Some(keeper) if keeper.has_logged() => {
                let started = keeper.start().await;
                Some(started.map_err(|error| internal(chain(&error)))?)
            }
            Some(keeper) => keeper.running(),
            None => None,
        };
        let Some(gateway) = running else {
            // Nothing was ever decided.
            tokio::time::sleep(Duration::from_millis(query.wait_ms)).await;
            return Ok(EgressBatch {
                entries: Vec::new(),
                next: query.after,
                lost: false,
            });
        };
        gateway
            .egress(query)
            .await
            .map_err(|error| internal(chain(&error)))
    }
}

/// Hears of refused packets until the engine is gone and hands them to the gateway's log.
pub(crate) fn hear(inner: &Arc<Inner>, denials: Denials) {
    let weak = Arc::downgrade(inner);
    let spawned = std::thread::Builder::new()
        .name("cove-denials".into())
        .spawn(move || listen(&weak, &denials));
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot log refused packets");
    }
}

/// Says so when its thread panics: nobody waits for that thread.
struct Hearing;

impl Drop for Hearing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("refused packets are no longer logged: the logging thread panicked");
        }
    }
}

fn listen(inner: &Weak<Inner>, denials: &Denials) {
    let _hearing = Hearing;
    loop {
        let heard = match denials.wait(HEARING) {
            Ok(heard) => heard,
            Err(error) => {
                tracing::warn!(%error, "refused packets are no longer logged");
                return;
            }
        };
        let Some(inner) = inner.upgrade() else {
            return;
        };
        if !heard.is_empty()
            && let Err(error) = inner.tell(&heard)
        {
            tracing::debug!(%error, "some refused packets were not logged");
        }
    }
}

impl Inner {
    /// Refuses presets that this host does not have, before anything is made.
    pub(crate) async fn check_presets(
        &self,
        policy: &NetworkPolicy,
        audience: Audience,
    ) -> Result<(), RunnerError> {
        let Some(gatekeeper) = self.gatekeeper.get() else {
            return Ok(());
        };
        let expanded = gatekeeper
            .config
            .presets
            .expand_async(policy, audience)
            .await;
        expanded.map(drop).map_err(|error| RunnerError::Invalid {
            message: chain(&error),
        })
    }

    fn tell(&self, heard: &[Denial]) -> io::Result<()> {
        let (Ok(network), Some(gatekeeper)) = (&self.network, self.gatekeeper.get()) else {
            return Ok(());
        };
        let mut policies = BTreeMap::new();
        let mut entries = Vec::new();
        for denial in heard {
            let policy = policies
                .entry(denial.index)
                .or_insert_with(|| network.introduce(denial.index).ok().flatten());
            if let Some(policy) = policy {
                let outer = network.addresses().outer(denial.index);
                entries.push((outer, entry(denial, outer, policy.mode)));
            }
        }
        match gatekeeper.running() {
            Some(gateway) if !entries.is_empty() => gatekeeper.wait(gateway.append(entries)),
            _ => Ok(()),
        }
    }
}

fn entry(denial: &Denial, outer: Ipv4Addr, mode: NetworkMode) -> EgressEntry {
    let rule = match mode {
        _ if denial.source != outer => format!("forged source address {}", denial.source),
        NetworkMode::None => "the sandbox has no network".to_owned(),
        NetworkMode::Allowlist => "not in the allow list".to_owned(),
        NetworkMode::Open => "not on the internet, and not in the allow list".to_owned(),
    };
    EgressEntry {
        sequence: 0,
        at: OffsetDateTime::now_utc(),
        protocol: match denial.protocol {
            6 => EgressProtocol::Tcp,
            17 => EgressProtocol::Udp,
            1 => EgressProtocol::Icmp,
            _ => EgressProtocol::Other,
        },
        name: None,
        address: Some(denial.to.into()),
        port: denial.port,
        verdict: EgressVerdict::Denied,
        rule,
        sent_bytes: 0,
        received_bytes: 0,
    }
}

#[cfg(test)]
mod tests;
