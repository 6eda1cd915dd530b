//! Boots a machine in a seat: limits and network first, then the root, then the guest.

use std::io;
use std::sync::Arc;

use cove_isolation::slots::Slot;
use cove_isolation::{Boot, IsolationError, MachineSpec, MakeRoot, Root};
use cove_model::Resources;
use cove_spawner::message::Start;
use cove_spawner::{boot_id, shared};
use tokio::task::spawn_blocking;

use super::found::give_back;
use super::{ContainerTier, Shared, blocking};
use crate::cgroup::MemoryLimit;
use crate::cpus::CpuBook;
use crate::machine::{self, Container, Detail, Senses};
use crate::seat::{self, Link, Seat, Volumes};
use crate::{rootfs, shown};

impl ContainerTier {
    pub(super) async fn boot_in_seat(&self, boot: Boot) -> Result<Container, IsolationError> {
        let shared = Arc::clone(&self.shared);
        let Boot {
            machine,
            root: make,
        } = boot;
        shared.capabilities().check(&machine.limits)?;
        let machine = Arc::new(machine);
        let ready = shared.take_ready();
        let runtime = tokio::runtime::Handle::current();
        let (made, root) = std::sync::mpsc::sync_channel(1);
        // While the child prepares itself the volume is made. Begun first: the other waits for it.
        let rooting = {
            let (shared, machine) = (Arc::clone(&shared), Arc::clone(&machine));
            spawn_blocking(move || {
                let _ = made.send(shared.make_root(make, &machine));
            })
        };
        let seating = {
            let shared = Arc::clone(&shared);
            blocking(move || {
                let _entered = runtime.enter();
                let seat = ready.map_or_else(|| shared.maker.make(), Ok)?;
                let cpus = shared.furnish(&seat, &machine)?;
                let root = root.recv().map_err(|error| {
                    IsolationError::failed("make the root")(io::Error::other(error))
                })??;
                shared.finish(seat, cpus, &root, &machine)
            })
        };
        // Nobody may clear a failed boot away while its volume is still being made.
        let (container, _) = tokio::join!(seating, rooting);
        let container = container?;
        shared.refill_in_background();
        Ok(container)
    }
}

impl Shared {
    /// Puts a seat's limits and network in force; nothing of the sandbox runs yet.
    fn furnish(&self, seat: &Seat, spec: &MachineSpec) -> Result<CpuHold, IsolationError> {
        let limits = &spec.limits;
        let cpus = CpuHold::take(&self.cpus, limits);
        let group = seat.group();
        let limit = |error| IsolationError::failed("set the limits")(error);
        group
            .set_memory(MemoryLimit::of(limits, limits.memory_mb))
            .map_err(limit)?;
        group.set_cpu(limits.cpu, &cpus.chosen).map_err(limit)?;
        group.set_pids(limits.pids).map_err(limit)?;
        if let Some(device) = self.host.pool_device
            && (limits.io_read_mb_s.is_some() || limits.io_write_mb_s.is_some())
        {
            let bytes = |mb: Option<u64>| mb.map(|mb| mb << 20);
            group
                .set_io(
                    device,
                    bytes(limits.io_read_mb_s),
                    bytes(limits.io_write_mb_s),
                    seat.pid(),
                )
                .map_err(limit)?;
        }
        seat.link().set(&spec.id, &spec.network)?;
        Ok(cpus)
    }

    fn make_root(&self, make: MakeRoot, spec: &MachineSpec) -> Result<Root, IsolationError> {
        let root = make()?;
        let network = self.host.network.as_ref();
        let resolver = network.map(|network| network.addresses().gateway());
        rootfs::prepare(&root.disk, &spec.hostname, resolver)
            .map_err(IsolationError::failed("prepare the disk"))?;
        Ok(root)
    }

    fn finish(
        &self,
        seat: Seat,
        cpus: CpuHold,
        root: &Root,
        spec: &MachineSpec,
    ) -> Result<Container, IsolationError> {
        let limits = &spec.limits;
        let uid_base = seat.uid_base();
        let overlay = rootfs::mount(
            root,
            &self.base_dir,
            seat.user_ns(),
            uid_base,
            &self.overlays,
        )?;
        let visible = limits.visible_cpus();
        let start = Start {
            hostname: spec.hostname.clone(),
            sandbox: spec.id.to_string(),
            boot_id: boot_id::random().map_err(IsolationError::failed("make a boot id"))?,
            cpuinfo: self.cpuinfo.for_cpus(visible),
            cpu_online: shown::cpu_online(visible),
            meminfo: shown::meminfo(limits.memory_ceiling_mb() << 20),
            shm_bytes: shared::shm_bytes(limits.memory_mb),
            open_files: limits.open_files,
            no_new_privs: spec.no_new_privs,
        };
        let volumes = Volumes {
            trees: crate::volumes::trees(&spec.volumes, seat.user_ns())?,
            paths: crate::volumes::paths(&spec.volumes),
        };
        let taken = seat.start(&start, overlay, volumes)?;
        let mut clean_up = TakenGuard {
            pidfd: taken.pidfd,
            group: taken.group,
            held: Some((taken.link, taken.slot)),
        };
        crate::volumes::check_found(&taken.mounted)?;
        let start_time = machine::start_time(taken.pid)
            .map_err(IsolationError::failed("look at PID 1"))?
            .ok_or_else(|| {
                IsolationError::failed("look at PID 1")(io::Error::other("the guest ended at once"))
            })?;
        let detail = Detail {
            pid: taken.pid,
            start_time,
            uid_base,
            cpus: cpus.chosen.clone(),
            cpu: limits.cpu,
            device: self.host.pool_device,
            guest: self.capturer.guest.clone(),
            sandbox: Some(spec.id.clone()),
            network: spec.network.clone(),
            volumes: crate::volumes::places(&spec.volumes, taken.mounted),
        };
        let pidfd = clean_up
            .pidfd
            .try_clone()
            .map_err(IsolationError::failed("keep the pidfd"))?;
        let mark = MemoryLimit::of(limits, limits.memory_mb).mark();
        let senses = Senses::open(taken.pid, pidfd, &clean_up.group, mark)?;
        let held = clean_up.held.take().expect("set above");
        cpus.keep();
        Ok(Container::new(
            detail,
            senses,
            clean_up.group.clone(),
            held,
            Arc::clone(&self.cpus),
            (Arc::clone(&self.capturer), Arc::clone(&self.retired)),
        ))
    }
}

/// CPUs that go back unless the boot succeeds.
pub(super) struct CpuHold {
    book: Arc<CpuBook>,
    pub(super) chosen: Vec<u32>,
    cpu: f64,
    kept: bool,
}

impl CpuHold {
    pub(super) fn take(book: &Arc<CpuBook>, limits: &Resources) -> Self {
        Self {
            book: Arc::clone(book),
            chosen: book.take(limits.visible_cpus(), limits.cpu),
            cpu: limits.cpu,
            kept: false,
        }
    }

    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for CpuHold {
    fn drop(&mut self) {
        if !self.kept {
            self.book.give_back(&self.chosen, self.cpu);
        }
    }
}

/// Ends a child that became a guest and was not handed on.
struct TakenGuard {
    pidfd: std::os::fd::OwnedFd,
    group: crate::cgroup::Group,
    /// Taken by the machine that it becomes.
    held: Option<(Link, Slot)>,
}

impl Drop for TakenGuard {
    fn drop(&mut self) {
        let Some((link, slot)) = self.held.take() else {
            return;
        };
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
        let removed = seat::remove_when_empty(&self.group);
        link.release();
        give_back(slot, removed);
    }
}
