//! The hosts that sandboxes are on.
//!
//! Each sandbox, snapshot and image job names its host, and only that host is asked about it: what another host
//! does not have says nothing. What is known of a host and not written down (which rows may be old, how busy
//! its sandboxes were, whether its events were read yet) is kept apart for each, and so is the work in the
//! background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cove_model::{HostId, SandboxId};
use cove_runner_api::{RunnerApi, RunnerError};
use cove_store::{SandboxRecord, SnapshotRecord, StoreError};
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::lifecycle::Idleness;
use crate::meter::Rounds;
use crate::reconcile::Stale;
use crate::secrets::Furnished;
use crate::snapshots::Checkpoints;

/// The hosts of an installation: one today.
pub struct Hosts(Vec<Arc<Host>>);

impl Hosts {
    pub fn only(id: HostId, runner: Arc<dyn RunnerApi>) -> Self {
        Self::new([(id, runner)])
    }

    /// Where nothing speaks for another one, new things go to the first.
    pub fn new(hosts: impl IntoIterator<Item = (HostId, Arc<dyn RunnerApi>)>) -> Self {
        let hosts = hosts.into_iter();
        Self(hosts.map(|(id, runner)| Host::new(id, runner)).collect())
    }

    pub(crate) fn all(&self) -> &[Arc<Host>] {
        &self.0
    }

    pub(crate) fn get(&self, id: &HostId) -> Option<&Arc<Host>> {
        self.0.iter().find(|host| host.id == *id)
    }
}

/// A host, and what this process knows of it.
pub(crate) struct Host {
    pub id: HostId,
    runner: Arc<dyn RunnerApi>,
    /// The runner has said that it is this host.
    is_identified: AtomicBool,
    /// Whether this process has read events of the host yet.
    pub events_met: AtomicBool,
    pub stale: Stale,
    pub idleness: Idleness,
    pub checkpoints: Checkpoints,
    pub rounds: Rounds,
    pub furnished: Furnished,
    /// The start of the runner's process that knows all secrets.
    pub secrets_life: Mutex<String>,
}

impl Host {
    fn new(id: HostId, runner: Arc<dyn RunnerApi>) -> Arc<Self> {
        Arc::new(Self {
            id,
            runner,
            is_identified: AtomicBool::new(false),
            events_met: AtomicBool::new(false),
            stale: Stale::default(),
            idleness: Idleness::default(),
            checkpoints: Checkpoints::default(),
            rounds: Rounds::default(),
            furnished: Furnished::default(),
            secrets_life: Mutex::default(),
        })
    }

    /// The way to it, once it has said who it is. A runner of another host is as good as none.
    pub async fn runner(&self) -> Result<&dyn RunnerApi, RunnerError> {
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
                tracing::error!(expected = %self.id, %told, "the runner belongs to another host; it is not used");
                Err(RunnerError::Unreachable {
                    message: format!("it says that it is host {told}, not {}", self.id),
                })
            }
        }
    }

    /// Nothing of this sandbox is left on the host.
    pub fn forget(&self, id: &SandboxId) {
        self.idleness.forget(id);
        self.checkpoints.forget(id);
        self.furnished.forget(id);
    }
}

impl Control {
    /// Writes down which hosts there are, and refuses a database that belongs to others.
    pub(crate) async fn register_hosts(&self) -> Result<(), ControlError> {
        let ids: Vec<_> = self.hosts().iter().map(|host| host.id.clone()).collect();
        match self.store().register_hosts(&ids, self.now()).await {
            Err(StoreError::OtherHost { known }) => Err(ControlError::new(
                ErrorCode::Conflict,
                format!(
                    "the database belongs to host {known}, and this data directory is host {}",
                    ids.first().map_or("none", HostId::as_str)
                ),
            )
            .hint(format!(
                "start with the data directory of {known}, or with another database; where that directory is \
                 lost for good, write {known} into engine/host of this one: what it had is then shown as lost"
            ))),
            registered => Ok(registered?),
        }
    }

    pub(crate) fn hosts(&self) -> &[Arc<Host>] {
        self.0.hosts.all()
    }

    pub(crate) fn host_of(&self, id: &HostId) -> Result<&Arc<Host>, RunnerError> {
        self.0
            .hosts
            .get(id)
            .ok_or_else(|| RunnerError::Unreachable {
                message: format!("host {id} is not one of those this control plane knows"),
            })
    }

    /// The way to the host that has something.
    pub(crate) async fn runner(&self, id: &HostId) -> Result<&dyn RunnerApi, RunnerError> {
        self.host_of(id)?.runner().await
    }

    /// Where a new sandbox, snapshot or image goes. What begins from a snapshot goes where that is; else
    /// there is one host to choose.
    pub(crate) fn choose_host(
        &self,
        from: Option<&SnapshotRecord>,
    ) -> Result<HostId, ControlError> {
        match from {
            Some(from) => Ok(from.host.clone()),
            None => {
                let first = self.hosts().first().map(|host| host.id.clone());
                first.ok_or_else(|| {
                    ControlError::new(ErrorCode::NoCapacity, "there is no host to put it on")
                })
            }
        }
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
        let asked: Vec<_> = self.hosts().iter().map(|host| ask(host.clone())).collect();
        let (mut answers, mut failed) = (Vec::new(), None);
        for (host, answer) in self.hosts().iter().zip(join_all(asked).await) {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => {
                    tracing::debug!(%error, host = %host.id, "a host is left out of an answer");
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
