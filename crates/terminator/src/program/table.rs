//! What the process knows: the organisation's secrets, opened, and which sandbox has which placeholder.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cove_model::network::Name;
use cove_model::secret::{SealedSecret, SecretBinding};
use cove_model::{OrgId, SandboxId, SecretId};
use cove_vault::{About, OpenedKeys, Zeroizing};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::scrub::Scrubber;
use crate::call::{Placed, USES_MAX, Used};

/// A secret that a sandbox may use at one host.
pub struct Usable {
    pub value: Arc<Zeroizing<String>>,
    pub binding: SecretBinding,
    pub placeholder: String,
    key: (SecretId, u64),
    slots: (u32, u32),
}

struct Opened {
    value: Arc<Zeroizing<String>>,
    sealed: SealedSecret,
}

pub struct Table {
    org: OrgId,
    keys: OpenedKeys,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    secrets: HashMap<String, Opened>,
    placed: HashMap<SandboxId, Placed>,
    uses: HashMap<(u32, u32), (u64, u64)>,
    live: HashMap<u64, Live>,
    next: u64,
}

struct Live {
    sandbox: SandboxId,
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

impl Table {
    pub fn new(org: OrgId, keys: OpenedKeys) -> Self {
        Self {
            org,
            keys,
            state: Mutex::default(),
        }
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
        for live in state.live.values() {
            if !live.used.is_subset(&valid) {
                live.cut.notify_one();
            }
        }
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
            value: Arc::new(value),
            sealed,
        })
    }

    /// Other placeholders than before make those worthless; connections go on with what they have used.
    pub fn place(&self, placed: Placed) {
        let mut state = self.state.lock();
        state.placed.insert(placed.sandbox.clone(), placed);
    }

    pub fn remove(&self, sandbox: &SandboxId) {
        let mut state = self.state.lock();
        state.placed.remove(sandbox);
        let theirs = state.live.values().filter(|live| live.sandbox == *sandbox);
        theirs.for_each(|live| live.cut.notify_one());
    }

    pub fn connect(self: &Arc<Self>, sandbox: SandboxId) -> Connection {
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        let cut = Arc::new(Notify::new());
        let live = Live {
            sandbox: sandbox.clone(),
            used: HashSet::new(),
            cut: cut.clone(),
        };
        state.live.insert(id, live);
        Connection {
            table: self.clone(),
            id,
            sandbox,
            cut,
            scrubber: Mutex::default(),
        }
    }

    pub fn take_uses(&self) -> Vec<Used> {
        let mut state = self.state.lock();
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

fn key(sealed: &SealedSecret) -> (SecretId, u64) {
    (sealed.id.clone(), sealed.version)
}

impl Connection {
    /// What the sandbox may use at this host now.
    pub fn usable(&self, host: &Name, port: u16) -> Vec<Usable> {
        let state = self.table.state.lock();
        let Some(placed) = state.placed.get(&self.sandbox) else {
            return Vec::new();
        };
        let usable = placed.grants.iter().filter_map(|grant| {
            let opened = state.secrets.get(&grant.secret)?;
            let binding = &opened.sealed.binding;
            let bound = |it: &cove_model::secret::SecretHost| it.name == *host && it.port == port;
            binding.hosts.iter().any(bound).then(|| Usable {
                value: opened.value.clone(),
                binding: binding.clone(),
                placeholder: grant.placeholder.clone(),
                key: key(&opened.sealed),
                slots: (placed.slot, grant.slot),
            })
        });
        usable.collect()
    }

    /// Made once for a connection: the same secrets are looked for in all of its answers.
    pub fn scrubber(&self, usable: &[Usable]) -> Arc<Scrubber> {
        let known: Vec<Known> = usable
            .iter()
            .map(|it| (it.key.clone(), it.placeholder.clone()))
            .collect();
        let mut kept = self.scrubber.lock();
        match &*kept {
            Some((before, scrubber)) if *before == known => scrubber.clone(),
            _ => {
                let values = usable
                    .iter()
                    .map(|it| (it.value.as_str(), it.placeholder.as_str()));
                let scrubber = Arc::new(Scrubber::new(values));
                *kept = Some((known, scrubber.clone()));
                scrubber
            }
        }
    }

    /// Notes that secrets are about to be sent. `false` when one was revoked since they were looked up: then nothing
    /// may be sent.
    pub fn use_now(&self, used: &[&Usable]) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
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
