//! Which isolation tier a new sandbox gets: the one that was asked for, if the operator allows it, or the strongest
//! allowed one that the host has.
//!
//! `auto` never means "whatever works at the moment". A host has a tier when the tier's programs are installed. If
//! such a tier does not boot a sandbox, the create fails; it does not fall back to a weaker tier.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_model::{
    AUTO_ISOLATION as AUTO, HostId, ISOLATION_BY_STRENGTH as BY_STRENGTH, IdlePolicy, OrgId,
    SandboxSpec,
};
use cove_runner_api::TierReport;
use parking_lot::Mutex;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;

/// How long a host's answer about its tiers is used. They change only when the runner restarts.
const TIERS_AGE: Duration = Duration::from_secs(60);

/// What a host last said about its tiers. The lock is never held while the host is asked.
pub type KnownTiers = Mutex<Option<(Instant, Arc<[TierReport]>)>>;

impl Control {
    /// Of an organisation's sandboxes whose requests name none.
    pub(crate) fn default_isolation(&self, org: &OrgId) -> String {
        self.config().isolation.rule(org).default.clone()
    }

    /// Replaces `auto` by a tier, and refuses one that the organisation may not have.
    pub(crate) async fn settle_isolation(
        &self,
        principal: &Principal,
        host: &HostId,
        spec: &mut SandboxSpec,
    ) -> Result<(), ControlError> {
        let rule = self.config().isolation.rule(&principal.org);
        let asked = &spec.isolation;
        let allowed = || rule.allowed.join(" or ");
        if asked != AUTO {
            // A tier that does not exist is refused by the host, which names those it has.
            let known = BY_STRENGTH.contains(&asked.as_str());
            if !known || rule.allows(asked) {
                let Some(missing) = rule.missing_for(spec.accel_in_force()) else {
                    return Ok(());
                };
                let message = format!(
                    "accel 'software' is for organisations whose sandboxes may have isolation {missing}; allowed: {}",
                    allowed()
                );
                return Err(ControlError::new(ErrorCode::Forbidden, message)
                    .hint("leave accel out, or ask the operator to change the settings isolation and isolation_of"));
            }
            let message = format!(
                "sandboxes of this organisation may not have isolation {asked}; allowed: {}",
                allowed()
            );
            return Err(ControlError::new(ErrorCode::Forbidden, message)
                .hint("leave isolation out, or ask the operator to change the settings isolation and isolation_of"));
        }
        let tiers = self.tiers_of(host).await?;
        let there: Vec<&str> = tiers
            .iter()
            .filter(|tier| tier.usable)
            .map(|tier| tier.name.as_str())
            .collect();
        match rule.strongest(&there) {
            Some(tier) => {
                spec.isolation = tier.to_owned();
                Ok(())
            }
            None => {
                let message = format!(
                    "the host has none of the allowed isolation tiers ({})",
                    allowed()
                );
                Err(ControlError::new(ErrorCode::Unsupported, message)
                    .hint("`cove doctor` on the host says what is missing"))
            }
        }
    }

    /// Refuses an idle policy that pauses sandboxes of a tier that cannot, where another tier of the host can.
    /// The host checks the same for new sandboxes; it does not hear of changed policies.
    pub(crate) async fn check_pausing(
        &self,
        host: &HostId,
        isolation: &str,
        policy: &IdlePolicy,
    ) -> Result<(), ControlError> {
        if policy.pause_after_s.is_none() {
            return Ok(());
        }
        let tiers = self.tiers_of(host).await?;
        let able = |tier: &&TierReport| tier.capabilities.iter().any(|name| name == "memory");
        let others: Vec<&str> = tiers
            .iter()
            .filter(able)
            .map(|tier| tier.name.as_str())
            .collect();
        if others.is_empty() || others.contains(&isolation) {
            return Ok(());
        }
        let message = format!(
            "lifecycle.pause_after_s: the tier '{isolation}' cannot pause; sandboxes with isolation {} can",
            others.join(" or ")
        );
        Err(ControlError::new(ErrorCode::Unsupported, message)
            .hint("use freeze_after_s or stop_after_s"))
    }

    /// Cheap: the host boots nothing to answer this. Callers at the same time may ask it more than once.
    async fn tiers_of(&self, host: &HostId) -> Result<Arc<[TierReport]>, ControlError> {
        let known = &self.host_of(host)?.tiers;
        if let Some((when, tiers)) = &*known.lock()
            && when.elapsed() < TIERS_AGE
        {
            return Ok(Arc::clone(tiers));
        }
        let tiers: Arc<[TierReport]> = self.runner(host).await?.tiers().await?.into();
        *known.lock() = Some((Instant::now(), Arc::clone(&tiers)));
        Ok(tiers)
    }
}
