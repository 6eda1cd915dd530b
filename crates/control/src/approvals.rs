//! Approvals: requests with a secret that asks wait on their hosts; people decide about them here.
//!
//! Hosts have them in memory, and control keeps none: what is shown is what is in force.

use std::collections::HashMap;

use cove_model::approval::{APPROVALS_MAX, Approval, Decision};
use cove_model::{ApprovalId, OrgId, SandboxId};
use cove_store::Scope;
use futures_util::future::join_all;

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::principal::Principal;

impl Control {
    /// Needs `manage`. The oldest first.
    pub async fn list_approvals(
        &self,
        principal: &Principal,
    ) -> Result<Vec<Approval>, ControlError> {
        principal.require(Scope::Manage)?;
        let hosts = self.hosts();
        let asked = hosts
            .iter()
            .map(|host| self.approvals_on(&principal.org, host));
        let (mut all, mut failed, mut answered) = (Vec::new(), None, false);
        for (host, outcome) in hosts.iter().zip(join_all(asked).await) {
            match outcome {
                Ok(approvals) => {
                    answered = true;
                    all.extend(approvals);
                }
                // It has no network, or is older than approvals: nothing asks there.
                Err(error) if error.code == ErrorCode::Unsupported => answered = true,
                Err(error) => {
                    tracing::warn!(%error, host = %host.id, "cannot read the approvals of a host");
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if !answered => Err(error),
            _ => {
                all.sort_by(|a: &Approval, b| (a.asked_at, &a.id).cmp(&(b.asked_at, &b.id)));
                Ok(all)
            }
        }
    }

    /// Those of sandboxes that are the organisation's and on this host; what else a node says is nobody's.
    async fn approvals_on(&self, org: &OrgId, host: &Host) -> Result<Vec<Approval>, ControlError> {
        let mut approvals = host.runner().await?.approvals(org).await?;
        approvals.truncate(APPROVALS_MAX);
        let mut own: HashMap<SandboxId, bool> = HashMap::new();
        for approval in &approvals {
            if !own.contains_key(&approval.sandbox) {
                let found = self.store().any_sandbox(&approval.sandbox).await?;
                let is_own = found.is_some_and(|it| it.org == *org && it.host == host.id);
                own.insert(approval.sandbox.clone(), is_own);
            }
        }
        approvals.retain(|it| own.get(&it.sandbox) == Some(&true));
        Ok(approvals)
    }

    /// Needs `admin`, as setting a secret that does not ask would. In force when this returns.
    pub async fn decide_approval(
        &self,
        principal: &Principal,
        id: &str,
        decision: Decision,
    ) -> Result<(), ControlError> {
        let (control, principal, id) = (self.clone(), principal.clone(), id.to_owned());
        self.to_the_end(async move {
            let mut operation = Operation::new("approval.decide", id.as_str());
            let outcome = control
                .try_decide(&principal, &id, decision, &mut operation)
                .await;
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_decide(
        &self,
        principal: &Principal,
        id: &str,
        decision: Decision,
        operation: &mut Operation,
    ) -> Result<(), ControlError> {
        principal.require(Scope::Admin)?;
        // No caller is authenticated for this with such a key; nor may one ever be.
        if principal.sandbox.is_some() {
            let message = "a key bound to one sandbox cannot decide approvals";
            return Err(ControlError::new(ErrorCode::Forbidden, message));
        }
        decision.check()?;
        let missing = || {
            ControlError::not_found("approval", id).hint(
                "it was used, has expired or never existed; `cove approvals ls` lists approvals",
            )
        };
        let wanted: ApprovalId = id.parse().map_err(|_| missing())?;
        let mut away = None;
        for host in self.hosts().iter() {
            let asked = match self.approvals_on(&principal.org, host).await {
                Ok(asked) => asked,
                Err(error) => {
                    if error.code != ErrorCode::Unsupported {
                        away = Some(error);
                    }
                    continue;
                }
            };
            let Some(asked) = asked.into_iter().find(|asked| asked.id == wanted) else {
                continue;
            };
            operation.detail = Some(format!(
                "{} for {} by {}: {} {}{}",
                match decision {
                    Decision::Once => "once".to_owned(),
                    Decision::For(seconds) => format!("{seconds} s"),
                    Decision::Deny => "denied".to_owned(),
                },
                asked.secret,
                asked.sandbox,
                asked.method,
                asked.host,
                asked.path
            ));
            let runner = host.runner().await?;
            runner
                .decide_approval(&principal.org, &wanted, decision)
                .await?;
            return Ok(());
        }
        Err(away.unwrap_or_else(missing))
    }

    /// A sandbox whose request waits for a person is not idle.
    pub(crate) async fn note_waiting(
        &self,
        host: &Host,
        waiting: Vec<SandboxId>,
    ) -> Result<(), ControlError> {
        for id in waiting {
            let found = self.store().any_sandbox(&id).await?;
            if found.is_some_and(|record| record.host == host.id) {
                self.0.in_use.activity.note(&id, self.moment());
            }
        }
        Ok(())
    }
}
