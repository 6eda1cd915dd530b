//! Ends lifetimes on time.
//!
//! The rounds over all sandboxes are seconds apart. A lifetime that ends before the round after next has a timer of its
//! own; when it fires, the decision is made once more, as in a round. A timer that is lost costs one round.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use cove_model::{IdlePolicy, SandboxId, State, Steady};

use crate::Control;
use crate::error::ControlError;
use crate::sandboxes::Sandbox;

/// A lifetime is counted in whole seconds, and a timer may be early.
const MARGIN: Duration = Duration::from_millis(20);

/// The lifetime that each sandbox's timer is for.
#[derive(Default)]
pub(crate) struct Ends(Mutex<HashMap<SandboxId, u64>>);

impl Ends {
    /// Whether a timer is needed.
    fn note(&self, id: &SandboxId, limit: u64) -> bool {
        self.0.lock().insert(id.clone(), limit) != Some(limit)
    }

    /// Whether the timer is still the one that counts.
    fn take(&self, id: &SandboxId, limit: u64) -> bool {
        let mut ends = self.0.lock();
        let counts = ends.get(id) == Some(&limit);
        if counts {
            ends.remove(id);
        }
        counts
    }

    fn forget(&self, id: &SandboxId) {
        self.0.lock().remove(id);
    }
}

impl Control {
    pub(crate) fn expect_end_of(&self, sandbox: &Sandbox) {
        let policy = &sandbox.spec.lifecycle;
        self.expect_end(&sandbox.id, sandbox.created_steady, policy);
    }

    /// To be called whenever a lifetime is set, and in each round.
    pub(super) fn expect_end(&self, id: &SandboxId, created: Steady, policy: &IdlePolicy) {
        let ends = &self.0.in_use.ends;
        let ahead = 2 * self.config().lifecycle_every;
        let age = self.steady().since(created);
        let left = policy
            .max_lifetime_s
            .map(|limit| (limit, Duration::from_secs(limit).saturating_sub(age)))
            .filter(|(_, left)| *left <= ahead);
        let Some((limit, left)) = left else {
            ends.forget(id);
            return;
        };
        if !ends.note(id, limit) {
            return;
        }
        let (control, id) = (self.clone(), id.clone());
        self.0.tasks.changes.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(left + MARGIN) => {}
                () = control.0.tasks.closing.cancelled() => return,
            }
            if !control.0.in_use.ends.take(&id, limit) {
                return;
            }
            if let Err(error) = control.end_on_time(&id).await {
                tracing::warn!(%error, sandbox = %id, "cannot apply a maximum lifetime; retrying at the next check");
            }
        });
    }

    async fn end_on_time(&self, id: &SandboxId) -> Result<(), ControlError> {
        let Some(row) = self.store().any_sandbox(id).await? else {
            return Ok(());
        };
        if row.deleted_at.is_some() || row.state == State::Creating {
            return Ok(());
        }
        let host = self.host_of(&row.host)?;
        self.put_away(&host, id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_of_the_latest_lifetime_counts() {
        let (ends, id) = (Ends::default(), SandboxId::random());
        assert!(ends.note(&id, 5));
        assert!(!ends.note(&id, 5), "it has one");
        assert!(ends.note(&id, 9));
        assert!(!ends.take(&id, 5));
        assert!(ends.take(&id, 9));
        assert!(ends.0.lock().is_empty());
    }
}
