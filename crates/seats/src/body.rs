//! What is done to a machine in a seat: limits, policy, freezing, its end. All of it may wait, but for what says
//! that it does not.

use std::io;
use std::net::{SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use cove_isolation::slots::Slot;
use cove_isolation::{CpuBook, IsolationError, TaskCost, Usage};
use cove_model::{NetworkPolicy, Resources};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use tokio::io::unix::AsyncFd;

use crate::boot::{Settled, Standing};
use crate::cgroup::{Group, MemoryLimit, MemoryWatch};
use crate::detail::Detail;
use crate::found::keep_taken;
use crate::reach::{GuestSocket, connect_to_first, open_root};
use crate::retired::Retired;
use crate::seat::{self, Link};
use crate::seats::Seats;

pub struct Body {
    /// Held for moments only: whoever asks for the record does not wait.
    detail: Mutex<Detail>,
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    group: Group,
    task_cost: TaskCost,
    cpus: Arc<CpuBook>,
    retired: Arc<Retired>,
    /// Where memory in use calls for growth; see [`MemoryLimit::mark`].
    mark: tokio::sync::watch::Sender<u64>,
    /// Held while limits or the policy are changed.
    changing: Mutex<()>,
    /// What goes back when it is cleared away.
    held: Mutex<Option<LinkAndSlot>>,
    /// Nobody will want its disk any more.
    unwanted: AtomicBool,
    /// It was told to end; its processes may run until [`Body::dispose`] succeeds.
    ending: AtomicBool,
}

struct LinkAndSlot {
    link: Link,
    slot: Slot,
}

impl Body {
    /// The body of a machine, the way to its guest, and what tells about its memory.
    pub fn of(settled: Settled, seats: &Seats) -> (Self, GuestSocket, MemoryWatch) {
        let Standing {
            detail,
            senses,
            group,
            held: (link, slot),
        } = settled.take();
        let body = Self {
            detail: Mutex::new(detail),
            pid: senses.pid,
            pidfd: senses.pidfd,
            group,
            task_cost: seats.task_cost,
            cpus: Arc::clone(&seats.cpus),
            retired: Arc::clone(&seats.retired),
            mark: senses.mark,
            changing: Mutex::default(),
            held: Mutex::new(Some(LinkAndSlot { link, slot })),
            unwanted: AtomicBool::new(false),
            ending: AtomicBool::new(false),
        };
        (body, senses.reach, senses.watch)
    }

    /// Does not wait.
    pub fn detail(&self) -> Detail {
        self.detail.lock().clone()
    }

    pub fn group(&self) -> &Group {
        &self.group
    }

    pub async fn exited(&self) {
        // A pidfd never stops being readable once the process ended, so errors cannot hide an exit.
        let _ = self.pidfd.readable().await;
    }

    /// A guest that is quiet for a capture takes calls again. Does not wait.
    pub fn wake(&self) {
        wake(self.pidfd.get_ref());
    }

    /// Does not wait.
    pub fn discard(&self) {
        self.unwanted.store(true, Ordering::Release);
    }

    pub fn kill(&self) -> io::Result<()> {
        self.ending.store(true, Ordering::Release);
        if self.unwanted.swap(false, Ordering::AcqRel)
            && let Ok(root) = open_root(self.pid)
            && seat::is_alive(self.pidfd.get_ref().as_fd())
        {
            self.retired.hold(root);
        }
        let frozen = || self.group.is_asked_to_freeze().unwrap_or(false);
        if frozen() {
            // What stands still must never run again, not even for the moment between the end of
            // PID 1 and its own: its disk belongs to the memory that was captured of it. None of
            // these can end by itself, so their numbers are theirs.
            for pid in self.group.processes() {
                if let Some(pid) = Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
            }
        }
        match pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL) {
            // It ended, and what was in its namespace is ending.
            Err(rustix::io::Errno::SRCH) => {}
            other => other?,
        }
        // On version 1 a stopped process dies only once it may go on. On version 2 it dies at once, and the
        // group may be removed before this looks at it again.
        match frozen() {
            true => self.group.thaw().or_else(gone_is_well),
            false => Ok(()),
        }
    }

    pub fn usage(&self) -> Result<Usage, IsolationError> {
        let mut usage = self
            .group
            .usage()
            .map_err(IsolationError::failed("read the cgroup"))?;
        if let Some(held) = self.held.lock().as_ref() {
            (usage.network_sent_bytes, usage.network_received_bytes) = held.link.counters();
        }
        Ok(usage)
    }

    pub fn listen(&self, address: SocketAddrV4) -> Result<TcpListener, IsolationError> {
        let step = || IsolationError::failed("listen inside");
        match self.held.lock().as_ref() {
            Some(held) => held.link.listen(address).map_err(step()),
            None => Err(step()(io::Error::other("the machine has ended"))),
        }
    }

    pub fn set_network(&self, policy: NetworkPolicy) -> Result<(), IsolationError> {
        let _changing = self.changing.lock();
        let sandbox = self.detail().sandbox;
        match (self.held.lock().as_ref(), &sandbox) {
            (Some(held), Some(sandbox)) => held.link.set(sandbox, &policy)?,
            _ => {
                return Err(IsolationError::failed("set the network policy")(
                    io::Error::other("the machine has no network any more"),
                ));
            }
        }
        self.detail.lock().network = policy;
        Ok(())
    }

    pub fn resize(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        let _changing = self.changing.lock();
        let usage = self.usage()?;
        let needed = usage
            .memory_bytes
            .saturating_sub(usage.memory_reclaimable_bytes);
        if memory_mb << 20 < needed {
            return Err(IsolationError::LimitBelowUse {
                field: "memory_mb",
                used: needed.div_ceil(1 << 20),
                wanted: memory_mb,
            });
        }
        if self.task_cost.of(limits.pids) < usage.pids {
            return Err(IsolationError::LimitBelowUse {
                field: "pids",
                used: usage.pids,
                wanted: limits.pids,
            });
        }
        let failed = |error| IsolationError::failed("change the limits")(error);
        let memory = MemoryLimit::of(limits, memory_mb);
        self.group.set_memory(memory).map_err(failed)?;
        self.mark.send_replace(memory.mark());
        self.group
            .set_pids(self.task_cost.of(limits.pids))
            .map_err(failed)?;
        let Detail { cpus, cpu, .. } = self.detail();
        if cpu != limits.cpu {
            self.cpus.give_back(&cpus, cpu);
            let cpus = self.cpus.take(limits.visible_cpus(), limits.cpu);
            self.group.set_cpu(limits.cpu, &cpus).map_err(failed)?;
            let mut detail = self.detail.lock();
            detail.cpus = cpus;
            detail.cpu = limits.cpu;
        }
        Ok(())
    }

    pub fn reapply(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        let _changing = self.changing.lock();
        let failed = |error| IsolationError::failed("set the limits")(error);
        let memory = MemoryLimit::of(limits, memory_mb);
        self.group.hold_memory(memory).map_err(failed)?;
        self.mark.send_replace(memory.mark());
        self.group
            .set_pids(self.task_cost.of(limits.pids))
            .map_err(failed)?;
        let detail = self.detail();
        self.group.set_cpu(detail.cpu, &detail.cpus).map_err(failed)
    }

    pub fn grow_memory(&self, limits: &Resources, grown_mb: u64) -> Result<(), IsolationError> {
        let _changing = self.changing.lock();
        let memory = MemoryLimit::of(limits, grown_mb);
        self.group
            .hold_memory(memory)
            .map_err(IsolationError::failed("grow the memory"))?;
        self.mark.send_replace(memory.mark());
        Ok(())
    }

    pub fn freeze(&self) -> Result<(), IsolationError> {
        self.group
            .freeze()
            .map_err(IsolationError::failed("freeze the sandbox"))
    }

    pub fn thaw(&self) -> Result<(), IsolationError> {
        self.group
            .thaw()
            .map_err(IsolationError::failed("thaw the sandbox"))
    }

    /// Connects to what the first process listens at, for packets.
    pub fn connect(&self, path: &str) -> io::Result<OwnedFd> {
        let connection = connect_to_first(self.pid, path)?;
        // Its number could be another's by now.
        match seat::is_alive(self.pidfd.get_ref().as_fd()) {
            true => Ok(connection),
            false => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// Lets a frozen one go on for its capture: the guest has to hear of it.
    pub fn let_go_for_capture(&self) -> Result<Stillness, IsolationError> {
        let pidfd = self
            .pidfd
            .get_ref()
            .try_clone()
            .map_err(IsolationError::failed("keep the pidfd"))?;
        let freeze = self.group.is_asked_to_freeze().unwrap_or(false);
        if freeze {
            self.thaw()?;
        }
        Ok(Stillness {
            pidfd,
            group: self.group.clone(),
            freeze,
        })
    }

    pub fn dispose(&self) -> Result<(), IsolationError> {
        self.ending.store(true, Ordering::Release);
        seat::remove_when_empty(&self.group)
            .map_err(IsolationError::failed("remove the cgroup"))?;
        let Some(LinkAndSlot { link, slot }) = self.held.lock().take() else {
            return Ok(());
        };
        // Rules must be gone before the slot is another's.
        link.release();
        drop(slot);
        let detail = self.detail.lock();
        self.cpus.give_back(&detail.cpus, detail.cpu);
        Ok(())
    }
}

impl Drop for Body {
    /// What was not cleared away may still run, so nobody else gets its slot in the life of this engine. A sweep
    /// that is still under way when the engine is dropped would take it for left over by its free slot.
    fn drop(&mut self) {
        let Some(LinkAndSlot { link: _, slot }) = self.held.get_mut().take() else {
            return;
        };
        if self.ending.load(Ordering::Acquire) {
            keep_taken(slot, &io::Error::other("it was not cleared away"));
        } else {
            std::mem::forget(slot);
        }
    }
}

/// Lets the guest take calls again, and the machine stand still again if it did before, however a
/// capture ends. Dropped where it may wait.
pub struct Stillness {
    pidfd: OwnedFd,
    group: Group,
    pub freeze: bool,
}

impl Drop for Stillness {
    fn drop(&mut self) {
        wake(&self.pidfd);
        if self.freeze
            && let Err(error) = self.group.freeze()
        {
            tracing::warn!(%error, "cannot freeze a machine again after its capture");
        }
    }
}

/// The group was removed, which happens only when none of its processes is left.
fn gone_is_well(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

fn wake(pidfd: &OwnedFd) {
    // One that is gone needs no waking.
    let _ = pidfd_send_signal(pidfd, Signal::USR1);
}
