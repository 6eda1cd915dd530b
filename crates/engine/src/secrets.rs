//! The host's key, the keys of organisations that it wraps, and the placeholders that sandboxes have of secrets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cove_gateway::host::Termination;
use cove_model::approval::{Approval, ApprovalState, Decision};
use cove_model::secret::{OrgKeys, OrgSecrets, SecretHost, placeholder};
use cove_model::{ApprovalId, EventKind, OrgId, SandboxId, SandboxSpec};
use cove_runner_api::{RunnerError, SecretUses};
use cove_terminator::call::Decided;
use cove_vault::{HostKeys, VaultError};
use tokio::task::spawn_blocking;

pub mod terminators;

pub use terminators::{Placeholders, Terminators};

use crate::config::EngineConfig;
use crate::engine::{Engine, Inner};
use crate::error::{chain, from_isolation, internal};
use crate::record::{Durability, Record};
use crate::sandbox::Sandbox;

/// How often, and how soon at first, a sandbox is told again of a host that one of its secrets is bound to.
const BIND_TRIES: u32 = 8;
const BIND_RETRY: Duration = Duration::from_millis(200);

/// Where the host's key comes from. It is read when it is needed and not held in between.
#[derive(Debug, Clone)]
pub enum HostKeySource {
    /// The host's own, made when it is missing.
    Own(std::path::PathBuf),
    /// One that the operator named: never made, since the one they mean may only not be there yet.
    File(std::path::PathBuf),
    /// Prints it.
    Command(Vec<String>),
}

impl HostKeySource {
    pub fn of(config: &EngineConfig) -> Self {
        match config.secret_key_command.is_empty() {
            true => match &config.secret_key_file {
                Some(path) => Self::File(path.clone()),
                None => Self::Own(config.data_dir.join("secret.key")),
            },
            false => Self::Command(config.secret_key_command.clone()),
        }
    }

    pub(crate) fn read(&self) -> Result<HostKeys, VaultError> {
        match self {
            Self::Own(path) => HostKeys::load_or_make(path),
            Self::File(path) => HostKeys::load(path),
            Self::Command(command) => HostKeys::from_command(command),
        }
    }
}

impl Engine {
    pub(crate) async fn new_secret_keys(&self, org: &OrgId) -> Result<OrgKeys, RunnerError> {
        let org = org.clone();
        self.with_host_keys(move |host| cove_vault::make_keys(&org, host))
            .await
    }

    pub(crate) async fn rewrapped_secret_keys(
        &self,
        keys: OrgKeys,
    ) -> Result<OrgKeys, RunnerError> {
        self.with_host_keys(move |host| cove_vault::rewrap_keys(&keys, host))
            .await
    }

    async fn with_host_keys<T: Send + 'static>(
        &self,
        act: impl FnOnce(&HostKeys) -> Result<T, VaultError> + Send + 'static,
    ) -> Result<T, RunnerError> {
        let source = HostKeySource::of(&self.inner.config);
        let done = spawn_blocking(move || source.read().and_then(|host| act(&host))).await;
        done.map_err(internal)?
            .map_err(|error| internal(chain(&error)))
    }
}

impl Engine {
    /// In force in the terminator when this returns. Where a secret was bound to another host, running sandboxes
    /// hear of that afterwards: this does not wait for what they are busy with.
    pub(crate) async fn set_org_secrets(&self, secrets: OrgSecrets) -> Result<(), RunnerError> {
        let uid = self.inner.gateway_uid()?;
        let org = secrets.keys.org.clone();
        let set = self.inner.terminators.set(secrets, uid).await;
        set.map_err(|error| internal(format!("cannot update the terminator: {}", chain(&error))))?;
        for sandbox in self.inner.all() {
            let record = sandbox.record();
            if record.placeholders.is_empty() || record.owner.as_deref() != Some(org.as_str()) {
                continue;
            }
            if self.inner.bound_hosts(&org, &record).await.len() == record.secret_hosts.len() {
                continue;
            }
            let (inner, org) = (Arc::clone(&self.inner), org.clone());
            tokio::spawn(async move { inner.bind_again(&org, &sandbox).await });
        }
        Ok(())
    }

    /// The values of exposed secrets in a sandbox, by name. Those that were removed since are left out.
    pub(crate) async fn exposed_in(
        &self,
        id: &SandboxId,
    ) -> Result<BTreeMap<String, String>, RunnerError> {
        let record = self.inner.find(id)?.record();
        let mut values = BTreeMap::new();
        let Some(org) = org_of(record.owner.as_deref()) else {
            return Ok(values);
        };
        let uid = self.inner.gateway_uid()?;
        for grant in record.spec.secrets.iter().filter(|grant| grant.exposed) {
            let terminators = &self.inner.terminators;
            let told = terminators.reveal(&org, id, &grant.name, uid).await;
            let told = told.map_err(|error| internal(format!("secrets: {}", chain(&error))))?;
            if let Some(value) = told.and_then(|value| String::from_utf8(value.to_vec()).ok()) {
                values.insert(grant.name.clone(), value);
            }
        }
        Ok(values)
    }

    pub(crate) async fn taken_secret_uses(&self) -> Result<SecretUses, RunnerError> {
        let terminators = &self.inner.terminators;
        let uses = match self.inner.gateway_uid() {
            Ok(uid) => terminators.take_uses(uid).await,
            // Without a network nobody uses any.
            Err(_) => Vec::new(),
        };
        let (new, waiting) = terminators.take_asked().await;
        for approval in new {
            let Ok(sandbox) = self.inner.find(&approval.sandbox) else {
                continue;
            };
            sandbox.emit(EventKind::ApprovalRequested {
                approval: approval.id,
                secret: approval.secret,
                host: approval.host.to_string(),
                method: approval.method,
                path: approval.path,
            });
        }
        let life = terminators.life.clone();
        Ok(SecretUses {
            life,
            uses,
            waiting,
        })
    }

    pub(crate) async fn asked_approvals(&self, org: &OrgId) -> Result<Vec<Approval>, RunnerError> {
        let asked = self.inner.terminators.asked(org).await;
        asked.map_err(|error| internal(format!("approvals: {}", chain(&error))))
    }

    pub(crate) async fn decided_approval(
        &self,
        org: &OrgId,
        id: &ApprovalId,
        decision: Decision,
    ) -> Result<(), RunnerError> {
        let invalid = |message: String| RunnerError::Invalid { message };
        decision
            .check()
            .map_err(|error| invalid(error.to_string()))?;
        // Before it is decided, since it can be used up at once.
        let asked = self.asked_approvals(org).await?;
        let asked = asked.into_iter().find(|asked| asked.id == *id);
        let missing = || RunnerError::NotFound {
            what: "approval".into(),
            id: id.to_string(),
        };
        let asked = asked.ok_or_else(missing)?;
        let decided = self.inner.terminators.decide(org, id, decision).await;
        let decided = decided.map_err(|error| internal(format!("approvals: {}", chain(&error))))?;
        match decided {
            Decided::Done => {}
            Decided::Unknown => return Err(missing()),
            Decided::Already => {
                return Err(RunnerError::InUse {
                    message: format!("{id} is approved already"),
                });
            }
            Decided::NotOnce => {
                return Err(invalid(format!(
                    "{id} cannot be approved once: its body is longer than 1 MiB or has no end; approve it for a time"
                )));
            }
        }
        if let Ok(sandbox) = self.inner.find(&asked.sandbox) {
            sandbox.emit(EventKind::ApprovalDecided {
                approval: id.clone(),
                decision: match decision {
                    Decision::Once => ApprovalState::Once,
                    Decision::For(_) => ApprovalState::Timed,
                    Decision::Deny => ApprovalState::Denied,
                },
            });
        }
        Ok(())
    }
}

impl Inner {
    fn gateway_uid(&self) -> Result<u32, RunnerError> {
        let keeper = self.gatekeeper.get();
        let keeper = keeper.ok_or_else(|| RunnerError::Unsupported {
            message: "this host has no network, which secrets need".into(),
        })?;
        Ok(keeper.uid())
    }

    /// A secret is bound to another host now: connections there are terminated from here on.
    async fn bind_again(&self, org: &OrgId, sandbox: &Sandbox) {
        let mut pause = BIND_RETRY;
        for _ in 0..BIND_TRIES {
            match self.try_bind(org, sandbox).await {
                Ok(()) => return,
                Err(error) => {
                    let id = &sandbox.record().id;
                    tracing::warn!(%error, sandbox = %id, "cannot use the secrets of a sandbox at a new host");
                }
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    async fn try_bind(&self, org: &OrgId, sandbox: &Sandbox) -> Result<(), RunnerError> {
        let _operation = sandbox.operation.lock().await;
        let record = sandbox.record();
        let hosts = self.bound_hosts(org, &record).await;
        if hosts.len() == record.secret_hosts.len() {
            return Ok(());
        }
        // One that does not run hears of everything when it starts.
        if let Some(machine) = sandbox.machine() {
            self.place_secrets(&record).await?;
            machine
                .set_network(&record.spec.network)
                .await
                .map_err(from_isolation)?;
        }
        // Last, so that one that failed is tried again with the next change.
        sandbox.update(Durability::Written, |record| record.secret_hosts = hosts)?;
        Ok(())
    }

    /// New placeholders for a sandbox; refused when a secret is not known or its hosts are not reached.
    pub(crate) async fn grant_secrets(
        &self,
        owner: Option<&str>,
        spec: &SandboxSpec,
    ) -> Result<Placeholders, RunnerError> {
        if spec.secrets.is_empty() {
            return Ok(Placeholders::new());
        }
        let invalid = |message: String| RunnerError::Invalid { message };
        let org =
            org_of(owner).ok_or_else(|| invalid("secrets belong to an organisation".into()))?;
        self.gateway_uid()?;
        let known = self.terminators.known(&org).await;
        let known = known.map(|known| known.secrets).unwrap_or_default();
        for grant in &spec.secrets {
            let secret = known.iter().find(|secret| secret.name == grant.name);
            let secret =
                secret.ok_or_else(|| invalid(format!("there is no secret '{}'", grant.name)))?;
            let fits = secret.binding.check_grant(grant);
            fits.map_err(|error| invalid(error.to_string()))?;
            if let Some(host) = secret.binding.unreachable_in(&spec.network) {
                return Err(invalid(format!(
                    "secret '{}' is bound to {host}, which the network policy does not list",
                    grant.name
                )));
            }
        }
        Ok(fresh_placeholders(spec))
    }

    /// Before a sandbox runs: its terminator knows its placeholders, and the gateway which hosts are bound.
    pub(crate) async fn place_secrets(&self, record: &Record) -> Result<(), RunnerError> {
        if record.placeholders.is_empty() {
            return Ok(());
        }
        let uid = self.gateway_uid()?;
        let Some(org) = org_of(record.owner.as_deref()) else {
            return Err(internal("a sandbox with secrets has no organisation"));
        };
        let placed = self
            .terminators
            .place(&org, &record.id, &record.placeholders, uid)
            .await;
        let socket = placed
            .map_err(|error| internal(format!("cannot start the terminator: {}", chain(&error))))?;
        let termination = Termination {
            socket,
            hosts: self.bound_hosts(&org, record).await,
        };
        if let Some(keeper) = self.gatekeeper.get() {
            keeper.terminations().note(&record.id, termination);
        }
        Ok(())
    }

    /// Every host that a secret of the sandbox is or was bound to: placeholders of one that was removed are refused
    /// there, not passed on.
    pub(crate) async fn bound_hosts(&self, org: &OrgId, record: &Record) -> Vec<SecretHost> {
        let mut hosts = record.secret_hosts.clone();
        for host in self.terminators.hosts(org, &record.placeholders).await {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts
    }

    pub(crate) async fn forget_secrets(&self, record: &Record) {
        if record.placeholders.is_empty() {
            return;
        }
        if let Some(keeper) = self.gatekeeper.get() {
            keeper.terminations().forget(&record.id);
        }
        if let Some(org) = org_of(record.owner.as_deref()) {
            self.terminators.remove(&org, &record.id).await;
        }
    }
}

/// Nobody has had them before: what a copy remembers is worthless to it.
pub fn fresh_placeholders(spec: &SandboxSpec) -> Placeholders {
    let grants = spec.secrets.iter();
    grants
        .map(|grant| (grant.name.clone(), placeholder()))
        .collect()
}

pub fn org_of(owner: Option<&str>) -> Option<OrgId> {
    owner?.parse().ok()
}
