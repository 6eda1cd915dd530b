//! Watches one running machine: its end, and what the kernel says about its memory.

use std::sync::Arc;
use std::time::Duration;

use cove_isolation::{IsolationError, Machine, MemoryEvent, Usage};
use cove_model::EventKind;
use cove_model::lifecycle::Step;

use crate::record::Durability;
use crate::sandbox::Sandbox;
use crate::visitors::Visitors;

/// Elastic memory grows by a quarter of what it is, at least this much.
const GROWTH_MIN_MB: u64 = 64;
/// Pause between attempts to open a metadata endpoint that could not be opened.
const DOOR_RETRY: Duration = Duration::from_secs(5);
/// How often a machine's remains are tried to be removed before that is left to the next sweep.
const DISPOSE_TRIES: u32 = 3;

/// Runs until the machine has ended and is cleared away.
pub async fn run(sandbox: Arc<Sandbox>, machine: Arc<dyn Machine>, visitors: Arc<Visitors>) {
    let mut listening = true;
    let reopening = reopen_door(&sandbox, machine.as_ref(), &visitors);
    tokio::pin!(reopening);
    loop {
        tokio::select! {
            () = machine.exited() => break,
            () = &mut reopening => {}
            event = machine.memory_event(), if listening => match event {
                Ok(event) => on_memory(&sandbox, machine.as_ref(), event).await,
                Err(error) => {
                    // The group goes with the machine, and its files can vanish first.
                    tracing::debug!(sandbox = %sandbox.id, %error, "the memory of a sandbox is no longer watched");
                    listening = false;
                }
            },
        }
    }
    on_exit(&sandbox, machine.as_ref()).await;
}

/// Opens the metadata endpoint of a sandbox that should have one and has none, as soon as that is possible: a
/// program inside may hold its port. Does not return, so that nothing that is awaited beside it is cut off.
async fn reopen_door(sandbox: &Sandbox, machine: &dyn Machine, visitors: &Arc<Visitors>) {
    while sandbox.lacks_door() {
        tokio::time::sleep(DOOR_RETRY).await;
        match visitors.open(&sandbox.id, machine).await {
            Ok(door) => {
                sandbox.set_door(Some(door));
                tracing::info!(sandbox = %sandbox.id, "the metadata endpoint is open again");
            }
            Err(error) => tracing::debug!(
                sandbox = %sandbox.id, error = crate::error::chain(&error),
                "cannot open the metadata endpoint yet"
            ),
        }
    }
    std::future::pending().await
}

async fn on_memory(sandbox: &Sandbox, machine: &dyn Machine, event: MemoryEvent) {
    let _limits = sandbox.limits.lock().await;
    let record = sandbox.record();
    let now_mb = record.grown_mb.unwrap_or(record.limits.memory_mb);
    let ceiling = record.limits.memory_ceiling_mb();
    let usage = machine.usage().await.unwrap_or_default();
    match event {
        MemoryEvent::OomKilled { kills } => {
            sandbox.emit(EventKind::Oom {
                kills,
                limit_mb: now_mb,
                peak_mb: usage.memory_peak_bytes >> 20,
            });
            // One that could not grow was held where it was; what was killed made room to try again.
            if now_mb < ceiling
                && let Err(error) = machine.grow_memory(&record.limits, now_mb).await
            {
                tracing::warn!(sandbox = %sandbox.id, %error, "the memory of a sandbox cannot grow any more");
            }
        }
        MemoryEvent::Pressure => {
            if now_mb >= ceiling {
                return;
            }
            let needed = usage
                .memory_bytes
                .saturating_sub(usage.memory_reclaimable_bytes);
            let wanted = wanted(now_mb, needed.div_ceil(1 << 20)).min(ceiling);
            if let Err(error) = grow(sandbox, machine, now_mb, wanted).await {
                tracing::warn!(sandbox = %sandbox.id, %error, "cannot grow the memory of a sandbox");
            }
        }
    }
}

fn larger(mb: u64) -> u64 {
    mb + (mb / 4).max(GROWTH_MIN_MB)
}

/// At least one step, and as many as leave room above what is needed already.
fn wanted(now_mb: u64, needed_mb: u64) -> u64 {
    let mut mb = larger(now_mb);
    while mb < larger(needed_mb) {
        mb = larger(mb);
    }
    mb
}

async fn grow(
    sandbox: &Sandbox,
    machine: &dyn Machine,
    now_mb: u64,
    wanted_mb: u64,
) -> Result<(), IsolationError> {
    let record = sandbox.record();
    let promise = |mb: u64| {
        let mut promise = sandbox.run_promise.lock();
        let promise = promise.as_mut()?;
        promise.change(record.limits.cpu, mb).is_ok().then_some(mb)
    };
    // A host that cannot give all may still give one step.
    let admitted = promise(wanted_mb).or_else(|| promise(larger(now_mb).min(wanted_mb)));
    let Some(to_mb) = admitted else {
        // The host has no more to give: the kernel must kill here, not at the maximum.
        let mut settled = record.limits.clone();
        settled.memory_max_mb = Some(now_mb);
        settled.memory_mb = settled.memory_mb.min(now_mb);
        return machine.grow_memory(&settled, now_mb).await;
    };
    machine.grow_memory(&record.limits, to_mb).await?;
    if let Err(error) = sandbox.update(Durability::Written, |record| record.grown_mb = Some(to_mb))
    {
        tracing::warn!(sandbox = %sandbox.id, %error, "cannot record grown memory");
    }
    sandbox.emit(EventKind::MemoryGrown {
        from_mb: now_mb,
        to_mb,
    });
    Ok(())
}

async fn on_exit(sandbox: &Sandbox, machine: &dyn Machine) {
    // A socket inside keeps the namespace, which must be gone when the machine is disposed of.
    sandbox.close_door().await;
    let usage = machine.usage().await.unwrap_or_default();
    for attempt in 1..=DISPOSE_TRIES {
        match machine.dispose().await {
            Ok(()) => break,
            Err(error) => {
                tracing::warn!(sandbox = %sandbox.id, attempt, %error, "cannot remove the remains of a machine")
            }
        }
    }
    sandbox.run_promise.lock().take();
    let asked = sandbox.record().reason;
    let reason = asked.or_else(|| Some("PID 1 ended".into()));
    let stepped = sandbox.advance(Step::Exited, reason, Durability::Written, |record| {
        record.machine = None;
        record.grown_mb = None;
        add_past(record, &usage);
    });
    // Also when the step was refused.
    sandbox.set_machine(None);
    if let Err(error) = stepped {
        tracing::error!(sandbox = %sandbox.id, %error, "cannot record the end of a machine");
    }
}

pub fn add_past(record: &mut crate::record::Record, usage: &Usage) {
    record.past_cpu_usec += usage.cpu_usec;
    record.past_oom_kills += usage.oom_kills;
    record.past_network_sent_bytes += usage.network_sent_bytes;
    record.past_network_received_bytes += usage.network_received_bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_past_what_is_needed_already_and_by_a_step_at_least() {
        assert_eq!(wanted(64, 10), 128);
        assert_eq!(wanted(1024, 1000), 1280);
        let far = wanted(64, 700);
        assert!((764..=1100).contains(&far), "{far}");
    }
}
