//! What nobody may have of this host, whatever the control side says: it speaks for tenants, and an unknown sender
//! may have taken it over. Quotas of organisations are its business; these are the operator's settings and
//! the host's own limits.

use cove_gateway::host::is_operators;
use cove_model::network::{Cidr, Entry};
use cove_model::{NetworkPolicy, Resources};
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
                    "the network policy lists {block}, which the settings of this host open to nobody; the operator can open it with private_ranges"
                );
                return Err(RunnerError::Unsupported { message });
            }
        }
        Ok(())
    }

    /// Process numbers are the whole host's; a sandbox with all of them is everybody's end.
    pub(crate) fn check_pids(&self, limits: &Resources) -> Result<(), RunnerError> {
        let most = host_pids() / PIDS_PART;
        if limits.pids <= most {
            return Ok(());
        }
        let message = format!(
            "{} processes were asked for, and a sandbox of this host may have {most}; kernel.pid_max decides",
            limits.pids
        );
        Err(RunnerError::Unsupported { message })
    }
}

fn host_pids() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    text.trim().parse().unwrap_or(PIDS_USUAL)
}

fn within(block: Cidr, ranges: &[Cidr]) -> bool {
    ranges.iter().any(|range| block.lies_within(*range))
}
