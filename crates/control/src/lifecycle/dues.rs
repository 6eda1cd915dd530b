//! Puts idle sandboxes away on time.
//!
//! The rounds over all sandboxes are seconds apart. Where a rule may apply before the round after next, a timer looks
//! at that one sandbox when it is due: what it has used is read once more, and the decision is made as in a round. A
//! timer that is lost costs one round.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use cove_model::{IdlePolicy, SandboxId, State, Steady};
use cove_store::{Moment, SandboxRecord};

use super::{compare, has_idle_rule};
use crate::Control;
use crate::error::ControlError;
use crate::hosts::Host;
use crate::sandboxes::{Sandbox, is_doomed};

/// Idle times are counted in whole seconds, and a timer may be early.
const MARGIN: Duration = Duration::from_millis(20);
/// What a sandbox uses in less time says nothing about it.
const WINDOW: Duration = Duration::from_millis(500);

/// When each sandbox's timer looks.
#[derive(Default)]
pub(crate) struct Dues(Mutex<HashMap<SandboxId, Steady>>);

impl Dues {
    /// Whether a timer is needed. One that looks earlier finds out what comes next.
    fn note(&self, id: &SandboxId, at: Steady) -> bool {
        let mut dues = self.0.lock();
        let is_needed = dues.get(id).is_none_or(|armed| *armed > at);
        if is_needed {
            dues.insert(id.clone(), at);
        }
        is_needed
    }

    fn counts(&self, id: &SandboxId, at: Steady) -> bool {
        self.0.lock().get(id) == Some(&at)
    }

    /// Whether the timer is still the one that counts; it does no longer.
    fn take(&self, id: &SandboxId, at: Steady) -> bool {
        let mut dues = self.0.lock();
        let counts = dues.get(id) == Some(&at);
        if counts {
            dues.remove(id);
        }
        counts
    }
}

/// What decides when a rule applies next.
pub(super) struct Prospect {
    pub now: Steady,
    pub state: State,
    pub present: bool,
    pub last_active: Steady,
    pub unpausable: bool,
    /// Until when its traffic keeps it.
    pub talks_until: Option<Steady>,
}

/// When a rule applies next, unless somebody uses the sandbox until then.
pub(super) fn next_due(policy: &IdlePolicy, prospect: &Prospect) -> Option<Steady> {
    let running = prospect.state == State::Running;
    let awake = running || prospect.state == State::Frozen;
    let rules = [
        (policy.delete_after_s, true),
        (
            policy.stop_after_s,
            awake || prospect.state == State::Paused,
        ),
        (policy.pause_after_s, awake && !prospect.unpausable),
        (policy.freeze_after_s, running),
    ];
    let limits = rules.into_iter().filter(|(_, applies)| *applies);
    let limit = limits.filter_map(|(limit, _)| limit).min()?;
    // Whoever is there leaves later than now.
    let since = match prospect.present {
        true => prospect.now,
        false => prospect.last_active,
    };
    let idle = since + Duration::from_secs(limit);
    let talks_until = prospect.talks_until.filter(|_| running);
    Some(talks_until.map_or(idle, |quiet| quiet.max(idle)))
}

impl Control {
    /// To be called whenever its state or its policy is written, and in each round.
    pub(crate) fn expect_rest_of(&self, row: &SandboxRecord) {
        if let Ok(host) = self.host_of(&row.host) {
            let policy = &row.spec.lifecycle;
            self.expect_rest(&host, &row.id, row.state, row.active_steady, policy);
        }
    }

    pub(crate) fn expect_rest_of_shown(&self, sandbox: &Sandbox) {
        if let Ok(host) = self.host_of(&sandbox.host) {
            let policy = &sandbox.spec.lifecycle;
            let active = sandbox.active_steady;
            self.expect_rest(&host, &sandbox.id, sandbox.state, active, policy);
        }
    }

    fn expect_rest(
        &self,
        host: &Host,
        id: &SandboxId,
        state: State,
        active: Steady,
        policy: &IdlePolicy,
    ) {
        if !has_idle_rule(policy) {
            return;
        }
        let (last_active, present) = self.last_used(id, active);
        let seen = host.idleness.of(id);
        let prospect = Prospect {
            now: self.steady(),
            state,
            present,
            last_active,
            unpausable: self.is_unpausable(host, id),
            talks_until: seen
                .and_then(|seen| seen.network_at)
                .map(|at| at + self.config().network_quiet),
        };
        let ahead = 2 * self.config().lifecycle_every;
        let due = next_due(policy, &prospect);
        // What is due already is a round's to do, or could not be done.
        let due = due.filter(|at| *at > prospect.now && at.since(prospect.now) <= ahead);
        let Some(at) = due else {
            return;
        };
        if !self.0.in_use.dues.note(id, at) {
            return;
        }
        let (control, id) = (self.clone(), id.clone());
        self.0.tasks.changes.spawn(async move {
            let work = control.rest_on_time(&id, at);
            let done = tokio::select! {
                done = work => done,
                () = control.0.tasks.closing.cancelled() => return,
            };
            if let Err(error) = done {
                tracing::warn!(%error, sandbox = %id, "cannot apply an idle rule; retrying at the next check");
            }
        });
    }

    async fn rest_on_time(&self, id: &SandboxId, at: Steady) -> Result<(), ControlError> {
        let left = at.since(self.steady()) + MARGIN;
        tokio::time::sleep(left.saturating_sub(WINDOW)).await;
        let dues = &self.0.in_use.dues;
        if !dues.counts(id, at) {
            return Ok(());
        }
        // Of one that no round has seen twice yet, what it uses from here on is known when it is due.
        let looked = self.look_at_one(id, false).await;
        tokio::time::sleep(left.min(WINDOW)).await;
        if !dues.take(id, at) {
            return Ok(());
        }
        looked?;
        self.look_at_one(id, true).await?;
        let Some((_, host)) = self.watched(id).await? else {
            return Ok(());
        };
        self.put_away(&host, id).await?;
        if let Some((row, _)) = self.watched(id).await? {
            self.expect_rest_of(&row);
        }
        Ok(())
    }

    async fn watched(
        &self,
        id: &SandboxId,
    ) -> Result<Option<(SandboxRecord, Arc<Host>)>, ControlError> {
        let row = self.store().any_sandbox(id).await?;
        let is_there = |row: &SandboxRecord| {
            row.deleted_at.is_none() && row.state != State::Creating && !is_doomed(row)
        };
        let Some(row) = row.filter(is_there) else {
            return Ok(None);
        };
        let host = self.host_of(&row.host)?;
        Ok(Some((row, host)))
    }

    /// Reads what one sandbox has used, as a round does for all. A quiet one keeps what a round has seen of it, so that
    /// the time it is judged by gets longer and not shorter. `again`: also one that rounds have compared.
    async fn look_at_one(&self, id: &SandboxId, again: bool) -> Result<(), ControlError> {
        let Some((row, host)) = self.watched(id).await? else {
            return Ok(());
        };
        let old = host.idleness.of(id);
        let is_compared = old.as_ref().is_some_and(|old| old.compared);
        if row.state != State::Running || (is_compared && !again) {
            return Ok(());
        }
        let sample = host.runner().await?.sample(id).await?;
        let steady = self.0.clocks.placed(sample.boot_time.as_ref());
        if is_compared
            && old
                .as_ref()
                .is_some_and(|old| steady.since(old.at) < WINDOW)
        {
            return Ok(());
        }
        let config = self.config();
        let (seen, was_busy) = compare(
            old.as_ref(),
            &sample,
            steady,
            config.idle_cpu,
            config.idle_network_bytes,
        );
        if was_busy || !is_compared {
            host.idleness.table().insert(id.clone(), seen);
        }
        if was_busy {
            let at = sample.at;
            self.0.in_use.activity.note(id, Moment { at, steady });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Steady {
        Steady::from_micros(s * 1_000_000)
    }

    fn prospect(state: State) -> Prospect {
        Prospect {
            now: at(100),
            state,
            present: false,
            last_active: at(90),
            unpausable: false,
            talks_until: None,
        }
    }

    #[test]
    fn the_first_rule_that_can_apply_is_the_one_that_is_due() {
        let policy = IdlePolicy {
            freeze_after_s: Some(20),
            pause_after_s: Some(30),
            stop_after_s: Some(40),
            delete_after_s: Some(50),
            ..IdlePolicy::default()
        };
        for (state, due) in [
            (State::Running, 110),
            (State::Frozen, 120),
            (State::Paused, 130),
            (State::Stopped, 140),
        ] {
            assert_eq!(
                next_due(&policy, &prospect(state)),
                Some(at(due)),
                "{state}"
            );
        }
        let unpausable = Prospect {
            unpausable: true,
            ..prospect(State::Frozen)
        };
        assert_eq!(next_due(&policy, &unpausable), Some(at(130)));
        let visited = Prospect {
            present: true,
            ..prospect(State::Running)
        };
        assert_eq!(next_due(&policy, &visited), Some(at(120)));
        let talking = Prospect {
            talks_until: Some(at(500)),
            ..prospect(State::Running)
        };
        assert_eq!(next_due(&policy, &talking), Some(at(500)));
        assert_eq!(
            next_due(&IdlePolicy::default(), &prospect(State::Running)),
            None
        );
    }

    #[test]
    fn an_earlier_timer_replaces_a_later_one() {
        let (dues, id) = (Dues::default(), SandboxId::random());
        assert!(dues.note(&id, at(9)));
        assert!(!dues.note(&id, at(10)), "one looks before");
        assert!(dues.note(&id, at(5)));
        assert!(!dues.take(&id, at(9)) && dues.counts(&id, at(5)));
        assert!(dues.take(&id, at(5)));
        assert!(dues.0.lock().is_empty());
    }
}
