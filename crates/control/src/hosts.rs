//! The hosts that sandboxes are on.
//!
//! Each sandbox, snapshot and image job names its host, and only that host is asked about it: what another host
//! does not have says nothing. What is known of a host and not written down (which rows may be old, how busy
//! its sandboxes were, whether its events were read yet) is kept apart for each, and so is the work in the
//! background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cove_model::{HostId, HostTraits, OrgId, Placement, SandboxId};
use cove_runner_api::wire::CALLS_MAX;
use cove_runner_api::{HostInventory, RunnerApi, RunnerError, SecretUseReport};
use cove_store::{SandboxRecord, StoreError};
use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Control;
use crate::error::{CAPACITY_RETRY_S, ControlError, ErrorCode};
use crate::isolation::KnownTiers;
use crate::leases::Leases;
use crate::lifecycle::Idleness;
use crate::meter::Rounds;
use crate::nodes::NodeLink;
use crate::placement::fitting_hosts;
use crate::reconcile::Stale;
use crate::relayed::Relayed;
use crate::secrets::{Furnished, Trusting};
use crate::slots::{Slot, Slots};
use crate::snapshots::Checkpoints;

/// Creates, starts, wakes, rollbacks and snapshots that a host is asked for at once, of all organisations and of one. Each
/// keeps one of the calls that the host's runner takes, perhaps for minutes, and commands need such calls as well.
const CHANGES_MAX: usize = CALLS_MAX / 2;
pub const CHANGES_PER_ORG: usize = CALLS_MAX / 16;

/// How a message begins that names a node which does not answer. It may be shown to callers.
pub(crate) const NODE_AWAY: &str = "node ";

/// The hosts of an installation. The first ones are there from the start; nodes come and go.
pub struct Hosts {
    all: RwLock<Arc<[Arc<Host>]>>,
    changes: watch::Sender<u64>,
}

impl Hosts {
    pub fn only(id: HostId, runner: Arc<dyn RunnerApi>) -> Self {
        Self::new([(id, runner)])
    }

    /// Where nothing speaks for another one, new things go to the first.
    pub fn new(hosts: impl IntoIterator<Item = (HostId, Arc<dyn RunnerApi>)>) -> Self {
        let hosts = hosts.into_iter();
        let all: Vec<_> = hosts
            .map(|(id, runner)| Host::new(id, runner, None))
            .collect();
        Self {
            all: RwLock::new(all.into()),
            changes: watch::channel(0).0,
        }
    }

    /// This one is a node, which is reached by a runner of its own.
    #[cfg(feature = "testing")]
    pub fn with_node(self, id: HostId, runner: Arc<dyn RunnerApi>) -> Self {
        self.with_nodes([(id, runner, HostTraits::default())])
    }

    /// The same, of several nodes.
    #[cfg(feature = "testing")]
    pub fn with_nodes(
        self,
        nodes: impl IntoIterator<Item = (HostId, Arc<dyn RunnerApi>, HostTraits)>,
    ) -> Self {
        let nodes = nodes.into_iter().map(|(id, runner, traits)| {
            let node = NodeLink::unlinked(&id, traits);
            Host::new(id, runner, Some(node))
        });
        self.set_nodes(nodes.collect());
        self
    }

    /// The same, of a node that does not answer.
    #[cfg(feature = "testing")]
    pub async fn with_node_away(self, id: HostId, runner: Arc<dyn RunnerApi>) -> Self {
        let node = NodeLink::unlinked(&id, HostTraits::default());
        while node.link.away().is_none() {
            let _ = node.link.report().await;
        }
        self.set_nodes(vec![Host::new(id, runner, Some(node))]);
        self
    }

    /// No host but nodes that join.
    pub fn none() -> Self {
        Self::new([])
    }

    pub(crate) fn all(&self) -> Arc<[Arc<Host>]> {
        Arc::clone(&self.all.read())
    }

    pub(crate) fn get(&self, id: &HostId) -> Option<Arc<Host>> {
        self.all.read().iter().find(|host| host.id == *id).cloned()
    }

    /// Replaces the nodes by these; the other hosts stay.
    pub(crate) fn set_nodes(&self, nodes: Vec<Arc<Host>>) {
        let mut all = self.all.write();
        let own = all.iter().filter(|host| host.node.is_none()).cloned();
        *all = own.chain(nodes).collect();
        drop(all);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Told of every change from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// A host, and what this process knows of it.
pub(crate) struct Host {
    pub id: HostId,
    /// Where it is not the control plane's own.
    pub node: Option<NodeLink>,
    /// It was taken out: work for it ends.
    pub ended: CancellationToken,
    /// What it last said that it has.
    pub inventory: Mutex<Option<HostInventory>>,
    runner: Arc<dyn RunnerApi>,
    /// The runner has said that it is this host.
    is_identified: AtomicBool,
    /// Whether this process has read events of the host yet.
    pub events_met: AtomicBool,
    pub stale: Stale,
    pub idleness: Idleness,
    pub leases: Leases,
    pub checkpoints: Checkpoints,
    pub rounds: Rounds,
    pub furnished: Furnished,
    pub trusting: Trusting,
    /// The start of the runner's process that knows all secrets.
    pub secrets_life: Mutex<String>,
    /// Uses of secrets that a node told while the database could not say whether they are its own.
    pub unchecked_uses: Mutex<Vec<SecretUseReport>>,
    /// Which isolation tiers it has.
    pub tiers: KnownTiers,
    pub relayed: Relayed,
    changes: Slots,
}

impl Host {
    pub fn new(id: HostId, runner: Arc<dyn RunnerApi>, node: Option<NodeLink>) -> Arc<Self> {
        Arc::new(Self {
            id,
            node,
            ended: CancellationToken::new(),
            inventory: Mutex::default(),
            runner,
            is_identified: AtomicBool::new(false),
            events_met: AtomicBool::new(false),
            stale: Stale::default(),
            idleness: Idleness::default(),
            leases: Leases::default(),
            checkpoints: Checkpoints::default(),
            rounds: Rounds::default(),
            furnished: Furnished::default(),
            trusting: Trusting::default(),
            secrets_life: Mutex::default(),
            unchecked_uses: Mutex::default(),
            tiers: KnownTiers::default(),
            relayed: Relayed::default(),
            changes: Slots::new(CHANGES_MAX, CHANGES_PER_ORG),
        })
    }

    /// The way to it, once it has said who it is. A runner of another host is as good as none.
    pub async fn runner(&self) -> Result<&dyn RunnerApi, RunnerError> {
        self.check_away()?;
        match self.is_identified.load(Ordering::Relaxed) {
            true => Ok(&*self.runner),
            false => self.identified().await,
        }
    }

    /// The same, asked anew: before conclusions from what the host does not have, and whenever its process is
    /// another one.
    pub async fn identified(&self) -> Result<&dyn RunnerApi, RunnerError> {
        let told = self.runner.identity().await?.host;
        let is_this = told == self.id;
        self.is_identified.store(is_this, Ordering::Relaxed);
        match is_this {
            true => Ok(&*self.runner),
            false => {
                tracing::error!(expected = %self.id, %told, "the runner belongs to another host; ignoring it");
                Err(RunnerError::Unreachable {
                    message: format!("it identifies itself as host {told}, not {}", self.id),
                })
            }
        }
    }

    /// Names a node that does not answer, at once.
    fn check_away(&self) -> Result<(), RunnerError> {
        match self.away() {
            Some(message) => Err(RunnerError::Unreachable { message }),
            None => Ok(()),
        }
    }

    /// Why it cannot be reached, for a caller, while that is known.
    pub fn away(&self) -> Option<String> {
        let node = self.node.as_ref()?;
        let why = node.link.away()?;
        Some(format!("{NODE_AWAY}{} does not answer: {why}", node.name))
    }

    pub fn cordoned(&self) -> bool {
        self.node.as_ref().is_some_and(NodeLink::cordoned)
    }

    /// What the operator said of it. The control plane's own host has none.
    pub fn traits(&self) -> HostTraits {
        let node = self.node.as_ref();
        node.map_or_else(HostTraits::default, NodeLink::traits)
    }

    /// Nothing of this sandbox is left on the host.
    pub fn forget(&self, id: &SandboxId) {
        self.idleness.forget(id);
        self.leases.forget(id);
        self.checkpoints.forget(id);
        self.furnished.forget(id);
        self.trusting.forget(id);
    }
}

impl Control {
    /// Writes down which hosts there are, and refuses a database that belongs to others.
    pub(crate) async fn register_hosts(&self) -> Result<(), ControlError> {
        let hosts = self.hosts();
        let own = hosts.iter().filter(|host| host.node.is_none());
        let ids: Vec<_> = own.map(|host| host.id.clone()).collect();
        match self.store().register_hosts(&ids, self.now()).await {
            Err(StoreError::OtherHost { known }) => Err(ControlError::new(
                ErrorCode::Conflict,
                format!(
                    "the database belongs to host {known}, and this data directory is host {}",
                    ids.first().map_or("none", HostId::as_str)
                ),
            )
            .hint(format!(
                "start with the data directory of {known}, or with another database. If \
                 that directory is lost for good, write {known} into engine/host of this \
                 one; its sandboxes are then shown as lost"
            ))),
            registered => Ok(registered?),
        }
    }

    pub(crate) fn hosts(&self) -> Arc<[Arc<Host>]> {
        self.0.hosts.all()
    }

    pub(crate) fn host_of(&self, id: &HostId) -> Result<Arc<Host>, RunnerError> {
        self.0
            .hosts
            .get(id)
            .ok_or_else(|| RunnerError::Unreachable {
                message: format!("this control plane does not know host {id}"),
            })
    }

    /// The way to the host that has something.
    pub(crate) async fn runner(&self, id: &HostId) -> Result<Arc<dyn RunnerApi>, RunnerError> {
        let host = self.host_of(id)?;
        host.runner().await?;
        Ok(Arc::clone(&host.runner))
    }

    /// The same for a change that may take long, and a place among those of the organisation: to be kept until the host
    /// has answered. One without a place waits here, where it keeps nobody from the host.
    pub(crate) async fn runner_in_turn(
        &self,
        id: &HostId,
        org: &OrgId,
    ) -> Result<(Arc<dyn RunnerApi>, Slot), RunnerError> {
        let slot = self.host_of(id)?.changes.take(org).await;
        let slot = slot.map_err(|error| RunnerError::Unreachable {
            message: error.message,
        })?;
        Ok((self.runner(id).await?, slot))
    }

    /// A host that is asked for what any host can do: the first that takes something.
    pub(crate) fn any_host(&self) -> Result<HostId, ControlError> {
        first_taking(self.hosts().iter())
    }

    /// Where a new volume or image, or a snapshot from a file goes: the first host that takes something, of those that
    /// fit.
    pub(crate) fn choose_host(&self, placement: &Placement) -> Result<HostId, ControlError> {
        let hosts = self.hosts();
        first_taking(fitting_hosts(&hosts, placement)?.into_iter())
    }

    /// Its row may not be true any more: it is looked at soon. One on a host that is not here is looked at
    /// when that host is.
    pub(crate) fn mark_stale(&self, record: &SandboxRecord) {
        if let Some(host) = self.0.hosts.get(&record.host) {
            host.stale.mark(&record.id);
        }
    }

    /// Everything on a host is looked at soon.
    pub(crate) fn mark_host_stale(&self, id: &HostId) {
        if let Some(host) = self.0.hosts.get(id) {
            host.stale.mark_all();
        }
    }

    /// Its create was answered as failed: it is deleted as soon as that can be written down.
    pub(crate) fn retract(&self, host: &HostId, id: &SandboxId) {
        if let Some(host) = self.0.hosts.get(host) {
            host.stale.retract(id);
        }
    }

    pub(crate) fn is_retracted(&self, record: &SandboxRecord) -> bool {
        let host = self.0.hosts.get(&record.host);
        host.is_some_and(|host| host.stale.is_retracted(&record.id))
    }

    /// Asks every host at once. Those that fail are left out, unless all do.
    pub(crate) async fn ask_hosts<T, F>(
        &self,
        ask: impl Fn(Arc<Host>) -> F,
    ) -> Result<Vec<T>, ControlError>
    where
        F: Future<Output = Result<T, ControlError>>,
    {
        let hosts = self.hosts();
        let asked: Vec<_> = hosts.iter().map(|host| ask(host.clone())).collect();
        let (mut answers, mut failed) = (Vec::new(), None);
        for (host, answer) in hosts.iter().zip(join_all(asked).await) {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => {
                    tracing::debug!(%error, host = %host.id, "leaving a host out of an answer");
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if answers.is_empty() => Err(error),
            _ => Ok(answers),
        }
    }
}

fn first_taking<'a>(
    mut hosts: impl Iterator<Item = &'a Arc<Host>>,
) -> Result<HostId, ControlError> {
    let first = hosts.next();
    let takes = |host: &&Arc<Host>| host.away().is_none() && !host.cordoned();
    let chosen = first.into_iter().chain(hosts).find(takes).or(first);
    chosen.map(|host| host.id.clone()).ok_or_else(no_hosts)
}

pub(crate) fn no_hosts() -> ControlError {
    ControlError::new(ErrorCode::NoCapacity, "this control plane has no nodes yet")
        .hint("make a join token with `cove node token`, and run `cove node join` on a host")
        .retry_after(CAPACITY_RETRY_S)
}
