//! Budgets of secrets: the database has the ledger, hosts get parts of it ahead of use.
//!
//! What a host gets counts as used before the host has it. What it does not use it gives back; what it loses stays
//! counted. So no crash of anything makes a budget larger.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cove_model::secret::{BudgetScope, SecretLimit};
use cove_model::{OrgId, SandboxId};
use cove_runner_api::{BudgetBack, BudgetGrant, BudgetNeed, BudgetsWanted};
use cove_store::{BudgetReturned, BudgetSpent, BudgetTaken, Scope, SecretRecord, StoreError};
use time::OffsetDateTime;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::principal::Principal;

/// How long a host is asked to wait until it needs something.
const WAIT_MS: u64 = 20_000;
/// Pause between two questions without an answer, and where a host has no budgets.
const PAUSE: Duration = Duration::from_millis(20);
const UNSUPPORTED_PAUSE: Duration = Duration::from_secs(30);
/// What one answer of a host may tell.
const TOLD_MAX: usize = 65_536;
const DAY_S: i64 = 86_400;

/// A limit of a secret, and what was used of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretBudget {
    pub limit: SecretLimit,
    pub used: u64,
    pub renews_at: Option<OffsetDateTime>,
}

/// A day in UTC. A clock that goes back goes back to a day whose uses are still counted.
#[derive(Debug, Clone, Copy)]
struct Day {
    number: u32,
    ends: OffsetDateTime,
}

impl Day {
    fn of(now: OffsetDateTime) -> Self {
        let number = now.unix_timestamp().div_euclid(DAY_S).max(0);
        let ends = OffsetDateTime::from_unix_timestamp((number + 1) * DAY_S);
        Self {
            number: u32::try_from(number).unwrap_or(u32::MAX),
            ends: ends.unwrap_or(now),
        }
    }
}

fn ms(duration: time::Duration) -> u64 {
    u64::try_from(duration.whole_milliseconds()).unwrap_or(0)
}

impl Control {
    /// Waits until a host needs a part of a budget, and answers it.
    pub(crate) async fn tend_budgets(&self, host: &Arc<Host>) -> Result<(), ControlError> {
        let asked = async { host.runner().await?.budgets_wanted(WAIT_MS).await };
        let wanted = match asked.await.map_err(ControlError::from) {
            Ok(wanted) => wanted,
            Err(error) if error.code == ErrorCode::Unsupported => {
                tokio::time::sleep(UNSUPPORTED_PAUSE).await;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if wanted == BudgetsWanted::default() {
            tokio::time::sleep(PAUSE).await;
            return Ok(());
        }
        let BudgetsWanted { needs, back } = wanted;
        // First, so that what one organisation gives back is there for what it needs.
        self.take_back(host, back).await?;
        let grants = self.budget_grants(host, needs).await?;
        if grants.is_empty() {
            return Ok(());
        }
        Ok(host.runner().await?.grant_budgets(grants).await?)
    }

    async fn take_back(&self, host: &Host, back: Vec<BudgetBack>) -> Result<(), ControlError> {
        if back.is_empty() {
            return Ok(());
        }
        let returned = back.into_iter().take(TOLD_MAX).map(|it| BudgetReturned {
            org: it.org,
            secret: it.secret,
            of: it.of,
            sandbox: it.sandbox,
            day: it.day,
            amount: it.amount,
        });
        let returned: Vec<_> = returned.collect();
        Ok(self.store().return_budgets(&host.id, &returned).await?)
    }

    /// A host gets parts of budgets for its own sandboxes only.
    async fn budget_grants(
        &self,
        host: &Host,
        needs: Vec<BudgetNeed>,
    ) -> Result<Vec<BudgetGrant>, ControlError> {
        let mut owners: HashMap<SandboxId, Option<OrgId>> = HashMap::new();
        let mut grants = Vec::new();
        for need in needs.into_iter().take(TOLD_MAX) {
            if !owners.contains_key(&need.sandbox) {
                let found = self.store().any_sandbox(&need.sandbox).await?;
                let found = found.filter(|record| record.host == host.id);
                owners.insert(need.sandbox.clone(), found.map(|record| record.org));
            }
            let owner = owners.get(&need.sandbox).and_then(Option::as_ref);
            if owner != Some(&need.org) {
                tracing::warn!(host = %host.id, sandbox = %need.sandbox, "a host needs a budget for a sandbox that is not on it; refused");
                continue;
            }
            // One that fails keeps no other waiting; the host asks again.
            match self.grant_budget(host, need).await {
                Ok(grant) => grants.extend(grant),
                Err(error) => {
                    tracing::warn!(%error, host = %host.id, "cannot take from a budget");
                }
            }
        }
        Ok(grants)
    }

    async fn grant_budget(
        &self,
        host: &Host,
        need: BudgetNeed,
    ) -> Result<Option<BudgetGrant>, ControlError> {
        let Some(secret) = self.store().secret(&need.org, &need.secret).await? else {
            return Ok(None);
        };
        let (now, sandbox) = (self.now(), need.own.then_some(need.sandbox));
        let day = Day::of(now);
        let taken = BudgetTaken {
            org: need.org.clone(),
            secret: secret.id,
            host: host.id.clone(),
            of: need.of,
            sandbox: sandbox.clone(),
            day: day.number,
            need: need.need,
            more: need.more,
            limits: secret.binding.limits,
        };
        let given = match self.store().take_budget(&taken).await {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            other => other?,
        };
        let ends_ms = ms(day.ends - OffsetDateTime::UNIX_EPOCH);
        Ok(Some(BudgetGrant {
            org: need.org,
            secret: need.secret,
            of: need.of,
            sandbox,
            amount: given.given,
            left: given.left,
            day: day.number,
            lasts_ms: ms(day.ends - now),
            renews_ms: given.renews.then_some(ends_ms),
        }))
    }

    /// The budgets of each of these secrets, those of single sandboxes without what each used.
    pub async fn secret_budgets(
        &self,
        org: &OrgId,
        secrets: &[SecretRecord],
    ) -> Result<Vec<Vec<SecretBudget>>, ControlError> {
        let day = Day::of(self.now());
        let limited = secrets.iter().any(|it| !it.binding.limits.is_empty());
        let spent = match limited {
            true => self.store().spent_budgets(org, day.number).await?,
            false => Vec::new(),
        };
        let budgets = |secret: &SecretRecord| {
            let each = secret.binding.limits.iter().map(|limit| {
                let is_of = |it: &&BudgetSpent| {
                    it.secret == secret.id && (it.of, it.per) == (limit.of, limit.per)
                };
                let renews = limit.per == BudgetScope::Day;
                SecretBudget {
                    limit: *limit,
                    used: spent.iter().find(is_of).map_or(0, |it| it.used),
                    renews_at: renews.then_some(day.ends),
                }
            });
            each.collect()
        };
        Ok(secrets.iter().map(budgets).collect())
    }

    /// Needs `manage`. What each sandbox used of the budgets that it has by itself.
    pub async fn sandbox_budgets(
        &self,
        principal: &Principal,
        name: &str,
    ) -> Result<HashMap<SandboxId, Vec<SecretBudget>>, ControlError> {
        principal.require(Scope::Manage)?;
        let Some(secret) = self.store().secret(&principal.org, name).await? else {
            return Err(ControlError::not_found("secret", name));
        };
        let limits = &secret.binding.limits;
        let mut budgets: HashMap<SandboxId, Vec<SecretBudget>> = HashMap::new();
        if !limits.iter().any(|it| it.per == BudgetScope::Sandbox) {
            return Ok(budgets);
        }
        let spent = self.store().spent_by_sandbox(&principal.org, &secret.id);
        for spent in spent.await? {
            let limit = limits
                .iter()
                .find(|it| (it.of, it.per) == (spent.of, spent.per));
            if let (Some(limit), Some(sandbox)) = (limit, spent.sandbox) {
                budgets.entry(sandbox).or_default().push(SecretBudget {
                    limit: *limit,
                    used: spent.used,
                    renews_at: None,
                });
            }
        }
        Ok(budgets)
    }
}
