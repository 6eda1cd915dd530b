//! Machines of an earlier engine: found again, or cleared away.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use cove_isolation::slots::{self, Slot};
use cove_isolation::{Adopted, IsolationError, MachineRecord, Usage};
use cove_network::Counters;

use super::{ContainerTier, Shared, blocking};
use crate::cgroup::MemoryLimit;
use crate::machine::{self, Container, Detail, Senses};
use crate::oom;
use crate::seat::{self, Link};

impl ContainerTier {
    pub(super) async fn take_over(
        &self,
        record: &MachineRecord,
    ) -> Result<Adopted, IsolationError> {
        let detail: Detail = serde_json::from_value(record.detail.clone()).map_err(|error| {
            IsolationError::failed("read the machine's record")(io::Error::other(error))
        })?;
        let shared = Arc::clone(&self.shared);
        // A reboot empties the claims; then nothing of it is left either. Should they be lost without one, the
        // sweep ends what runs.
        let number = slots::number_of_uids(detail.uid_base);
        let Some(slot) = shared.maker.slots.retake(number) else {
            return Ok(Adopted::Gone(None));
        };
        let group = shared.cgroups.existing(&slot.name());
        let Some(pidfd) =
            machine::find(&detail).map_err(IsolationError::failed("look for PID 1"))?
        else {
            let traffic = shared.traffic(&slot);
            return Ok(with_traffic(remove_remains(group, slot).await?, traffic));
        };
        let network = shared.host.network.as_ref();
        let link = match Link::of(detail.pid, pidfd.as_fd(), &slot, network) {
            Ok(link) => link,
            // It ended just now.
            Err(_) => {
                let traffic = shared.traffic(&slot);
                return Ok(with_traffic(remove_remains(group, slot).await?, traffic));
            }
        };
        let adopting = detail.clone();
        let scored = group.clone();
        let link = blocking(move || {
            // An engine of before may have given it others.
            if let Err(error) = oom::settle(&scored, adopting.pid) {
                tracing::warn!(%error, "the OOM scores of an adopted sandbox are not in order");
            }
            if let Some(sandbox) = &adopting.sandbox {
                link.adopt(sandbox, &adopting.network);
            }
            Ok(link)
        })
        .await?;
        shared.cpus.retake(&detail.cpus, detail.cpu);
        // The engine says where memory stands when it puts the limits in force again, and whether what
        // stands still was frozen, is to end, or only was in the middle of a capture and goes on.
        let senses = match Senses::open(detail.pid, pidfd, &group, MemoryLimit::NO_MARK) {
            Ok(senses) => senses,
            Err(error) => {
                // The sweep ends it, and its index may be another's next.
                link.release();
                return Err(error);
            }
        };
        let container = Container::new(
            detail,
            senses,
            group,
            (link, slot),
            Arc::clone(&shared.cpus),
            (Arc::clone(&shared.capturer), Arc::clone(&shared.retired)),
        );
        container.wake();
        Ok(Adopted::Running(Box::new(container)))
    }
}

impl Shared {
    /// What went over a slot's interface, if that is still there: it goes soon after the last process.
    fn traffic(&self, slot: &Slot) -> Counters {
        let network = self.host.network.as_ref();
        network
            .and_then(|network| network.counters(slot.network_index()).ok().flatten())
            .unwrap_or_default()
    }

    /// Ends and removes groups of this engine that no machine and no seat owns. Their slots are free,
    /// which is how they are distinguished.
    pub(super) fn sweep(&self) -> Result<u64, IsolationError> {
        let slots = &self.maker.slots;
        let mut swept = self
            .cgroups
            .remove_abandoned(|instance| slots.is_claimed_by(instance));
        let names = self
            .cgroups
            .list()
            .map_err(IsolationError::failed("list the cgroups"))?;
        for name in names {
            let Some(number) = slots::number_of_name(&name) else {
                continue;
            };
            let slot = slots.retake(number);
            // One that is taken has an owner. What has no slot of this engine belongs to nobody: the claims
            // were lost while it ran.
            if slot.is_none() && slots.owns(number) {
                continue;
            }
            let group = self.cgroups.existing(&name);
            for pid in group.processes() {
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            // On version 1 a stopped process dies only once it may go on.
            let _ = group.thaw();
            let removed = seat::remove_when_empty(&group);
            swept += u64::from(removed.is_ok());
            if let Some(slot) = slot {
                give_back(slot, removed);
            }
        }
        Ok(swept)
    }
}

/// Gives a slot back, but for one whose processes may not have ended: nobody else may have its ids.
pub(super) fn give_back(slot: Slot, emptied: io::Result<()>) {
    if let Err(error) = emptied {
        tracing::error!(%error, group = slot.name(), "a cgroup does not empty; its slot stays taken until the next start");
        std::mem::forget(slot);
    }
}

/// Adds what went over the interface to what a machine is known to have used.
fn with_traffic(adopted: Adopted, traffic: Counters) -> Adopted {
    match adopted {
        Adopted::Gone(Some(usage)) => Adopted::Gone(Some(Usage {
            network_sent_bytes: traffic.sent,
            network_received_bytes: traffic.received,
            ..usage
        })),
        adopted => adopted,
    }
}

/// Removes what a machine that ended while nobody watched left behind.
async fn remove_remains(
    group: crate::cgroup::Group,
    slot: Slot,
) -> Result<Adopted, IsolationError> {
    blocking(move || {
        let usage = group.usage().ok();
        give_back(slot, seat::remove_when_empty(&group));
        Ok(Adopted::Gone(usage))
    })
    .await
}
