//! Leases: somebody who must say from time to time that a sandbox is still needed.
//!
//! The lease itself (holder, times, whether it ran out) is in the sandbox's row. When it was renewed last is in memory
//! only, so that a renewal costs neither a write nor an audit record. A process that has just started cannot know of
//! renewals that it missed; the first look of the ticker at a lease therefore counts as one. That a lease ran out is in
//! the row, so that the time until the deletion goes on over restarts. Both are on the steady axis.

use std::collections::{BTreeSet, HashMap, HashSet};

use async_recursion::async_recursion as boxed;
use cove_limits::LEASES_RENEWED_MAX;
use cove_model::spec::check_holder;
use cove_model::{IdlePolicy, Lease, LeaseTimes, OrgId, SandboxId, SandboxSpec, State, Steady};
use cove_store::{SandboxChange, SandboxRecord, SandboxRef, Scope};
use parking_lot::Mutex;

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::sandboxes::{Sandbox, is_doomed};

/// When leases on one host were renewed. Has no more entries than the host has sandboxes with leases.
#[derive(Default)]
pub(crate) struct Leases(Mutex<HashMap<SandboxId, Held>>);

struct Held {
    org: OrgId,
    holder: String,
    renewed: Steady,
}

impl Leases {
    pub fn forget(&self, id: &SandboxId) {
        self.0.lock().remove(id);
    }

    pub fn keep_only(&self, alive: &HashSet<SandboxId>) {
        self.0.lock().retain(|id, _| alive.contains(id));
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether this holder is known to have the lease; if so, it is renewed.
    fn renew(&self, org: &OrgId, holder: &str, id: &SandboxId, now: Steady) -> bool {
        match self.0.lock().get_mut(id) {
            Some(held) if held.org == *org && held.holder == holder => {
                held.renewed = now;
                true
            }
            _ => false,
        }
    }

    fn begin(&self, record: &SandboxRecord, now: Steady) {
        let Some(lease) = &record.spec.lifecycle.lease else {
            return self.forget(&record.id);
        };
        let held = Held {
            org: record.org.clone(),
            holder: lease.holder.clone(),
            renewed: now,
        };
        self.0.lock().insert(record.id.clone(), held);
    }

    /// Takes the entry of a lease that ran out, unless it was renewed since somebody looked. Renewals that come from now
    /// on wait for the sandbox's lock.
    pub fn expire(&self, record: &SandboxRecord, now: Steady) -> Option<Expired> {
        let lease = record.spec.lifecycle.lease.as_ref()?;
        let mut table = self.0.lock();
        let held = table.get(&record.id)?;
        if now.since(held.renewed).as_secs() < lease.renew_within_s {
            return None;
        }
        table.remove(&record.id).map(Expired)
    }

    /// It could not be put away after all.
    pub fn restore(&self, id: &SandboxId, expired: Expired) {
        self.0.lock().entry(id.clone()).or_insert(expired.0);
    }

    /// When it was renewed last. One that ran out has no entry: its renewal has to change the row.
    pub fn renewed(&self, record: &SandboxRecord, now: Steady) -> Steady {
        let Some(lease) = &record.spec.lifecycle.lease else {
            return now;
        };
        if lease.lapsed.is_some() {
            self.forget(&record.id);
            return now;
        }
        if let Some(held) = self.0.lock().get(&record.id)
            && held.holder == lease.holder
        {
            return held.renewed;
        }
        self.begin(record, now);
        now
    }
}

pub(crate) struct Expired(Held);

/// What a lease asks for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// It was not renewed for so many seconds: put the sandbox away.
    Lapse(u64),
    /// Somebody woke a sandbox whose lease ran out: it has another period.
    Revive,
    /// It ran out so many seconds ago: delete the sandbox.
    Delete(u64),
}

/// `present`: clients are attached to the sandbox now.
pub(crate) fn due(lease: &Lease, renewed: Steady, now: Steady, state: State, present: bool) -> Due {
    let is_settled = matches!(
        state,
        State::Running | State::Frozen | State::Paused | State::Stopped | State::Failed
    );
    let is_awake = matches!(state, State::Running | State::Frozen);
    if !is_settled {
        return Due::Nothing;
    }
    match lease.lapsed {
        Some(_) if is_awake => Due::Revive,
        Some(at) => match now.since(at).as_secs() {
            passed if passed >= lease.delete_after_s && !present => Due::Delete(passed),
            _ => Due::Nothing,
        },
        None => match now.since(renewed).as_secs() {
            passed if passed >= lease.renew_within_s && !present => Due::Lapse(passed),
            _ => Due::Nothing,
        },
    }
}

fn with_lease(spec: &SandboxSpec, lease: Option<Lease>) -> SandboxSpec {
    SandboxSpec {
        lifecycle: IdlePolicy {
            lease,
            ..spec.lifecycle.clone()
        },
        ..spec.clone()
    }
}

pub(crate) fn not_the_holder(record: &SandboxRecord) -> ControlError {
    let message = match record.spec.lifecycle.lease {
        Some(_) => "another holder has the lease of this sandbox",
        None => "the sandbox has no lease",
    };
    ControlError::new(ErrorCode::Conflict, message)
}

impl Control {
    /// Of leases whose requests give no times.
    pub fn lease_times(&self) -> LeaseTimes {
        self.config().lease_times
    }

    /// Needs `manage`. Begins a lease, or takes it over; `lease` gets the present one.
    #[boxed]
    pub async fn take_lease(
        &self,
        principal: &Principal,
        which: &str,
        lease: impl FnOnce(Option<Lease>) -> Lease + Send + 'static,
    ) -> Result<Sandbox, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let mut target = which.clone();
            let outcome = async {
                principal.require(Scope::Manage)?;
                let found = control.find(&principal, &which).await?;
                target = found.id.to_string();
                let _turn = control.take_turn(&found.id).await?;
                let record = control.row_of(&found, &which).await?;
                let lease = lease(record.spec.lifecycle.lease.clone());
                lease.check()?;
                control.set_lease(&record, Some(lease)).await
            };
            let outcome = outcome.await.map(Sandbox::from);
            let operation = Operation::new("lease.take", target);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. The sandbox then stays until it is deleted. `holder`: only if this one has the lease.
    #[boxed]
    pub async fn end_lease(
        &self,
        principal: &Principal,
        which: &str,
        holder: Option<String>,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let mut target = which.clone();
            let outcome = async {
                principal.require(Scope::Manage)?;
                let found = control.find(&principal, &which).await?;
                target = found.id.to_string();
                let _turn = control.take_turn(&found.id).await?;
                let record = control.row_of(&found, &which).await?;
                let present = record.spec.lifecycle.lease.as_ref();
                match (present, holder) {
                    (Some(lease), Some(holder)) if lease.holder != holder => {
                        return Err(not_the_holder(&record));
                    }
                    (None, _) => return Ok(()),
                    (Some(_), _) => {}
                }
                control.set_lease(&record, None).await.map(drop)
            };
            let outcome = outcome.await;
            let operation = Operation::new("lease.end", target);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `manage`. The ids of those that this holder does not have, or not any more.
    #[boxed]
    pub async fn renew_leases(
        &self,
        principal: &Principal,
        holder: &str,
        sandboxes: Vec<String>,
    ) -> Result<Vec<String>, ControlError> {
        principal.require(Scope::Manage)?;
        check_holder(holder)?;
        if !(1..=LEASES_RENEWED_MAX).contains(&sandboxes.len()) {
            return Err(ControlError::invalid(format!(
                "sandboxes: 1 to {LEASES_RENEWED_MAX} at once"
            )));
        }
        let ids: Result<Vec<SandboxId>, _> = sandboxes.iter().map(|id| id.parse()).collect();
        let ids = ids.map_err(|_| ControlError::invalid("sandboxes: give ids, not names"))?;
        // Each may take a turn that others have; naming one often waits no longer.
        let ids: BTreeSet<SandboxId> = ids.into_iter().collect();
        let mut lost = Vec::new();
        for id in ids {
            let now = self.steady();
            let hosts = self.hosts();
            let mut hosts = hosts.iter();
            if hosts.any(|host| host.leases.renew(&principal.org, holder, &id, now)) {
                continue;
            }
            if !self.renew_in_row(&principal.org, holder, &id).await? {
                lost.push(id.to_string());
            }
        }
        Ok(lost)
    }

    /// One that this process has not seen yet, or that ran out.
    async fn renew_in_row(
        &self,
        org: &OrgId,
        holder: &str,
        id: &SandboxId,
    ) -> Result<bool, ControlError> {
        let held = |row: &SandboxRecord| {
            let lease = row.spec.lifecycle.lease.as_ref();
            !is_doomed(row) && lease.is_some_and(|lease| lease.holder == holder)
        };
        let found = self.store().sandbox(org, SandboxRef::Id(id)).await?;
        let Some(record) = found.filter(held) else {
            return Ok(false);
        };
        // It may be put away at this moment.
        let _turn = match self.take_turn(&record.id).await {
            // A long change is under way; the next renewal finds its end.
            Err(error) if error.code == ErrorCode::Conflict => return Ok(true),
            turn => turn?,
        };
        let found = self.store().sandbox(org, SandboxRef::Id(id)).await?;
        let Some(record) = found.filter(held) else {
            return Ok(false);
        };
        let lease = record.spec.lifecycle.lease.as_ref();
        match lease.is_some_and(|lease| lease.lapsed.is_some()) {
            true => self.revive_lease(&record).await?,
            false => {
                let host = self.host_of(&record.host)?;
                host.leases.begin(&record, self.steady());
            }
        }
        Ok(true)
    }

    async fn row_of(
        &self,
        found: &SandboxRecord,
        which: &str,
    ) -> Result<SandboxRecord, ControlError> {
        let row = self.store().sandbox(&found.org, SandboxRef::Id(&found.id));
        let row = row.await?.filter(|row| !is_doomed(row));
        row.ok_or_else(|| ControlError::not_found("sandbox", which))
    }

    /// For whoever holds the sandbox's lock. The lease counts as renewed.
    async fn set_lease(
        &self,
        record: &SandboxRecord,
        lease: Option<Lease>,
    ) -> Result<SandboxRecord, ControlError> {
        let change = SandboxChange {
            spec: Some(with_lease(&record.spec, lease)),
            ..SandboxChange::default()
        };
        // The period begins before anybody can see it in the row.
        let begun = self.steady();
        let changed = self
            .store()
            .change_sandbox(&record.id, &change, self.now())
            .await?;
        let host = self.host_of(&record.host)?;
        host.leases.begin(&changed, begun);
        Ok(changed)
    }

    /// For whoever holds the sandbox's lock: one that ran out has a period again.
    pub(crate) async fn revive_lease(&self, record: &SandboxRecord) -> Result<(), ControlError> {
        let lease = record.spec.lifecycle.lease.clone().map(|lease| Lease {
            lapsed: None,
            ..lease
        });
        self.set_lease(record, lease).await.map(drop)
    }

    /// For whoever holds the sandbox's lock: writes down that nobody renewed it. The sandbox is put away already; a
    /// crash before this write begins a new period.
    pub(crate) async fn lapse_lease(&self, record: &SandboxRecord) -> Result<(), ControlError> {
        let now = self.steady();
        let lease = record.spec.lifecycle.lease.clone().map(|lease| Lease {
            lapsed: Some(now),
            ..lease
        });
        let change = SandboxChange {
            spec: Some(with_lease(&record.spec, lease)),
            ..SandboxChange::default()
        };
        self.store()
            .change_sandbox(&record.id, &change, self.now())
            .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lease_runs_out_is_revived_and_ends_in_deletion() {
        let begin = Steady::from_micros(0);
        let at = |seconds| begin + Duration::from_secs(seconds);
        let fresh = Lease::of("me");
        let due_at =
            |lease: &Lease, seconds, state, present| due(lease, begin, at(seconds), state, present);
        assert_eq!(due_at(&fresh, 299, State::Running, false), Due::Nothing);
        assert_eq!(due_at(&fresh, 300, State::Running, false), Due::Lapse(300));
        assert_eq!(due_at(&fresh, 900, State::Running, true), Due::Nothing);
        assert_eq!(due_at(&fresh, 900, State::Pausing, false), Due::Nothing);
        assert_eq!(due_at(&fresh, 900, State::Stopped, false), Due::Lapse(900));
        let lapsed = Lease {
            lapsed: Some(at(300)),
            ..fresh
        };
        let day = 86_400;
        assert_eq!(due_at(&lapsed, 400, State::Running, false), Due::Revive);
        assert_eq!(due_at(&lapsed, day, State::Paused, false), Due::Nothing);
        let late = day + 300;
        assert_eq!(due_at(&lapsed, late, State::Paused, true), Due::Nothing);
        assert_eq!(
            due_at(&lapsed, late, State::Paused, false),
            Due::Delete(day)
        );
    }
}
