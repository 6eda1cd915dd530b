//! Machines of an earlier engine: found again, or cleared away.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use cove_isolation::slots::{self, Slot};
use cove_isolation::{IsolationError, Usage};
use cove_network::Counters;

use crate::boot::{Settled, Standing};
use crate::cgroup::MemoryLimit;
use crate::detail::{self, Detail};
use crate::oom;
use crate::seat;
use crate::seats::{Seats, blocking};
use crate::senses::Senses;

/// What became of a recorded machine.
pub enum Found {
    Running(Box<Settled>),
    Gone(Option<Usage>),
}

impl Seats {
    /// Finds the machine of a record again, or clears away what is left of it.
    pub async fn take_over(self: &Arc<Self>, detail: Detail) -> Result<Found, IsolationError> {
        // A reboot empties the claims; then nothing of it is left either. Should they be lost without one, the
        // sweep ends what runs.
        let number = slots::number_of_uids(detail.uid_base);
        let Some(slot) = self.maker.slots.retake(number) else {
            tracing::warn!(
                pid = detail.pid,
                slot = number,
                "the uids of a sandbox are not claimed any more; what runs of it is ended"
            );
            return Ok(Found::Gone(None));
        };
        let group = self.cgroups.existing(&slot.name());
        let Some(pidfd) =
            detail::find(&detail).map_err(IsolationError::failed("look for PID 1"))?
        else {
            let traffic = self.traffic(&slot);
            return Ok(with_traffic(remove_remains(group, slot).await?, traffic));
        };
        let link = match self.maker.link(detail.pid, pidfd.as_fd(), &slot) {
            Ok(link) => link,
            // It ended just now.
            Err(_) => {
                let traffic = self.traffic(&slot);
                return Ok(with_traffic(remove_remains(group, slot).await?, traffic));
            }
        };
        let adopting = detail.clone();
        let scored = group.clone();
        let link = blocking(move || {
            // An engine of before may have given it others.
            if let Err(error) = oom::settle(&scored, adopting.pid) {
                tracing::warn!(%error, "cannot correct the OOM scores of an adopted sandbox");
            }
            if let Some(sandbox) = &adopting.sandbox {
                link.adopt(sandbox, &adopting.network);
            }
            Ok(link)
        })
        .await?;
        // The engine says where memory stands when it puts the limits in force again, and whether what
        // stands still was frozen, is to end, or only was in the middle of a capture and goes on.
        let answerer = self.answerer(detail.pid, &slot);
        let senses = Senses::open(detail.pid, pidfd, &group, MemoryLimit::NO_MARK, answerer);
        let senses = match senses {
            Ok(senses) => senses,
            Err(error) => {
                // The sweep ends it, and its index may be another's next.
                link.release();
                return Err(error);
            }
        };
        self.cpus.retake(&detail.cpus, detail.cpu);
        Ok(Found::Running(Box::new(Settled::found(Standing {
            detail,
            senses,
            group,
            held: (link, slot),
        }))))
    }

    /// What went over a slot's interface, if that is still there: it goes soon after the last process.
    fn traffic(&self, slot: &Slot) -> Counters {
        let network = self.host.network.as_ref();
        network
            .and_then(|network| network.counters(slot.network_index()).ok().flatten())
            .unwrap_or_default()
    }

    /// Ends and removes groups of this engine that no machine and no seat owns. Their slots are free,
    /// which is how they are distinguished.
    pub(crate) fn remove_unowned(&self) -> Result<u64, IsolationError> {
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
pub(crate) fn give_back(slot: Slot, emptied: io::Result<()>) {
    if let Err(error) = emptied {
        keep_taken(slot, &error);
    }
}

/// Nobody gets this slot any more while this engine lives.
pub(crate) fn keep_taken(slot: Slot, error: &io::Error) {
    tracing::error!(%error, group = slot.name(), "a cgroup does not empty; its slot stays taken until the next start");
    std::mem::forget(slot);
}

/// Adds what went over the interface to what a machine is known to have used.
fn with_traffic(adopted: Found, traffic: Counters) -> Found {
    match adopted {
        Found::Gone(Some(usage)) => Found::Gone(Some(Usage {
            network_sent_bytes: traffic.sent,
            network_received_bytes: traffic.received,
            ..usage
        })),
        adopted => adopted,
    }
}

/// Removes what a machine that ended while nobody watched left behind.
async fn remove_remains(group: crate::cgroup::Group, slot: Slot) -> Result<Found, IsolationError> {
    blocking(move || {
        let usage = group.usage().ok();
        give_back(slot, seat::remove_when_empty(&group));
        Ok(Found::Gone(usage))
    })
    .await
}
