//! The terminators of this host: one process for each organisation that has a sandbox with secrets.
//!
//! What an organisation's secrets are is control's to say, anew after every start of this engine: nothing of it
//! is kept on disk here, so that no secret that was removed meanwhile can come back. Until control has said it,
//! connections to bound hosts are refused.
//!
//! Each organisation has a lock of its own, held while its process is spoken to: one that does not answer delays
//! its own organisation and no other.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cove_isolation::accounts;
use cove_model::approval::{APPROVALS_MAX, Approval, ApprovalState, Decision};
use cove_model::secret::{OrgSecrets, SecretHost};
use cove_model::{ApprovalId, OrgId, SandboxId};
use cove_runner_api::{BudgetBack, SecretUseReport};
use cove_terminator::call::{
    ASKED_MAX, Asked, Call, Decided, Placed, PlacedGrant, Reply, Revealed, Start, USES_MAX, Used,
};
use cove_terminator::host::Process;
use cove_vault::{OpenedKeys, Zeroizing};
use time::OffsetDateTime;
use tokio::sync::Mutex;

use super::HostKeySource;
use crate::config::EngineConfig;

mod budgets;

use budgets::Bells;

/// Where distributions keep the certificates that this host trusts.
const ROOTS: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Organisations whose secrets this host knows, and the bytes of all of them: what control says is bounded, also
/// when somebody else speaks for it.
const ORGS_MAX: usize = 4096;
const SECRETS_BYTES_MAX: usize = 256 << 20;
/// What a secret or the keys take besides their text.
const OVERHEAD: usize = 512;
/// Answers about uses that one question may take: more than all pairs of secrets and sandboxes on a host.
const USES_ROUNDS: usize = 64;

pub struct Terminators {
    /// Which start of this engine it is.
    pub life: String,
    source: HostKeySource,
    host_cache: PathBuf,
    data_dir: PathBuf,
    extra_roots: Option<PathBuf>,
    approval_hold: Duration,
    orgs: parking_lot::Mutex<HashMap<OrgId, Known>>,
    bells: Arc<Bells>,
}

struct Known {
    /// What its secrets take.
    bytes: usize,
    org: Arc<Mutex<Org>>,
}

/// The placeholders of one sandbox by the names of their secrets.
pub type Placeholders = BTreeMap<String, String>;

#[derive(Default)]
struct Org {
    secrets: Option<OrgSecrets>,
    /// While it has sandboxes with secrets.
    serving: Option<Serving>,
    uses: Vec<(SandboxId, String, Used)>,
    /// Parts of budgets that a process gave back before it ended.
    back: Vec<BudgetBack>,
    /// Approvals that control has heard of.
    told: HashSet<ApprovalId>,
}

impl Org {
    async fn new_asked(&mut self) -> (Vec<Approval>, Vec<SandboxId>) {
        let secrets = self.secrets.iter().flat_map(|known| &known.secrets);
        let asks = secrets.into_iter().any(|secret| secret.binding.ask);
        let Some(serving) = self.serving.as_mut().filter(|_| asks) else {
            self.told.clear();
            return Default::default();
        };
        // One that does not answer is replaced when uses are asked for.
        let Ok(asked) = serving.asked().await else {
            return Default::default();
        };
        let waiting = asked.iter().filter(|it| it.waiting > 0);
        let waiting: HashSet<_> = waiting.map(|it| it.sandbox.clone()).collect();
        let told = std::mem::take(&mut self.told);
        self.told = asked.iter().map(|it| it.id.clone()).collect();
        let is_new = |it: &Approval| it.state == ApprovalState::Pending && !told.contains(&it.id);
        let new = asked.into_iter().filter(is_new).collect();
        (new, waiting.into_iter().collect())
    }
}

struct Serving {
    /// Where the gateway hands connections over, for all processes that this organisation has in turn.
    socket: String,
    listener: UnixListener,
    sandboxes: HashMap<SandboxId, Placed>,
    /// Names of secrets by slot.
    names: Vec<String>,
    next: u32,
    process: Option<Process>,
}

impl Serving {
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
            sandboxes: HashMap::new(),
            names: Vec::new(),
            next: 0,
            process: None,
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

    fn named(&self, used: Vec<Used>) -> Vec<(SandboxId, String, Used)> {
        let named = used.into_iter().filter_map(|used| {
            let sandbox = self.sandboxes.values().find(|it| it.slot == used.sandbox);
            let name = self.names.get(used.secret as usize);
            // What the process makes up is nobody's.
            Some((sandbox?.sandbox.clone(), name?.clone(), used))
        });
        named.collect()
    }

    /// The call's answer. A process that does not answer has no place any more.
    async fn ask(&mut self, call: &Call) -> io::Result<Option<Reply>> {
        let Some(process) = &mut self.process else {
            return Ok(None);
        };
        let reply = process.call(call).await;
        if reply.is_err() {
            self.process = None;
        }
        reply.map(Some)
    }

    /// All approvals there are; none where no process runs, since they were in its memory.
    async fn asked(&mut self) -> io::Result<Vec<Approval>> {
        let (mut all, mut after) = (Vec::new(), None);
        for _ in 0..APPROVALS_MAX.div_ceil(ASKED_MAX) + 1 {
            match self.ask(&Call::Asked { after }).await? {
                None => break,
                Some(Reply::Asked(asked)) => {
                    let more = asked.len() == ASKED_MAX;
                    after = asked.last().map(|last| last.id.clone());
                    all.extend(asked.into_iter().filter_map(|one| self.approval(one)));
                    if !more {
                        break;
                    }
                }
                Some(_) => return Err(other_question()),
            }
        }
        Ok(all)
    }

    /// `None` for what the process makes up.
    fn approval(&self, asked: Asked) -> Option<Approval> {
        let mut sandboxes = self.sandboxes.values();
        let time =
            |ms: u64| OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok();
        Some(Approval {
            id: asked.id,
            sandbox: sandboxes
                .find(|it| it.slot == asked.sandbox)?
                .sandbox
                .clone(),
            secret: self.names.get(asked.secret as usize)?.clone(),
            host: asked.host,
            method: asked.method,
            path: asked.path,
            body: asked.body,
            state: asked.state,
            waiting: asked.waiting,
            asked_at: time(asked.asked_ms)?,
            expires_at: time(asked.expires_ms)?,
        })
    }

    /// Everything that was used since the last time. A process that does not answer has no place any more.
    async fn ask_uses(&mut self) -> io::Result<Vec<(SandboxId, String, Used)>> {
        let mut all = Vec::new();
        for _ in 0..USES_ROUNDS {
            let Some(process) = &mut self.process else {
                break;
            };
            match process.call(&Call::Uses).await {
                Ok(Reply::Uses(used)) => {
                    let more = used.len() == USES_MAX;
                    all.extend(self.named(used));
                    if !more {
                        break;
                    }
                }
                other => {
                    self.process = None;
                    if all.is_empty() {
                        other?;
                    }
                }
            }
        }
        Ok(all)
    }
}

fn size_of(secrets: &OrgSecrets) -> usize {
    let OrgSecrets { keys, secrets } = secrets;
    let keys = keys.public.len() + keys.authority.len() + keys.wrapped.bytes.len() + OVERHEAD;
    let each = secrets
        .iter()
        .map(|it| it.sealed.len() + it.name.len() + OVERHEAD);
    keys + each.sum::<usize>()
}

fn other_question() -> io::Error {
    io::Error::other("an answer to another request")
}

fn tell_refused(org: &OrgId) {
    tracing::error!(%org, "cannot decrypt a secret; it was changed in the database");
}

impl Terminators {
    pub fn new(config: &EngineConfig) -> Self {
        Self {
            life: hex::encode(rand::random::<[u8; 8]>()),
            source: HostKeySource::of(config),
            host_cache: config.host_cache.clone(),
            data_dir: config.data_dir.clone(),
            extra_roots: config.secret_roots.clone(),
            approval_hold: config.approval_hold,
            orgs: parking_lot::Mutex::default(),
            bells: Arc::default(),
        }
    }

    /// The organisation's entry, which grows to so many bytes; refused where the host would know too much.
    fn entry(&self, org: &OrgId, bytes: Option<usize>) -> io::Result<Arc<Mutex<Org>>> {
        let mut orgs = self.orgs.lock();
        let before = orgs.get(org).map(|known| known.bytes);
        if before.is_none() && orgs.len() >= ORGS_MAX {
            return Err(io::Error::other(format!(
                "this host holds the secrets of {ORGS_MAX} organisations, the most it can"
            )));
        }
        if let Some(bytes) = bytes {
            let all: usize = orgs.values().map(|known| known.bytes).sum();
            let others = all - before.unwrap_or(0);
            if others + bytes > SECRETS_BYTES_MAX && bytes > before.unwrap_or(0) {
                return Err(io::Error::other(format!(
                    "the secrets of all organisations on this host need more than {} MiB",
                    SECRETS_BYTES_MAX >> 20
                )));
            }
        }
        let known = orgs.entry(org.clone()).or_insert_with(|| Known {
            bytes: 0,
            org: Arc::default(),
        });
        known.bytes = bytes.unwrap_or(known.bytes);
        Ok(Arc::clone(&known.org))
    }

    fn find(&self, org: &OrgId) -> Option<Arc<Mutex<Org>>> {
        let orgs = self.orgs.lock();
        orgs.get(org).map(|known| Arc::clone(&known.org))
    }

    /// All secrets of an organisation as they are now. In force when this returns.
    pub async fn set(&self, secrets: OrgSecrets, gateway_uid: u32) -> io::Result<()> {
        let org = secrets.keys.org.clone();
        let entry = self.entry(&org, Some(size_of(&secrets)))?;
        let mut entry = entry.lock().await;
        let same_keys = entry
            .secrets
            .as_ref()
            .is_none_or(|before| before.keys.public == secrets.keys.public);
        if let (false, Some(serving)) = (same_keys, &mut entry.serving) {
            serving.process = None;
        }
        let told = Call::Secrets(secrets.secrets.clone());
        entry.secrets = Some(secrets);
        self.tell(&org, &mut entry, told, gateway_uid).await
    }

    /// The secrets that control last told of.
    pub async fn known(&self, org: &OrgId) -> Option<OrgSecrets> {
        self.find(org)?.lock().await.secrets.clone()
    }

    /// A sandbox is about to run with these placeholders; the socket that its connections are handed over at.
    pub async fn place(
        &self,
        org: &OrgId,
        sandbox: &SandboxId,
        placeholders: &Placeholders,
        gateway_uid: u32,
    ) -> io::Result<String> {
        let entry = self.entry(org, None)?;
        let mut entry = entry.lock().await;
        let serving = match &mut entry.serving {
            Some(serving) => serving,
            none => none.insert(Serving::new()?),
        };
        let slot = match serving.sandboxes.get(sandbox) {
            Some(placed) => placed.slot,
            None => {
                serving.next += 1;
                serving.next
            }
        };
        let grants = placeholders
            .iter()
            .map(|(secret, placeholder)| PlacedGrant {
                slot: serving.slot(secret),
                secret: secret.clone(),
                placeholder: placeholder.clone(),
            });
        let placed = Placed {
            sandbox: sandbox.clone(),
            slot,
            grants: grants.collect(),
        };
        serving.sandboxes.insert(sandbox.clone(), placed.clone());
        let socket = serving.socket.clone();
        self.tell(org, &mut entry, Call::Place(placed), gateway_uid)
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

    /// The value of an exposed secret that the sandbox holds; nothing where the process refuses it.
    pub async fn reveal(
        &self,
        org: &OrgId,
        sandbox: &SandboxId,
        secret: &str,
        gateway_uid: u32,
    ) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        let unknown = || io::Error::other("control has not sent the organisation's secrets yet");
        let entry = self.find(org).ok_or_else(unknown)?;
        let mut entry = entry.lock().await;
        if entry.secrets.is_none() {
            return Err(unknown());
        }
        let stopped = |entry: &Org| {
            let serving = entry.serving.as_ref();
            serving.is_some_and(|serving| serving.process.is_none())
        };
        if stopped(&entry) {
            self.launch(org, &mut entry, gateway_uid).await?;
        }
        let serving = entry.serving.as_mut();
        let process = serving.and_then(|serving| serving.process.as_mut());
        let process = process.ok_or_else(|| io::Error::other("no terminator runs"))?;
        let call = Call::Reveal {
            sandbox: sandbox.clone(),
            secret: secret.to_owned(),
        };
        match process.call(&call).await {
            Ok(Reply::Value(Revealed(value))) => Ok(Some(value)),
            Ok(Reply::Refused) => Ok(None),
            other => {
                if let Some(serving) = &mut entry.serving {
                    serving.process = None;
                }
                other.and(Err(other_question()))
            }
        }
    }

    /// It is gone. The process and the socket of an organisation without such sandboxes go too.
    pub async fn remove(&self, org: &OrgId, sandbox: &SandboxId) {
        let Some(entry) = self.find(org) else {
            return;
        };
        let mut entry = entry.lock().await;
        let Some(serving) = &mut entry.serving else {
            return;
        };
        if !serving.sandboxes.contains_key(sandbox) {
            return;
        }
        if let Some(process) = &mut serving.process
            && process.call(&Call::Remove(sandbox.clone())).await.is_err()
        {
            // It is replaced when it is needed.
            serving.process = None;
        }
        // What it used last is still told, since it can use nothing any more.
        let used = serving.ask_uses().await.unwrap_or_default();
        let wanted = serving.ask_wanted(org).await.unwrap_or_default();
        serving.sandboxes.remove(sandbox);
        let last = serving.sandboxes.is_empty();
        entry.uses.extend(used);
        if last {
            entry.serving = None;
        }
        if !wanted.back.is_empty() {
            entry.back.extend(wanted.back);
            self.bells.ring(org);
        }
    }

    /// What was used since the last time. Replaces processes that have died.
    pub async fn take_uses(&self, gateway_uid: u32) -> Vec<SecretUseReport> {
        let orgs: Vec<_> = {
            let orgs = self.orgs.lock();
            let each = orgs.iter();
            each.map(|(org, known)| (org.clone(), Arc::clone(&known.org)))
                .collect()
        };
        // Each by itself: one that is slow delays the answer by its own time at most.
        let asked = orgs
            .into_iter()
            .map(|(org, entry)| async move { self.uses_of(&org, &entry, gateway_uid).await });
        futures_util::future::join_all(asked)
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    async fn uses_of(&self, org: &OrgId, entry: &Mutex<Org>, uid: u32) -> Vec<SecretUseReport> {
        let mut entry = entry.lock().await;
        if entry.secrets.is_some()
            && let Some(serving) = &mut entry.serving
        {
            let asked = serving.ask_uses().await;
            let gone = serving.process.is_none();
            match asked {
                Ok(used) => entry.uses.extend(used),
                Err(error) => tracing::warn!(%org, %error, "the terminator does not answer"),
            }
            if gone && let Err(error) = self.launch(org, &mut entry, uid).await {
                tracing::warn!(%org, %error, "the terminator does not start");
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
        told.collect()
    }

    pub async fn asked(&self, org: &OrgId) -> io::Result<Vec<Approval>> {
        let Some(entry) = self.find(org) else {
            return Ok(Vec::new());
        };
        match &mut entry.lock().await.serving {
            Some(serving) => serving.asked().await,
            None => Ok(Vec::new()),
        }
    }

    pub async fn decide(
        &self,
        org: &OrgId,
        id: &ApprovalId,
        decision: Decision,
    ) -> io::Result<Decided> {
        let Some(entry) = self.find(org) else {
            return Ok(Decided::Unknown);
        };
        let mut entry = entry.lock().await;
        let Some(serving) = &mut entry.serving else {
            return Ok(Decided::Unknown);
        };
        let call = Call::Decide {
            approval: id.clone(),
            decision,
        };
        match serving.ask(&call).await? {
            None => Ok(Decided::Unknown),
            Some(Reply::Decided(decided)) => Ok(decided),
            Some(_) => Err(other_question()),
        }
    }

    /// Approvals that wait for a decision and were not told before, and the sandboxes with requests that are held.
    pub async fn take_asked(&self) -> (Vec<Approval>, Vec<SandboxId>) {
        let orgs: Vec<_> = {
            let orgs = self.orgs.lock();
            orgs.values().map(|known| Arc::clone(&known.org)).collect()
        };
        let asked = orgs
            .into_iter()
            .map(|entry| async move { entry.lock().await.new_asked().await });
        let each = futures_util::future::join_all(asked).await;
        let (new, waiting): (Vec<_>, Vec<_>) = each.into_iter().unzip();
        (new.concat(), waiting.concat())
    }

    /// Tells a process what has changed. One that died, or was never there, is started with everything.
    async fn tell(&self, org: &OrgId, entry: &mut Org, call: Call, uid: u32) -> io::Result<()> {
        if entry.secrets.is_none() {
            return Ok(());
        }
        let Some(serving) = &mut entry.serving else {
            return Ok(());
        };
        if let Some(process) = &mut serving.process {
            match process.call(&call).await {
                Ok(Reply::Done) => return Ok(()),
                Ok(Reply::Refused) => {
                    tell_refused(org);
                    return Ok(());
                }
                Ok(_) | Err(_) => serving.process = None,
            }
        }
        self.launch(org, entry, uid).await
    }

    async fn launch(&self, org: &OrgId, entry: &mut Org, gateway_uid: u32) -> io::Result<()> {
        let (Some(secrets), Some(serving)) = (&entry.secrets, &mut entry.serving) else {
            return Ok(());
        };
        let start = self.start(org, secrets, gateway_uid).await?;
        let program = cove_embedded::TERMINATOR;
        let bell = self.bells.hang(org)?;
        let mut process = Process::launch(program, &start, &serving.listener, bell.as_fd()).await?;
        drop(bell);
        drop(start);
        let told = Call::Secrets(secrets.secrets.clone());
        if process.call(&told).await? == Reply::Refused {
            tell_refused(org);
        }
        for placed in serving.sandboxes.values() {
            process.call(&Call::Place(placed.clone())).await?;
        }
        tracing::info!(%org, pid = process.id(), "a terminator runs");
        serving.process = Some(process);
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
        let approval_hold_s = self.approval_hold.as_secs();
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
                approval_hold_s,
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

#[cfg(test)]
mod tests {
    use super::ORGS_MAX;

    #[test]
    fn the_page_of_limits_has_the_number_of_the_code() {
        let page = include_str!("../../../../docs/limits.md").replace(',', "");
        let row = format!("| Terminators of one host | {ORGS_MAX} | 1 | 1 |");
        assert!(page.contains(&row), "{row}");
    }
}
