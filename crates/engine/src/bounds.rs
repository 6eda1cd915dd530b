//! What nobody may have of this host, whatever the control side says: it speaks for tenants, and an unknown sender
//! may have taken it over. Quotas of organisations are its business; these are the operator's settings and
//! the host's own limits.

use cove_gateway::host::is_operators;
use cove_isolation::{Capabilities, IsolationError};
use cove_model::network::{Cidr, Entry};
use cove_model::{ISOLATION_BY_STRENGTH, NetworkPolicy, Resources, SandboxSpec};
use cove_runner_api::RunnerError;

use crate::engine::Inner;

/// The part of the host's process numbers that one sandbox may ask for.
const PIDS_PART: u64 = 8;
/// Where there is no telling how many the host has.
const PIDS_USUAL: u64 = 32_768;

impl Inner {
    /// Refuses a policy that opens a network of the operator's that the settings do not open to anybody.
    pub(crate) fn check_reach(&self, policy: &NetworkPolicy) -> Result<(), RunnerError> {
        for block in policy.entries().filter_map(Entry::addresses) {
            if is_operators(block) && !within(block, &self.config.private_ranges) {
                let message = format!(
                    "the network policy lists {block}, which the settings of this host do not allow; the operator can allow it with private_ranges"
                );
                return Err(RunnerError::Unsupported { message });
            }
        }
        Ok(())
    }

    /// Refuses a tier that the operator does not allow to the owner of a new sandbox.
    pub(crate) fn check_allowed(
        &self,
        owner: Option<&str>,
        spec: &SandboxSpec,
    ) -> Result<(), RunnerError> {
        let rule = self.config.isolation.rule_of(owner);
        let asked = spec.isolation.as_str();
        let missing = rule.missing_for(spec.accel_in_force());
        if missing.is_none() && (rule.allows(asked) || !ISOLATION_BY_STRENGTH.contains(&asked)) {
            // A tier that does not exist is refused with the names of those that do.
            return Ok(());
        }
        let tier = match missing {
            Some(missing) => format!("{missing}, and so accel 'software',"),
            None => asked.to_owned(),
        };
        let message = format!(
            "the settings of this host do not allow isolation {tier} here, only {}; the operator decides by isolation and isolation_of",
            rule.allowed.join(" or ")
        );
        Err(RunnerError::Unsupported { message })
    }
}

/// Process numbers are the whole host's: one sandbox must not be able to take all of them. Counts what processes
/// inside cost outside.
pub(crate) fn check_tasks(
    capabilities: &Capabilities,
    limits: &Resources,
) -> Result<(), IsolationError> {
    let most = host_pids() / PIDS_PART;
    let cost = capabilities.task_cost;
    if cost.of(limits.pids) <= most {
        return Ok(());
    }
    let most = most.saturating_sub(cost.fixed) / cost.per_process.max(1);
    Err(IsolationError::Unsupported(format!(
        "{} processes were asked for, and a sandbox of this tier may have {most} on this host; kernel.pid_max decides",
        limits.pids
    )))
}

fn host_pids() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    text.trim().parse().unwrap_or(PIDS_USUAL)
}

fn within(block: Cidr, ranges: &[Cidr]) -> bool {
    ranges.iter().any(|range| block.lies_within(*range))
}
