//! The terminators of this host: one process for each organisation that has a sandbox with secrets.
//!
//! What an organisation's secrets are is control's to say, anew after every start of this engine: nothing of it
//! is kept on disk here, so that no secret that was removed meanwhile can come back. Until control has said it,
//! connections to bound hosts are refused.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cove_isolation::accounts;
use cove_model::secret::{OrgSecrets, SecretHost};
use cove_model::{OrgId, SandboxId};
use cove_runner_api::SecretUseReport;
use cove_terminator::call::{Call, Placed, PlacedGrant, Reply, Start, Used};
use cove_terminator::host::Process;
use cove_vault::{OpenedKeys, Zeroizing};
use tokio::sync::Mutex;

use super::HostKeySource;
use crate::config::EngineConfig;

/// Where distributions keep the certificates that this host trusts.
const ROOTS: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

pub struct Terminators {
    /// Which start of this engine it is.
    pub life: String,
    source: HostKeySource,
    host_cache: PathBuf,
    data_dir: PathBuf,
    extra_roots: Option<PathBuf>,
    orgs: Mutex<HashMap<OrgId, Org>>,
}

/// The placeholders of one sandbox by the names of their secrets.
pub type Placeholders = BTreeMap<String, String>;

struct Org {
    /// Where the gateway hands connections over, for all processes that this organisation has in turn.
    socket: String,
    listener: UnixListener,
    secrets: Option<OrgSecrets>,
    sandboxes: HashMap<SandboxId, Placed>,
    /// Names of secrets by slot.
    names: Vec<String>,
    next: u32,
    process: Option<Process>,
    uses: Vec<(SandboxId, String, Used)>,
}

impl Org {
    fn new() -> io::Result<Self> {
        let socket = format!(
            "cove-terminator-{}",
            hex::encode(rand::random::<[u8; 16]>())
        );
        let address = SocketAddr::from_abstract_name(socket.as_bytes())?;
        let listener = UnixListener::bind_addr(&address)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            socket,
            listener,
            secrets: None,
            sandboxes: HashMap::new(),
            names: Vec::new(),
            next: 0,
            process: None,
            uses: Vec::new(),
        })
    }

    fn slot(&mut self, name: &str) -> u32 {
        let found = self.names.iter().position(|known| known == name);
        let slot = found.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        u32::try_from(slot).unwrap_or(u32::MAX)
    }

    fn note_uses(&mut self, used: Vec<Used>) {
        for used in used {
            let sandbox = self.sandboxes.values().find(|it| it.slot == used.sandbox);
            let name = self.names.get(used.secret as usize);
            // What the process makes up is nobody's.
            if let (Some(sandbox), Some(name)) = (sandbox, name) {
                let told = (sandbox.sandbox.clone(), name.clone(), used);
                self.uses.push(told);
            }
        }
    }
}

impl Terminators {
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            life: hex::encode(rand::random::<[u8; 8]>()),
            source: HostKeySource::of(config),
            host_cache: config.host_cache.clone(),
            data_dir: config.data_dir.clone(),
            extra_roots: config.secret_roots.clone(),
            orgs: Mutex::default(),
        }
    }

    /// All secrets of an organisation as they are now. In force when this returns.
    pub async fn set(&self, secrets: OrgSecrets, gateway_uid: u32) -> io::Result<()> {
        let org = secrets.keys.org.clone();
        let mut orgs = self.orgs.lock().await;
        if !orgs.contains_key(&org) {
            orgs.insert(org.clone(), Org::new()?);
        }
        let Some(entry) = orgs.get_mut(&org) else {
            return Ok(());
        };
        let same_keys = entry
            .secrets
            .as_ref()
            .is_none_or(|before| before.keys.public == secrets.keys.public);
        if !same_keys {
            entry.process = None;
        }
        let told = Call::Secrets(secrets.secrets.clone());
        entry.secrets = Some(secrets);
        self.tell(&org, entry, told, gateway_uid).await
    }

    /// The secrets that control last told of.
    pub async fn known(&self, org: &OrgId) -> Option<OrgSecrets> {
        self.orgs.lock().await.get(org)?.secrets.clone()
    }

    /// A sandbox is about to run with these placeholders; the socket that its connections are handed over at.
    pub async fn place(
        &self,
        org: &OrgId,
        sandbox: &SandboxId,
        placeholders: &Placeholders,
        gateway_uid: u32,
    ) -> io::Result<String> {
        let mut orgs = self.orgs.lock().await;
        if !orgs.contains_key(org) {
            orgs.insert(org.clone(), Org::new()?);
        }
        let entry = orgs.get_mut(org).ok_or(io::ErrorKind::NotFound)?;
        let slot = match entry.sandboxes.get(sandbox) {
            Some(placed) => placed.slot,
            None => {
                entry.next += 1;
                entry.next
            }
        };
        let grants = placeholders
            .iter()
            .map(|(secret, placeholder)| PlacedGrant {
                slot: entry.slot(secret),
                secret: secret.clone(),
                placeholder: placeholder.clone(),
            });
        let placed = Placed {
            sandbox: sandbox.clone(),
            slot,
            grants: grants.collect(),
        };
        entry.sandboxes.insert(sandbox.clone(), placed.clone());
        let socket = entry.socket.clone();
        self.tell(org, entry, Call::Place(placed), gateway_uid)
            .await?;
        Ok(socket)
    }

    /// Where the secrets of these placeholders are bound to now; nothing where control has not said.
    pub async fn hosts(&self, org: &OrgId, placeholders: &Placeholders) -> Vec<SecretHost> {
        let known = self.known(org).await;
        let mut hosts = Vec::new();
        for secret in known.iter().flat_map(|known| &known.secrets) {
            if placeholders.contains_key(&secret.name) {
                hosts.extend(secret.binding.hosts.iter().cloned());
            }
        }
        hosts
    }

    /// It is gone. The process of an organisation without such sandboxes ends.
    pub async fn remove(&self, sandbox: &SandboxId) {
        let mut orgs = self.orgs.lock().await;
        let holding = orgs
            .values_mut()
            .find(|org| org.sandboxes.contains_key(sandbox));
        let Some(entry) = holding else {
            return;
        };
        if let Some(process) = &mut entry.process {
            // What it used last is still told. A process that does not answer is replaced when it is needed.
            if let Ok(Reply::Uses(used)) = process.call(&Call::Uses).await {
                entry.note_uses(used);
            }
        }
        entry.sandboxes.remove(sandbox);
        let removed = match &mut entry.process {
            Some(process) => process.call(&Call::Remove(sandbox.clone())).await.is_ok(),
            None => true,
        };
        if !removed || entry.sandboxes.is_empty() {
            entry.process = None;
        }
    }

    /// What was used since the last time. Replaces processes that have died.
    pub async fn take_uses(&self, gateway_uid: u32) -> Vec<SecretUseReport> {
        let mut orgs = self.orgs.lock().await;
        let mut reports = Vec::new();
        for (org, entry) in &mut *orgs {
            if !entry.sandboxes.is_empty() && entry.secrets.is_some() {
                match self.ask_uses(org, entry, gateway_uid).await {
                    Ok(used) => entry.note_uses(used),
                    Err(error) => {
                        tracing::warn!(%org, %error, "the terminator does not answer");
                    }
                }
            }
            let told = entry
                .uses
                .drain(..)
                .map(|(sandbox, secret, used)| SecretUseReport {
                    org: org.clone(),
                    secret,
                    sandbox,
                    count: used.count,
                    last_used_ms: used.last_ms,
                });
            reports.extend(told);
        }
        reports
    }

    async fn ask_uses(&self, org: &OrgId, entry: &mut Org, uid: u32) -> io::Result<Vec<Used>> {
        if let Some(process) = &mut entry.process {
            match process.call(&Call::Uses).await {
                Ok(Reply::Uses(used)) => return Ok(used),
                _ => entry.process = None,
            }
        }
        self.launch(org, entry, uid).await?;
        Ok(Vec::new())
    }

    /// Tells a process what has changed. One that died, or was never there, is started with everything.
    async fn tell(&self, org: &OrgId, entry: &mut Org, call: Call, uid: u32) -> io::Result<()> {
        if entry.sandboxes.is_empty() || entry.secrets.is_none() {
            return Ok(());
        }
        if let Some(process) = &mut entry.process {
            match process.call(&call).await {
                Ok(Reply::Done) => return Ok(()),
                Ok(Reply::Refused) => {
                    tracing::error!(%org, "a secret does not open; it was changed in the database");
                    return Ok(());
                }
                Ok(_) | Err(_) => entry.process = None,
            }
        }
        self.launch(org, entry, uid).await
    }

    async fn launch(&self, org: &OrgId, entry: &mut Org, gateway_uid: u32) -> io::Result<()> {
        let Some(secrets) = &entry.secrets else {
            return Ok(());
        };
        let start = self.start(org, secrets, gateway_uid).await?;
        let program = cove_embedded::TERMINATOR;
        let mut process = Process::launch(program, &start, &entry.listener).await?;
        drop(start);
        if process
            .call(&Call::Secrets(secrets.secrets.clone()))
            .await?
            == Reply::Refused
        {
            tracing::error!(%org, "a secret does not open; it was changed in the database");
        }
        for placed in entry.sandboxes.values() {
            process.call(&Call::Place(placed.clone())).await?;
        }
        tracing::info!(%org, pid = process.id(), "a terminator runs");
        entry.process = Some(process);
        Ok(())
    }

    /// The organisation's keys are unwrapped here, handed over, and forgotten.
    async fn start(
        &self,
        org: &OrgId,
        secrets: &OrgSecrets,
        gateway_uid: u32,
    ) -> io::Result<Start> {
        let (source, keys, org) = (self.source.clone(), secrets.keys.clone(), org.clone());
        let (cache, data) = (self.host_cache.clone(), self.data_dir.clone());
        let extra = self.extra_roots.clone();
        let made = tokio::task::spawn_blocking(move || -> io::Result<Start> {
            let host = source.read().map_err(io::Error::other)?;
            let opened = OpenedKeys::unwrap(&keys, &host).map_err(io::Error::other)?;
            let uid = accounts::claim(&cache, &data, &format!("terminator-{org}"), None)?;
            let (opening, authority) = opened.parts();
            let encoded = |bytes: &[u8]| Zeroizing::new(STANDARD.encode(bytes));
            Ok(Start {
                opening: encoded(opening).to_string(),
                authority: encoded(authority).to_string(),
                roots: roots(extra.as_deref())?,
                org,
                uid,
                gid: uid,
                gateway_uid,
            })
        });
        made.await.map_err(io::Error::other)?
    }
}

fn roots(extra: Option<&std::path::Path>) -> io::Result<String> {
    let found = ROOTS
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    let mut roots = found.unwrap_or_default();
    if let Some(path) = extra {
        let named = |error| io::Error::other(format!("secret_roots {}: {error}", path.display()));
        roots.push('\n');
        roots.push_str(&std::fs::read_to_string(path).map_err(named)?);
    }
    Ok(roots)
}
