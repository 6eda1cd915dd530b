//! Budgets of secrets between control, which has the ledger, and the terminators, which spend: who rang, what is
//! needed, what is granted. Nothing is counted here.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use cove_model::OrgId;
use cove_runner_api::{BudgetBack, BudgetGrant, BudgetNeed, BudgetsWanted};
use cove_terminator::call::{Call, Granted, Purse, Reply, WANTED_MAX, Wanted};
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::{Org, Serving, Terminators, other_question};

/// Answers that one question may take; the rest is asked with the next ring.
const WANTED_ROUNDS: usize = 16;

/// Which organisations' processes are short of something. What they send is not looked at.
#[derive(Default)]
pub struct Bells {
    rung: parking_lot::Mutex<HashSet<OrgId>>,
    changed: Notify,
}

impl Bells {
    pub fn ring(&self, org: &OrgId) {
        self.rung.lock().insert(org.clone());
        self.changed.notify_waiters();
    }

    /// The end that a process rings. It is heard until the process is gone.
    pub fn hang(self: &Arc<Self>, org: &OrgId) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut ours = tokio::net::UnixStream::from_std(ours)?;
        let (bells, org) = (Arc::clone(self), org.clone());
        tokio::spawn(async move {
            let mut rings = [0; 64];
            while ours.read(&mut rings).await.is_ok_and(|count| count > 0) {
                bells.ring(&org);
            }
        });
        Ok(theirs)
    }

    /// Those that rang since the last time, as soon as there are some.
    async fn next(&self, deadline: Instant) -> HashSet<OrgId> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let rung = std::mem::take(&mut *self.rung.lock());
            if !rung.is_empty() || timeout_at(deadline, changed).await.is_err() {
                return rung;
            }
        }
    }
}

impl Terminators {
    /// As soon as a process rings. What is asked of the processes goes on when the caller is gone.
    pub async fn wanted(self: &Arc<Self>, wait: Duration) -> BudgetsWanted {
        let deadline = Instant::now() + wait;
        loop {
            let rung = self.bells.next(deadline).await;
            if rung.is_empty() {
                return BudgetsWanted::default();
            }
            let terminators = Arc::clone(self);
            let asking = tokio::spawn(async move {
                let asked = rung.iter().map(|org| terminators.wanted_of(org));
                futures_util::future::join_all(asked).await
            });
            let mut all = BudgetsWanted::default();
            for wanted in asking.await.unwrap_or_default() {
                all.needs.extend(wanted.needs);
                all.back.extend(wanted.back);
            }
            if !all.needs.is_empty() || !all.back.is_empty() {
                return all;
            }
        }
    }

    async fn wanted_of(&self, org: &OrgId) -> BudgetsWanted {
        let Some(entry) = self.find(org) else {
            return BudgetsWanted::default();
        };
        let mut entry = entry.lock().await;
        let Org { serving, back, .. } = &mut *entry;
        let mut wanted = match serving {
            Some(serving) => serving.ask_wanted(org).await.unwrap_or_else(|error| {
                tracing::warn!(%org, %error, "the terminator does not answer");
                BudgetsWanted::default()
            }),
            None => BudgetsWanted::default(),
        };
        wanted.back.append(back);
        wanted
    }

    /// Each to the process of its organisation. What none takes is lost, and stays counted as used.
    pub async fn grant(&self, grants: Vec<BudgetGrant>) {
        let mut by_org: BTreeMap<OrgId, Vec<BudgetGrant>> = BTreeMap::new();
        for grant in grants {
            by_org.entry(grant.org.clone()).or_default().push(grant);
        }
        let granted = by_org.into_iter().map(|(org, grants)| async move {
            let Some(entry) = self.find(&org) else {
                return;
            };
            let mut entry = entry.lock().await;
            let Some(serving) = &mut entry.serving else {
                return;
            };
            let granted = grants.iter().filter_map(|grant| serving.granted(grant));
            let call = Call::Grant(granted.collect());
            if let Err(error) = serving.ask(&call).await {
                tracing::warn!(%org, %error, "parts of budgets are lost: the terminator does not answer");
            }
        });
        futures_util::future::join_all(granted).await;
    }
}

impl Serving {
    /// What the process is short of and gives back, with names; what it makes up is nobody's.
    pub(super) async fn ask_wanted(&mut self, org: &OrgId) -> io::Result<BudgetsWanted> {
        let mut all = BudgetsWanted::default();
        for _ in 0..WANTED_ROUNDS {
            let wanted = match self.ask(&Call::Wanted).await? {
                None => break,
                Some(Reply::Wanted(wanted)) => wanted,
                Some(_) => return Err(other_question()),
            };
            for one in &wanted {
                match *one {
                    Wanted::Need {
                        purse,
                        asker,
                        need,
                        more,
                    } => all.needs.extend(self.need(org, purse, asker, need, more)),
                    Wanted::Back { purse, day, amount } => {
                        all.back.extend(self.back(org, purse, day, amount));
                    }
                }
            }
            if wanted.len() < WANTED_MAX {
                break;
            }
        }
        Ok(all)
    }

    fn need(
        &self,
        org: &OrgId,
        purse: Purse,
        asker: u32,
        need: u64,
        more: u64,
    ) -> Option<BudgetNeed> {
        Some(BudgetNeed {
            org: org.clone(),
            secret: self.names.get(purse.secret as usize)?.clone(),
            of: purse.of,
            sandbox: self.sandbox(purse.sandbox.unwrap_or(asker))?.clone(),
            own: purse.sandbox.is_some(),
            need,
            more,
        })
    }

    fn back(&self, org: &OrgId, purse: Purse, day: u32, amount: u64) -> Option<BudgetBack> {
        let sandbox = match purse.sandbox {
            Some(slot) => Some(self.sandbox(slot)?.clone()),
            None => None,
        };
        Some(BudgetBack {
            org: org.clone(),
            secret: self.names.get(purse.secret as usize)?.clone(),
            of: purse.of,
            sandbox,
            day,
            amount,
        })
    }

    fn granted(&self, grant: &BudgetGrant) -> Option<Granted> {
        let secret = self.names.iter().position(|name| *name == grant.secret)?;
        let sandbox = match &grant.sandbox {
            Some(sandbox) => Some(self.sandboxes.get(sandbox)?.slot),
            None => None,
        };
        Some(Granted {
            purse: Purse {
                secret: u32::try_from(secret).ok()?,
                sandbox,
                of: grant.of,
            },
            amount: grant.amount,
            left: grant.left,
            day: grant.day,
            lasts_ms: grant.lasts_ms,
            renews_ms: grant.renews_ms,
        })
    }

    fn sandbox(&self, slot: u32) -> Option<&cove_model::SandboxId> {
        let mut sandboxes = self.sandboxes.values();
        sandboxes
            .find(|it| it.slot == slot)
            .map(|placed| &placed.sandbox)
    }
}
