//! What hosts are told of secrets, and what they tell of their use.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cove_model::secret::{OrgKeys, OrgSecrets, SealedSecret};
use cove_model::{HostId, OrgId, SandboxId};
use cove_runner_api::SecretUseReport;
use cove_store::{PageRequest, SecretUsage};
use futures_util::future::join_all;
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::OwnedMutexGuard;

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;

/// How soon a host that did not hear of a change is told again, and how seldom in the end.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Uses that wait for the database; later ones are lost, with a line in the log.
const UNWRITTEN_MAX: usize = 65_536;

type Told = (OrgId, HostId);

/// One caller at a time tells a host of an organisation's secrets, so that what it hears last is what the database
/// says. Organisations do not wait for each other.
#[derive(Default)]
pub(crate) struct Telling {
    turns: Mutex<HashMap<Told, Weak<tokio::sync::Mutex<()>>>>,
    /// Those that are told again, with how many changes they missed meanwhile.
    again: Mutex<HashMap<Told, u64>>,
    /// Uses that the database did not take. They are told once.
    unwritten: Mutex<Vec<(OrgId, SecretUsage)>>,
}

impl Telling {
    async fn turn(&self, told: Told) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock();
            turns.retain(|_, turn| turn.strong_count() > 0);
            match turns.get(&told).and_then(Weak::upgrade) {
                Some(turn) => turn,
                None => {
                    let turn = Arc::default();
                    turns.insert(told, Arc::downgrade(&turn));
                    turn
                }
            }
        };
        turn.lock_owned().await
    }

    /// For the next time.
    fn keep(&self, org: &OrgId, uses: Vec<SecretUsage>) {
        let mut unwritten = self.unwritten.lock();
        let room = UNWRITTEN_MAX.saturating_sub(unwritten.len());
        if uses.len() > room {
            tracing::error!(%org, lost = uses.len() - room, "cannot record uses of secrets; they are lost");
        }
        unwritten.extend(uses.into_iter().take(room).map(|used| (org.clone(), used)));
    }

    /// `false` when somebody tells it again already.
    fn missed(&self, told: &Told) -> bool {
        let mut again = self.again.lock();
        match again.get_mut(told) {
            Some(missed) => {
                *missed += 1;
                false
            }
            None => {
                again.insert(told.clone(), 0);
                true
            }
        }
    }

    fn missing(&self, told: &Told) -> u64 {
        self.again.lock().get(told).copied().unwrap_or(0)
    }

    /// `false` when another change was missed since there were `missing`.
    fn caught_up(&self, told: &Told, missing: u64) -> bool {
        let mut again = self.again.lock();
        let done = again.get(told).is_none_or(|now| *now == missing);
        if done {
            again.remove(told);
        }
        done
    }
}

/// A host that never can: one without a network has no use for secrets.
fn is_final(error: &ControlError) -> bool {
    error.code == ErrorCode::Unsupported
}

#[cfg(feature = "testing")]
impl Control {
    /// How many hosts and organisations are told again.
    pub fn hosts_told_again(&self) -> usize {
        self.0.secrets.again.lock().len()
    }
}

impl Control {
    /// Tells a host all secrets of an organisation as they are now, one such call after another.
    pub(super) async fn tell_secrets(&self, org: &OrgId, host: &Host) -> Result<(), ControlError> {
        let told = (org.clone(), host.id.clone());
        let _turn = self.0.secrets.turn(told).await;
        let Some(keys) = self.store().secret_keys(org).await? else {
            return Ok(());
        };
        self.tell_secrets_of(keys, host).await
    }

    async fn tell_secrets_of(&self, keys: OrgKeys, host: &Host) -> Result<(), ControlError> {
        let mut secrets = Vec::new();
        let mut page = PageRequest::default();
        loop {
            let found = self.store().secrets(&keys.org, &page).await?;
            secrets.extend(found.items.into_iter().map(|secret| SealedSecret {
                id: secret.id,
                name: secret.name,
                version: secret.version,
                binding: secret.binding,
                sealed: secret.sealed,
            }));
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => break,
            }
        }
        let runner = host.runner().await?;
        Ok(runner.set_secrets(OrgSecrets { keys, secrets }).await?)
    }

    /// Every host hears of a change before its caller does. One that does not answer is told until it has heard, or
    /// until it is another process, which asks for everything. Those that have not heard: what they were told before
    /// is in force there.
    pub(super) async fn spread_secrets(&self, org: &OrgId) -> Vec<HostId> {
        let hosts = self.hosts();
        let told = hosts.iter().map(|host| async move {
            let heard = self.tell_or_repeat(org, host).await;
            host.furnished.forget_exposed();
            (!heard).then(|| host.id.clone())
        });
        join_all(told).await.into_iter().flatten().collect()
    }

    /// `false` when the host has not heard and is told again.
    async fn tell_or_repeat(&self, org: &OrgId, host: &Arc<Host>) -> bool {
        match self.tell_secrets(org, host).await {
            Ok(()) => return true,
            Err(error) if is_final(&error) => {
                tracing::debug!(%error, host = %host.id, "cannot send the secrets of an organisation to a host");
                return true;
            }
            Err(error) => {
                tracing::warn!(%error, %org, host = %host.id, "cannot send changed secrets to a host; retrying");
            }
        }
        let told = (org.clone(), host.id.clone());
        if !self.0.secrets.missed(&told) {
            return false;
        }
        let (control, host) = (self.clone(), Arc::clone(host));
        self.0.tasks.changes.spawn(async move {
            let closing = control.0.tasks.closing.clone();
            let mut pause = RETRY;
            loop {
                tokio::select! {
                    () = closing.cancelled() => return,
                    () = host.ended.cancelled() => {
                        control.0.secrets.again.lock().remove(&told);
                        return;
                    }
                    () = tokio::time::sleep(pause) => {}
                }
                let missing = control.0.secrets.missing(&told);
                let heard = match control.tell_secrets(&told.0, &host).await {
                    Ok(()) => true,
                    Err(error) => is_final(&error),
                };
                if heard && control.0.secrets.caught_up(&told, missing) {
                    return;
                }
                pause = (pause * 2).min(RETRY_MAX);
            }
        });
        false
    }

    /// Collects what was used on a host, and tells a runner that has just begun about all secrets.
    pub(crate) async fn tend_secrets(&self, host: &Arc<Host>) -> Result<(), ControlError> {
        let told = host.runner().await?.secret_uses().await?;
        if *host.secrets_life.lock() != told.life {
            for keys in self.store().all_secret_keys().await? {
                self.tell_or_repeat(&keys.org, host).await;
            }
            host.secrets_life.lock().clone_from(&told.life);
        }
        let waiting = self.note_waiting(host, told.waiting).await;
        let uses = self.own_uses(host, told.uses).await?;
        self.note_uses(uses).await?;
        waiting
    }

    /// A node reports uses by its own sandboxes, of their organisation's secrets. The rest is nobody's.
    async fn own_uses(
        &self,
        host: &Host,
        told: Vec<SecretUseReport>,
    ) -> Result<Vec<SecretUseReport>, ControlError> {
        if host.node.is_none() {
            return Ok(told);
        }
        let mut waiting = std::mem::take(&mut *host.unchecked_uses.lock());
        waiting.extend(told);
        waiting.truncate(UNWRITTEN_MAX);
        let mut owners: HashMap<SandboxId, Option<OrgId>> = HashMap::new();
        for report in &waiting {
            if owners.contains_key(&report.sandbox) {
                continue;
            }
            match self.store().any_sandbox(&report.sandbox).await {
                Ok(found) => {
                    let found = found.filter(|record| record.host == host.id);
                    owners.insert(report.sandbox.clone(), found.map(|record| record.org));
                }
                Err(error) => {
                    // They are told once.
                    *host.unchecked_uses.lock() = waiting;
                    return Err(error.into());
                }
            }
        }
        let (own, foreign): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|report| {
            let owner = owners.get(&report.sandbox).and_then(Option::as_ref);
            owner == Some(&report.org)
        });
        if !foreign.is_empty() {
            tracing::warn!(host = %host.id, count = foreign.len(), "a node reports uses of secrets by sandboxes that are not on it; they are ignored");
        }
        Ok(own)
    }

    async fn note_uses(&self, uses: Vec<SecretUseReport>) -> Result<(), ControlError> {
        let mut by_org: BTreeMap<OrgId, Vec<SecretUsage>> = BTreeMap::new();
        for (org, used) in std::mem::take(&mut *self.0.secrets.unwritten.lock()) {
            by_org.entry(org).or_default().push(used);
        }
        for report in uses {
            let nanos = i128::from(report.last_used_ms) * 1_000_000;
            let at = OffsetDateTime::from_unix_timestamp_nanos(nanos);
            by_org.entry(report.org).or_default().push(SecretUsage {
                secret: report.secret,
                sandbox: report.sandbox,
                count: report.count,
                last_used_at: at.unwrap_or_else(|_| self.now()),
            });
        }
        let mut outcome = Ok(());
        for (org, uses) in by_org {
            if let Err(error) = self.store().note_secret_uses(&org, &uses).await {
                outcome = Err(error.into());
                self.0.secrets.keep(&org, uses);
                continue;
            }
            for used in uses {
                let mut operation = Operation::new("secret.use", used.secret.as_str());
                operation.detail = Some(format!("{} times by {}", used.count, used.sandbox));
                self.record_own(&org, operation, "ok").await;
            }
        }
        outcome
    }
}
