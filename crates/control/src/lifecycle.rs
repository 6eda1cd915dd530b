//! Puts away what nobody uses.
//!
//! The ladder goes down one way: frozen, paused, stopped, deleted, each after its own time. Idle means: no request and no attached client, no foreground command, CPU under a threshold and no
//! network bytes lately. The decision is a pure function of what was seen; acting takes the sandbox's
//! lock and decides once more, so a request that came meanwhile wins and nothing is done twice.

mod dues;
mod ends;

pub(crate) use dues::Dues;
pub(crate) use ends::Ends;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use cove_model::{IdlePolicy, SandboxId, State, Steady};
use cove_protocol::identity::Identity;
use cove_protocol::message::ProcessKind;
use cove_store::{Moment, PAGE_MAX, PageRequest, SandboxRecord};
use tokio::task::JoinSet;

use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::leases::{Due, due};
use crate::sandboxes::is_doomed;
use crate::{Control, Sample};

/// Sandboxes put away side by side.
const AT_ONCE: usize = 16;
/// How long a sandbox whose memory could not be captured is left alone.
const PAUSE_RETRY: Duration = Duration::from_secs(600);

/// What samples showed about each sandbox.
#[derive(Default)]
pub(crate) struct Idleness {
    seen: Mutex<HashMap<SandboxId, Seen>>,
    /// When a pause was last refused: what could not be captured is not tried again at once.
    unpausable: Mutex<HashMap<SandboxId, Steady>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    at: Steady,
    cpu_usec: u64,
    network_bytes: u64,
    /// At least two samples: it is known what it did between them.
    compared: bool,
    network_at: Option<Steady>,
}

impl Idleness {
    pub fn forget(&self, id: &SandboxId) {
        self.table().remove(id);
        self.unpausable().remove(id);
    }

    /// Forgets pauses that were refused to sandboxes that are gone or have no policy any more.
    fn keep_only(&self, alive: &HashSet<SandboxId>) {
        self.unpausable().retain(|id, _| alive.contains(id));
    }

    pub fn len(&self) -> usize {
        self.table().len() + self.unpausable().len()
    }

    fn unpausable(&self) -> parking_lot::MutexGuard<'_, HashMap<SandboxId, Steady>> {
        self.unpausable.lock()
    }

    fn of(&self, id: &SandboxId) -> Option<Seen> {
        self.table().get(id).cloned()
    }

    fn table(&self) -> parking_lot::MutexGuard<'_, HashMap<SandboxId, Seen>> {
        self.seen.lock()
    }
}

/// What a sample adds: the new picture, and whether the sandbox was busy since the last one.
fn compare(
    old: Option<&Seen>,
    sample: &Sample,
    at: Steady,
    idle_cpu: f64,
    idle_bytes: u64,
) -> (Seen, bool) {
    let network_bytes = sample
        .network_sent_bytes
        .saturating_add(sample.network_received_bytes);
    let mut seen = Seen {
        at,
        cpu_usec: sample.cpu_usec,
        network_bytes,
        compared: false,
        network_at: old.and_then(|old| old.network_at),
    };
    let Some(old) = old else {
        return (seen, false);
    };
    let passed = at.since(old.at).as_micros();
    if passed == 0 {
        return (old.clone(), false);
    }
    seen.compared = true;
    let share = sample.cpu_usec.saturating_sub(old.cpu_usec) as f64 / passed as f64;
    let talked = network_bytes.saturating_sub(old.network_bytes) >= idle_bytes.max(1);
    if talked {
        seen.network_at = Some(at);
    }
    (seen, share >= idle_cpu || talked)
}

/// Everything a verdict depends on.
#[derive(Debug, Clone)]
struct Facts {
    now: Steady,
    created: Steady,
    last_active: Steady,
    state: State,
    /// Its memory could not be captured a moment ago.
    unpausable: bool,
    /// Requests and clients attached now.
    present: bool,
    /// Whether its CPU and network are known for at least one period.
    observed: bool,
    network_at: Option<Steady>,
    network_quiet: Duration,
    lease: Due,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// What its lease asks for, idle or not.
    Lease(Due),
    /// Idle for so many seconds.
    Freeze(u64),
    Pause(u64),
    Stop(u64),
    Delete(u64),
    /// It has had its time, idle or not.
    Expire(u64),
}

fn verdict(policy: &IdlePolicy, facts: &Facts) -> Verdict {
    let seconds = |since: Steady| facts.now.since(since).as_secs();
    let age = seconds(facts.created);
    if policy.max_lifetime_s.is_some_and(|limit| age >= limit) {
        return Verdict::Expire(age);
    }
    if facts.lease != Due::Nothing {
        return Verdict::Lease(facts.lease);
    }
    let quiet = facts
        .network_at
        .is_none_or(|at| facts.now.since(at) >= facts.network_quiet);
    let running = facts.state == State::Running;
    if facts.present || (running && (!facts.observed || !quiet)) {
        return Verdict::Keep;
    }
    let idle = seconds(facts.last_active);
    let past = |limit: Option<u64>| limit.is_some_and(|limit| idle >= limit);
    let awake = matches!(facts.state, State::Running | State::Frozen);
    if past(policy.delete_after_s) {
        Verdict::Delete(idle)
    } else if past(policy.stop_after_s) && (awake || facts.state == State::Paused) {
        Verdict::Stop(idle)
    } else if past(policy.pause_after_s) && awake && !facts.unpausable {
        Verdict::Pause(idle)
    } else if past(policy.freeze_after_s) && running {
        Verdict::Freeze(idle)
    } else {
        Verdict::Keep
    }
}

/// Whether it matters what a sandbox does by itself.
fn has_idle_rule(policy: &IdlePolicy) -> bool {
    let rules = [
        policy.freeze_after_s,
        policy.pause_after_s,
        policy.stop_after_s,
        policy.delete_after_s,
    ];
    rules.iter().any(Option::is_some)
}

fn has_policy(policy: &IdlePolicy) -> bool {
    *policy != IdlePolicy::default()
}

impl Control {
    /// Writes down when each sandbox was used last.
    pub(crate) async fn keep_activity(&self) -> Result<(), ControlError> {
        let seen = self.0.in_use.activity.take_seen(self.moment());
        if seen.is_empty() {
            return Ok(());
        }
        Ok(self.store().touch_sandboxes(&seen).await?)
    }

    /// One round over every sandbox of a host with a policy.
    pub(crate) async fn tick(&self, host: &Arc<Host>) -> Result<(), ControlError> {
        let (rows, own) = self.rows_with_policy(host).await?;
        let alive: HashSet<_> = rows.iter().map(|row| row.id.clone()).collect();
        host.checkpoints.keep_only(&alive);
        host.idleness.keep_only(&alive);
        host.leases.keep_only(&alive);
        let is_watched =
            |row: &SandboxRecord| row.state == State::Running && has_idle_rule(&row.spec.lifecycle);
        if rows.iter().any(is_watched) {
            self.look_at_samples(host, own.as_ref()).await?;
        }
        let mut running = JoinSet::new();
        let mut waiting = rows.into_iter();
        loop {
            while running.len() < AT_ONCE
                && let Some(row) = waiting.next()
            {
                let (control, host) = (self.clone(), Arc::clone(host));
                if self.judge(&host, &row) != Verdict::Keep {
                    running.spawn(async move { control.put_away(&host, &row.id).await });
                    continue;
                }
                let policy = &row.spec.lifecycle;
                self.expect_end(&row.id, row.created_steady, policy);
                self.expect_rest_of(&row);
                if self.checkpoint_is_due(&host, &row).await? {
                    running.spawn(async move { control.checkpoint(&host, &row.id).await });
                }
            }
            match running.join_next().await {
                None => return Ok(()),
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => tracing::warn!(%error, "cannot apply a lifecycle rule"),
                Some(Err(error)) => tracing::error!(%error, "a lifecycle rule was interrupted"),
            }
        }
    }

    /// For a node also which sandboxes are on it, with a policy or not.
    async fn rows_with_policy(
        &self,
        host: &Host,
    ) -> Result<(Vec<SandboxRecord>, Option<HashSet<SandboxId>>), ControlError> {
        let mut rows = Vec::new();
        let mut own = host.node.is_some().then(HashSet::new);
        let mut page = PageRequest {
            limit: PAGE_MAX,
            cursor: None,
        };
        loop {
            let found = self.store().sandboxes_on(&host.id, &page).await?;
            if let Some(own) = &mut own {
                own.extend(found.items.iter().map(|row| row.id.clone()));
            }
            rows.extend(found.items.into_iter().filter(|row| {
                has_policy(&row.spec.lifecycle) && !is_doomed(row) && row.state != State::Creating
            }));
            match found.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return Ok((rows, own)),
            }
        }
    }

    /// What a node says of sandboxes that are not its `own` counts for nothing.
    async fn look_at_samples(
        &self,
        host: &Host,
        own: Option<&HashSet<SandboxId>>,
    ) -> Result<(), ControlError> {
        let samples = host.runner().await?.samples().await?;
        let config = self.config();
        let mut busy = Vec::new();
        {
            let mut table = host.idleness.table();
            let mut fresh = HashMap::with_capacity(samples.len());
            for (id, sample) in samples {
                if own.is_some_and(|own| !own.contains(&id)) {
                    continue;
                }
                let steady = self.0.clocks.placed(sample.boot_time.as_ref());
                let (seen, was_busy) = compare(
                    table.get(&id),
                    &sample,
                    steady,
                    config.idle_cpu,
                    config.idle_network_bytes,
                );
                if was_busy {
                    let at = sample.at;
                    busy.push((id.clone(), Moment { at, steady }));
                }
                fresh.insert(id, seen);
            }
            // What does not run any more is not worth remembering.
            *table = fresh;
        }
        for (id, at) in busy {
            self.0.in_use.activity.note(&id, at);
        }
        Ok(())
    }

    fn judge(&self, host: &Host, row: &SandboxRecord) -> Verdict {
        let seen = host.idleness.of(&row.id);
        let now = self.steady();
        let (last, present) = self.last_used(&row.id, row.active_steady);
        let lease = row.spec.lifecycle.lease.as_ref();
        let lease = lease.map_or(Due::Nothing, |lease| {
            due(
                lease,
                host.leases.renewed(row, now),
                now,
                row.state,
                present,
            )
        });
        let facts = Facts {
            now,
            lease,
            created: row.created_steady,
            last_active: last,
            state: row.state,
            unpausable: self.is_unpausable(host, &row.id),
            present,
            observed: seen.as_ref().is_some_and(|seen| seen.compared),
            network_at: seen.and_then(|seen| seen.network_at),
            network_quiet: self.config().network_quiet,
        };
        verdict(&row.spec.lifecycle, &facts)
    }

    /// When it was used last, and whether somebody uses it now.
    fn last_used(&self, id: &SandboxId, written: Steady) -> (Steady, bool) {
        let used = self.0.in_use.activity.of(id);
        let last = used.map_or(written, |used| used.last.steady.max(written));
        (last, used.is_some_and(|used| used.present > 0))
    }

    fn is_unpausable(&self, host: &Host, id: &SandboxId) -> bool {
        let refused = host.idleness.unpausable().get(id).copied();
        refused.is_some_and(|at| self.steady().since(at) < PAUSE_RETRY)
    }

    async fn put_away(&self, host: &Host, id: &SandboxId) -> Result<(), ControlError> {
        let _turn = self.lock_sandbox(id).await?;
        let record = self.store().any_sandbox(id).await?;
        let is_here = |row: &SandboxRecord| {
            row.host == host.id && row.deleted_at.is_none() && !is_doomed(row)
        };
        let Some(record) = record.filter(is_here) else {
            return Ok(());
        };
        let decision = self.judge(host, &record);
        let idle = !matches!(
            decision,
            Verdict::Keep | Verdict::Expire(_) | Verdict::Lease(_)
        );
        if idle && record.state == State::Running && self.has_foreground_work(&record).await {
            self.0.in_use.activity.note(id, self.moment());
            return Ok(());
        }
        let (action, reason, outcome) = match decision {
            Verdict::Keep | Verdict::Lease(Due::Nothing) => return Ok(()),
            Verdict::Lease(Due::Revive) => return self.revive_lease(&record).await,
            Verdict::Lease(Due::Lapse(passed)) => {
                let reason = format!("its lease was not renewed for {passed} s");
                return self.put_away_unrenewed(host, &record, reason).await;
            }
            Verdict::Lease(Due::Delete(passed)) => {
                let reason = format!("deleted {passed} s after its lease expired");
                let deleted = self.delete_now(&record, Some(reason.clone())).await;
                ("sandbox.delete", reason, deleted)
            }
            Verdict::Freeze(idle) => {
                let reason = format!("frozen after {idle} s idle");
                let frozen = self.freeze_now(&record, Some(reason.clone())).await;
                ("sandbox.freeze", reason, frozen.map(drop))
            }
            Verdict::Pause(idle) => {
                let reason = format!("paused after {idle} s idle");
                let paused = self.pause_now(&record, Some(reason.clone())).await;
                if paused.is_err() {
                    let now = self.steady();
                    host.idleness.unpausable().insert(id.clone(), now);
                }
                ("sandbox.pause", reason, paused.map(drop))
            }
            Verdict::Stop(idle) => {
                let reason = format!("stopped after {idle} s idle");
                let grace_ms = self.config().stop_grace_ms;
                let stopped = self.stop_now(&record, grace_ms, Some(reason.clone())).await;
                ("sandbox.stop", reason, stopped.map(drop))
            }
            Verdict::Delete(idle) => {
                let reason = format!("deleted after {idle} s idle");
                let deleted = self.delete_now(&record, Some(reason.clone())).await;
                ("sandbox.delete", reason, deleted)
            }
            Verdict::Expire(age) => {
                let reason = format!("deleted at the end of its lifetime, {age} s old");
                let deleted = self.delete_now(&record, Some(reason.clone())).await;
                ("sandbox.delete", reason, deleted)
            }
        };
        let result = match &outcome {
            Ok(()) => "ok",
            Err(error) => error.code.as_str(),
        };
        self.record_deed(&record, action, reason, result).await;
        outcome
    }

    async fn record_deed(
        &self,
        record: &SandboxRecord,
        action: &'static str,
        reason: String,
        result: &str,
    ) {
        let mut operation = Operation::new(action, record.id.as_str());
        operation.detail = Some(reason);
        self.record_own(&record.org, operation, result).await;
    }

    /// Pauses it, or stops it where it cannot be paused, and writes down then that its lease ran out. A pause that fails
    /// is not repeated; the next round stops it.
    async fn put_away_unrenewed(
        &self,
        host: &Host,
        record: &SandboxRecord,
        reason: String,
    ) -> Result<(), ControlError> {
        let Some(expired) = host.leases.expire(record, self.steady()) else {
            return Ok(());
        };
        let outcome = self.rest_unrenewed(host, record, reason).await;
        let outcome = match outcome {
            Ok(kept) => self.lapse_lease(&kept).await,
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            host.leases.restore(&record.id, expired);
        }
        outcome
    }

    async fn rest_unrenewed(
        &self,
        host: &Host,
        record: &SandboxRecord,
        reason: String,
    ) -> Result<SandboxRecord, ControlError> {
        let because = Some(reason.clone());
        let (action, rested) = match record.state {
            State::Running | State::Frozen if !self.is_unpausable(host, &record.id) => {
                let paused = self.pause_now(record, because).await;
                let is_unreachable =
                    |error: &ControlError| error.code == ErrorCode::RunnerUnreachable;
                if paused.as_ref().is_err_and(|error| !is_unreachable(error)) {
                    let now = self.steady();
                    host.idleness.unpausable().insert(record.id.clone(), now);
                }
                ("sandbox.pause", paused)
            }
            State::Running | State::Frozen => {
                let grace_ms = self.config().stop_grace_ms;
                let stopped = self.stop_now(record, grace_ms, because).await;
                ("sandbox.stop", stopped)
            }
            _ => return Ok(record.clone()),
        };
        let result = match &rested {
            Ok(_) => "ok",
            Err(error) => error.code.as_str(),
        };
        self.record_deed(record, action, reason, result).await;
        rested
    }

    /// Asks the guest. One that does not answer is not working on anything worth waiting for.
    async fn has_foreground_work(&self, record: &SandboxRecord) -> bool {
        match self
            .guest_of(record)
            .within(self.config().guest_patience)
            .processes()
            .await
        {
            Ok(processes) => processes.iter().any(|process| {
                let waited_for = Identity::of(process).kind == ProcessKind::Command;
                process.exit.is_none() && (process.viewers > 0 || waited_for)
            }),
            Err(error) => {
                tracing::debug!(%error, sandbox = %record.id, "an idle guest did not answer");
                false
            }
        }
    }
}

#[cfg(test)]
#[path = "lifecycle/tests.rs"]
mod tests;
