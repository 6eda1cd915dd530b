//! What the process knows: the organisation's secrets, opened, and which sandbox has which placeholder.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cove_model::approval::Decision;
use cove_model::network::Name;
use cove_model::secret::{AwsKeys, SealedSecret, SecretBinding, SecretUse, TotpSeed};
use cove_model::{ApprovalId, OrgId, SandboxId, SecretId};
use cove_vault::{About, OpenedKeys, Zeroizing};
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};

use super::approvals::{Approvals, Asking, Permit, Wanted};
use super::budgets::{Budgets, Need, Part, Tried};
use super::refusal::Refusal;
use super::scrub::{Scrubber, Searcher};
use super::totp;
use crate::call::{
    Asked, Decided, Granted, Placed, USES_MAX, Used, WANTED_MAX, Wanted as BudgetWanted,
};

/// Connections of one sandbox at once. What each holds in memory is bounded; a sandbox gets a small part of all.
const CONNECTIONS_PER_SANDBOX_MAX: usize = 256;

/// Those of them that speak HTTP/2. Each of its streams has buffers of its own, so that one such connection can hold
/// what fifty others can. The next ones speak HTTP/1.1.
pub(super) const HTTP_2_PER_SANDBOX_MAX: usize = 16;

/// Bytes of bodies that are held for all sandboxes, and for one of them.
const HELD_MAX: usize = 128 << 20;
const HELD_PER_SANDBOX_MAX: usize = 32 << 20;
/// How long a request waits for a part of a budget, and how often it looks whether it is there.
const BLOCK_WAIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// What an empty body counts once it is read.
const HELD_MIN: usize = 4096;

/// What a sandbox may use at one host, and its placeholders that stand for nothing there: their secrets were removed,
/// or are bound to other hosts.
#[derive(Default)]
pub struct Usables {
    pub secrets: Vec<Usable>,
    pub revoked: Vec<String>,
}

/// A secret that a sandbox may use at one host.
pub struct Usable {
    pub value: Arc<Zeroizing<String>>,
    pub binding: SecretBinding,
    pub placeholder: String,
    pub name: Arc<str>,
    pub key: (SecretId, u64),
    /// Of the sandbox and the secret.
    pub slots: (u32, u32),
}

impl Usable {
    /// Whether requests carry the token of a session, which servers repeat when they refuse a signature.
    pub fn sends_token(&self) -> bool {
        matches!(self.binding.usage, SecretUse::SigV4 { .. })
            && AwsKeys::parse(&self.value).is_ok_and(|keys| keys.token.is_some())
    }

    /// What an answer is searched for. A key that signs is never sent; a session's token is.
    fn sought(&self) -> Vec<&str> {
        match (&self.binding.usage, AwsKeys::parse(&self.value)) {
            (SecretUse::SigV4 { .. }, Ok(keys)) => [Some(keys.secret), keys.token]
                .into_iter()
                .flatten()
                .collect(),
            _ => vec![self.value.as_str()],
        }
    }

    pub fn asking(&self) -> Asking {
        Asking {
            key: self.key.clone(),
            slots: self.slots,
        }
    }

    /// What takes the placeholder's place at this time.
    pub fn current(&self, now: OffsetDateTime) -> Result<Zeroizing<String>, Refusal> {
        match &self.binding.usage {
            SecretUse::Totp(_) => {
                let seed = TotpSeed::parse(&self.value).map_err(|_| Refusal::Unwritable)?;
                let now = u64::try_from(now.unix_timestamp()).unwrap_or(0);
                Ok(Zeroizing::new(totp::code(&seed, now)))
            }
            _ => Ok(Zeroizing::clone(&self.value)),
        }
    }
}

/// Bytes of a body that a sandbox has the terminator hold, until it is dropped.
pub struct Held {
    table: Arc<Table>,
    sandbox: SandboxId,
    bytes: usize,
}

impl Held {
    /// Less is held than was expected.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.clamp(HELD_MIN, self.bytes.max(HELD_MIN));
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        let mut state = self.table.state.lock();
        if let Some(held) = state.held.get_mut(&self.sandbox) {
            *held -= less;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.table.state.lock();
        if let Some(held) = state.held.get_mut(&self.sandbox) {
            *held -= self.bytes;
            if *held == 0 {
                state.held.remove(&self.sandbox);
            }
        }
    }
}

/// A request that is held until somebody decides.
pub struct Waiting {
    table: Arc<Table>,
    id: ApprovalId,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.table.state.lock().approvals.waited(&self.id);
    }
}

/// Takes what a request waits for off its budgets when it does not wait any more.
struct Waited<'a> {
    table: &'a Table,
    needs: &'a [Need],
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.table.state.lock().budgets.waited(self.needs);
    }
}

struct Opened {
    name: Arc<str>,
    value: Arc<Zeroizing<String>>,
    sealed: SealedSecret,
}

pub struct Table {
    org: OrgId,
    keys: OpenedKeys,
    state: Mutex<State>,
    /// What looks for the same versions of secrets, as long as a connection uses it. Held while one is made: many
    /// connections at once make one.
    searchers: Mutex<Searchers>,
    /// Tells requests that wait for an approval to look again.
    decisions: watch::Sender<()>,
    /// How long a request waits for one.
    hold: Duration,
    /// Tells requests that wait for a part of a budget to look again.
    grants: watch::Sender<()>,
    /// Tells the engine that a budget is short of something.
    bell: OnceLock<UnixStream>,
}

#[derive(Default)]
struct State {
    secrets: HashMap<String, Opened>,
    placed: HashMap<SandboxId, Placed>,
    uses: HashMap<(u32, u32), (u64, u64)>,
    live: HashMap<u64, Live>,
    /// Bytes of bodies by sandbox.
    held: HashMap<SandboxId, usize>,
    approvals: Approvals,
    budgets: Budgets,
    next: u64,
}

struct Live {
    sandbox: SandboxId,
    /// It speaks HTTP/2, or may still choose to.
    many: bool,
    used: HashSet<(SecretId, u64)>,
    cut: Arc<Notify>,
}

/// A connection under way. Dropping it takes it off the list.
pub struct Connection {
    table: Arc<Table>,
    id: u64,
    pub sandbox: SandboxId,
    /// Told when the connection must end.
    pub cut: Arc<Notify>,
    /// What its answers are scrubbed of, and for which secrets and placeholders that was made.
    scrubber: Mutex<Option<(Vec<Known>, Arc<Scrubber>)>>,
}

type Known = ((SecretId, u64), String);
/// By the versions of secrets.
type Searchers = HashMap<Vec<(SecretId, u64)>, Weak<Searcher>>;

impl Table {
    pub fn new(org: OrgId, keys: OpenedKeys, hold: Duration) -> Self {
        Self {
            org,
            keys,
            state: Mutex::default(),
            searchers: Mutex::default(),
            decisions: watch::Sender::new(()),
            hold,
            grants: watch::Sender::new(()),
            bell: OnceLock::new(),
        }
    }

    pub fn hang_bell(&self, bell: UnixStream) {
        // There is one, hung at the start.
        let _ = self.bell.set(bell);
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            // One that is full has rung.
            let _ = bell.try_write(&[0]);
        }
    }

    /// What budgets are short of and what they give back, once.
    pub fn take_wanted(&self) -> Vec<BudgetWanted> {
        let mut state = self.state.lock();
        let wanted = state.budgets.take_wanted(Instant::now());
        if wanted.len() == WANTED_MAX {
            self.ring();
        }
        wanted
    }

    pub fn grant(&self, granted: &[Granted]) {
        let mut state = self.state.lock();
        let now = Instant::now();
        for one in granted {
            let mut grants = state.placed.values().flat_map(|placed| &placed.grants);
            let name = grants.find(|it| it.slot == one.purse.secret);
            let name = name.map(|grant| grant.secret.clone());
            let id = name.and_then(|name| state.secrets.get(&name));
            let id = id.map(|opened| opened.sealed.id.clone());
            state.budgets.grant(one, id.as_ref(), now);
        }
        self.grants.send_replace(());
    }

    /// `None` when not all of these secrets can be looked for.
    fn searcher(&self, secrets: &[Usable]) -> Option<Arc<Searcher>> {
        let wanted: Vec<_> = secrets.iter().map(|it| it.key.clone()).collect();
        let mut searchers = self.searchers.lock();
        if let Some(found) = searchers.get(&wanted).and_then(Weak::upgrade) {
            return Some(found);
        }
        searchers.retain(|_, searcher| searcher.strong_count() > 0);
        let made = Arc::new(Searcher::new(secrets.iter().map(Usable::sought))?);
        searchers.insert(wanted, Arc::downgrade(&made));
        Some(made)
    }

    /// Exactly these from now on. One that does not open is left out, and so refused. What used another version, or
    /// one that is gone, is cut.
    pub fn set_secrets(&self, secrets: Vec<SealedSecret>) -> bool {
        let mut state = self.state.lock();
        let mut before = std::mem::take(&mut state.secrets);
        let mut all_opened = true;
        for sealed in secrets {
            let same = before.remove(&sealed.name).filter(|it| it.sealed == sealed);
            let opened = same.or_else(|| self.open(sealed));
            all_opened &= opened.is_some();
            if let Some(opened) = opened {
                state.secrets.insert(opened.sealed.name.clone(), opened);
            }
        }
        let valid: HashSet<_> = state.secrets.values().map(|it| key(&it.sealed)).collect();
        let ids: HashSet<_> = valid.iter().map(|(id, _)| id).collect();
        state.budgets.forget_left(|id| ids.contains(id));
        for live in state.live.values() {
            if !live.used.is_subset(&valid) {
                live.cut.notify_one();
            }
        }
        // What was approved was this version of the secret.
        state.approvals.keep_secrets(|key| valid.contains(key));
        self.decisions.send_replace(());
        all_opened
    }

    fn open(&self, sealed: SealedSecret) -> Option<Opened> {
        let about = About {
            org: &self.org,
            name: &sealed.name,
            version: sealed.version,
            binding: &sealed.binding,
        };
        let value = self.keys.open(&about, &sealed.sealed).ok()?;
        let value = Zeroizing::new(std::str::from_utf8(&value).ok()?.to_owned());
        Some(Opened {
            name: sealed.name.as_str().into(),
            value: Arc::new(value),
            sealed,
        })
    }

    /// Other placeholders than before make those worthless; connections go on with what they have used.
    pub fn place(&self, placed: Placed) {
        let mut state = self.state.lock();
        let before = state.placed.get(&placed.sandbox);
        let is_same = |before: &Placed| {
            let mut grants = before.grants.iter();
            grants.all(|grant| placed.grants.contains(grant))
        };
        // A sandbox that was rolled back is another one: nobody approved what it does now.
        if !before.is_none_or(is_same) {
            state.approvals.forget_sandbox(&placed.sandbox);
            self.decisions.send_replace(());
        }
        state.placed.insert(placed.sandbox.clone(), placed);
    }

    pub fn remove(&self, sandbox: &SandboxId) {
        let mut state = self.state.lock();
        if let Some(gone) = state.placed.remove(sandbox) {
            let last = state.placed.is_empty();
            state.budgets.remove(gone.slot, last);
        }
        let theirs = state.live.values().filter(|live| live.sandbox == *sandbox);
        theirs.for_each(|live| live.cut.notify_one());
        state.approvals.forget_sandbox(sandbox);
        self.decisions.send_replace(());
    }

    /// In force when this returns: requests that wait hear of it, and connections that used what is no longer
    /// approved are cut.
    pub fn decide(&self, id: &ApprovalId, decision: Decision) -> Decided {
        let mut state = self.state.lock();
        let (decided, over) = state.approvals.decide(id, decision);
        if let Some((sandbox, key)) = over {
            let all = state.live.values();
            let theirs = all.filter(|live| live.sandbox == sandbox && live.used.contains(&key));
            theirs.for_each(|live| live.cut.notify_one());
        }
        self.decisions.send_replace(());
        decided
    }

    pub fn asked(&self, after: Option<&ApprovalId>) -> Vec<Asked> {
        self.state.lock().approvals.list(after)
    }

    /// `None` when the sandbox has as many connections as it may.
    pub fn connect(self: &Arc<Self>, sandbox: SandboxId) -> Option<Connection> {
        let mut state = self.state.lock();
        let theirs = state.live.values().filter(|live| live.sandbox == sandbox);
        if theirs.count() >= CONNECTIONS_PER_SANDBOX_MAX {
            return None;
        }
        let id = state.next;
        state.next += 1;
        let cut = Arc::new(Notify::new());
        let live = Live {
            sandbox: sandbox.clone(),
            many: false,
            used: HashSet::new(),
            cut: cut.clone(),
        };
        state.live.insert(id, live);
        Some(Connection {
            table: self.clone(),
            id,
            sandbox,
            cut,
            scrubber: Mutex::default(),
        })
    }

    /// The value of a secret that the sandbox holds and whose use is `exposed`. The use is sealed with the value, so
    /// that nobody can have another secret's value by changing a row.
    pub fn reveal(&self, sandbox: &SandboxId, secret: &str) -> Option<Zeroizing<Vec<u8>>> {
        let mut state = self.state.lock();
        let placed = state.placed.get(sandbox)?;
        let grant = placed.grants.iter().find(|grant| grant.secret == secret)?;
        let slots = (placed.slot, grant.slot);
        let opened = state.secrets.get(secret)?;
        if opened.sealed.binding.usage != SecretUse::Exposed {
            return None;
        }
        let value = Zeroizing::new(opened.value.as_bytes().to_vec());
        let (count, last) = state.uses.entry(slots).or_default();
        *count += 1;
        *last = now_ms();
        Some(value)
    }

    pub fn take_uses(&self) -> Vec<Used> {
        let mut state = self.state.lock();
        if state.budgets.rest(Instant::now()) {
            self.ring();
        }
        let told: Vec<_> = state.uses.keys().take(USES_MAX).copied().collect();
        let used = |slots: (u32, u32)| {
            let (count, last_ms) = state.uses.remove(&slots)?;
            let (sandbox, secret) = slots;
            Some(Used {
                sandbox,
                secret,
                count,
                last_ms,
            })
        };
        told.into_iter().filter_map(used).collect()
    }
}

pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

fn key(sealed: &SealedSecret) -> (SecretId, u64) {
    (sealed.id.clone(), sealed.version)
}

impl Connection {
    /// What the sandbox may use at this host now.
    pub fn usable(&self, host: &Name, port: u16) -> Usables {
        let state = self.table.state.lock();
        let mut usable = Usables::default();
        let Some(placed) = state.placed.get(&self.sandbox) else {
            return usable;
        };
        let bound = |it: &cove_model::secret::SecretHost| it.name == *host && it.port == port;
        for grant in &placed.grants {
            let opened = state.secrets.get(&grant.secret);
            let opened = opened.filter(|it| it.sealed.binding.hosts.iter().any(bound));
            match opened {
                Some(opened) => usable.secrets.push(Usable {
                    value: opened.value.clone(),
                    binding: opened.sealed.binding.clone(),
                    placeholder: grant.placeholder.clone(),
                    name: opened.name.clone(),
                    key: key(&opened.sealed),
                    slots: (placed.slot, grant.slot),
                }),
                None => usable.revoked.push(grant.placeholder.clone()),
            }
        }
        usable
    }

    /// Whether this connection may speak HTTP/2. It counts as one that does until [`Self::speaks`] says otherwise.
    pub fn may_multiplex(&self) -> bool {
        let mut state = self.table.state.lock();
        let others = state.live.values();
        let others = others.filter(|live| live.many && live.sandbox == self.sandbox);
        let may = others.count() < HTTP_2_PER_SANDBOX_MAX;
        if let Some(live) = state.live.get_mut(&self.id) {
            live.many = may;
        }
        may
    }

    /// What the two sides have agreed on.
    pub fn speaks(&self, many: bool) {
        if let Some(live) = self.table.state.lock().live.get_mut(&self.id) {
            live.many = many;
        }
    }

    /// Made once for a connection: the same secrets are looked for in all of its answers. `None` when they cannot
    /// be looked for.
    pub fn scrubber(&self, secrets: &[Usable]) -> Option<Arc<Scrubber>> {
        let known: Vec<Known> = secrets
            .iter()
            .map(|it| (it.key.clone(), it.placeholder.clone()))
            .collect();
        let mut kept = self.scrubber.lock();
        match &*kept {
            Some((before, scrubber)) if *before == known => Some(scrubber.clone()),
            _ => {
                let searcher = self.table.searcher(secrets)?;
                let placeholders = secrets.iter().map(|it| it.placeholder.as_str());
                let scrubber = Arc::new(Scrubber::with(searcher, placeholders));
                *kept = Some((known, scrubber.clone()));
                Some(scrubber)
            }
        }
    }

    /// `None` when the sandbox, or all of them, have as much held as they may.
    pub fn hold(&self, bytes: usize) -> Option<Held> {
        self.hold_within(bytes, 1)
    }

    /// The same of a half, so that room is left for what cannot do without.
    pub fn hold_spare(&self, bytes: usize) -> Option<Held> {
        self.hold_within(bytes, 2)
    }

    fn hold_within(&self, bytes: usize, part: usize) -> Option<Held> {
        let mut state = self.table.state.lock();
        let all: usize = state.held.values().sum();
        let theirs = state.held.get(&self.sandbox).copied().unwrap_or(0);
        if theirs + bytes > HELD_PER_SANDBOX_MAX / part || all + bytes > HELD_MAX / part {
            return None;
        }
        if bytes > 0 {
            state.held.insert(self.sandbox.clone(), theirs + bytes);
        }
        Some(Held {
            table: self.table.clone(),
            sandbox: self.sandbox.clone(),
            bytes,
        })
    }

    /// See [`Approvals::permit`].
    pub fn permit(
        &self,
        secrets: &[Asking],
        wanted: &Wanted,
    ) -> Result<Result<Permit, ApprovalId>, Refusal> {
        let mut state = self.table.state.lock();
        state.approvals.permit(&self.sandbox, secrets, wanted)
    }

    pub fn timed_permit(&self, secrets: &[Asking], wanted: &Wanted) -> Option<Permit> {
        let mut state = self.table.state.lock();
        state.approvals.timed(&self.sandbox, secrets, wanted)
    }

    pub fn hold_time(&self) -> Duration {
        self.table.hold
    }

    /// Changes whenever something was decided.
    pub fn decisions(&self) -> watch::Receiver<()> {
        self.table.decisions.subscribe()
    }

    /// A request of this connection is held for that approval, until this is dropped. `None` when too many are.
    pub fn wait(&self, id: &ApprovalId) -> Option<Waiting> {
        let mut state = self.table.state.lock();
        let waits = state.approvals.wait(&self.sandbox, id);
        waits.then(|| Waiting {
            table: self.table.clone(),
            id: id.clone(),
        })
    }

    /// All of these, as soon as there is enough of each. Refused when there is not, or when nobody says so in time.
    pub async fn reserve(&self, needs: &[Need]) -> Result<Vec<Part>, Refusal> {
        let mut grants = self.table.grants.subscribe();
        let since = Instant::now();
        let deadline = tokio::time::Instant::now() + BLOCK_WAIT;
        let mut waiting = None;
        loop {
            grants.borrow_and_update();
            {
                let mut state = self.table.state.lock();
                let now = Instant::now();
                match state.budgets.reserve(needs, since, now)? {
                    Tried::Reserved(parts) => return Ok(parts),
                    Tried::Short => {}
                }
                if waiting.is_none() {
                    state.budgets.wait(needs, now);
                    waiting = Some(Waited {
                        table: &self.table,
                        needs,
                    });
                }
                if state.budgets.is_wanting(now) {
                    self.table.ring();
                }
            }
            let now = tokio::time::Instant::now();
            if now >= deadline {
                return Err(Refusal::Unchecked);
            }
            // Also where an answer was lost on the way: then it is asked again.
            let _ = tokio::time::timeout_at(deadline.min(now + LOOK_AGAIN), grants.changed()).await;
        }
    }

    /// Uses all of these up where there is enough of each now.
    pub fn try_spend(&self, needs: &[Need]) -> bool {
        let now = Instant::now();
        let mut state = self.table.state.lock();
        matches!(
            state.budgets.reserve(needs, now, now),
            Ok(Tried::Reserved(_))
        )
    }

    pub fn settle(&self, parts: &mut [Part]) {
        let mut state = self.table.state.lock();
        let now = Instant::now();
        parts
            .iter_mut()
            .for_each(|part| state.budgets.settle(part, now));
    }

    /// Notes that secrets are about to be sent. `false` when one was revoked, or its approval was, since they were
    /// looked up: then nothing may be sent.
    pub fn use_now(&self, used: &[&Usable], permit: &Permit) -> bool {
        let now = now_ms();
        let mut state = self.table.state.lock();
        let valid = |it: &&&Usable| {
            state
                .secrets
                .values()
                .any(|known| key(&known.sealed) == it.key)
        };
        if used.iter().filter(valid).count() != used.len() {
            return false;
        }
        let mut asking = used.iter().filter(|it| it.binding.ask);
        if !asking.all(|it| state.approvals.covers(permit, &it.key)) {
            return false;
        }
        for it in used {
            let (count, last) = state.uses.entry(it.slots).or_default();
            *count += 1;
            *last = now;
        }
        match state.live.get_mut(&self.id) {
            Some(live) => live.used.extend(used.iter().map(|it| it.key.clone())),
            None => return false,
        }
        true
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.table.state.lock().live.remove(&self.id);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use cove_vault::{HostKeys, make_keys};

    pub fn usable(usage: &str, placeholder: &str, value: &str) -> Usable {
        Usable {
            value: Arc::new(Zeroizing::new(value.to_owned())),
            binding: SecretBinding {
                hosts: vec!["api.example".parse().unwrap()],
                usage: usage.parse().unwrap(),
                ask: false,
                limits: Vec::new(),
            },
            placeholder: placeholder.to_owned(),
            name: "token".into(),
            key: (SecretId::random(), 1),
            slots: (1, 1),
        }
    }

    #[test]
    fn connections_of_a_sandbox_are_bounded_and_share_what_looks_for_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let host = HostKeys::load_or_make(&folder.path().join("secret.key")).unwrap();
        let org = OrgId::random();
        let keys = make_keys(&org, &host).unwrap();
        let keys = OpenedKeys::unwrap(&keys, &host).unwrap();
        let table = Arc::new(Table::new(org, keys, Duration::ZERO));
        let (greedy, other) = (SandboxId::random(), SandboxId::random());
        let held: Vec<_> = (0..CONNECTIONS_PER_SANDBOX_MAX)
            .map(|_| table.connect(greedy.clone()).unwrap())
            .collect();
        assert!(table.connect(greedy.clone()).is_none());
        let neighbour = table.connect(other).unwrap();
        let secrets = [usable("bearer", "cove-secret-x", "sk-canary-0123456789")];
        let first = table.searcher(&secrets).unwrap();
        neighbour.scrubber(&secrets).unwrap();
        held[0].scrubber(&secrets).unwrap();
        // This one, and one in the scrubber of each connection.
        assert_eq!(Arc::strong_count(&first), 3);
        drop(held);
        assert!(table.connect(greedy).is_some());
    }
}
