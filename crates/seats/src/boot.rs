//! Boots a machine in a seat: limits and network first, then the root, then the guest.

use std::io;
use std::sync::Arc;

use cove_isolation::slots::Slot;
use cove_isolation::{Boot, BootTurn, CpuBook, IsolationError, MachineSpec, MakeRoot, Root};
use cove_model::Resources;
use cove_spawner::message::{Keeper, Start};
use cove_spawner::{boot_id, shared};
use tokio::task::spawn_blocking;

use crate::cgroup::{Group, MemoryLimit};
use crate::detail::{self, Detail};
use crate::found::give_back;
use crate::reach::Answerer;
use crate::seat::{self, Link, Seat, Volumes};
use crate::seats::{Seats, blocking};
use crate::senses::Senses;
use crate::supervised::Supervised;
use crate::{rootfs, shown};

/// What the child of a seat becomes.
pub enum Becomes {
    /// The guest itself, in the root, with few rights and filtered system calls.
    Guest,
    /// The keeper of a program that runs the guest on a kernel of its own.
    Keeper(Keeper),
    /// The supervisor of a virtual machine, which has a disk instead of a tree.
    Supervised(Supervised),
}

/// The parts of a machine that runs.
pub struct Standing {
    pub detail: Detail,
    pub senses: Senses,
    pub group: Group,
    /// What goes back when it is cleared away.
    pub held: (Link, Slot),
}

/// A machine that runs, for the tier to take over. One that was booted and is dropped before that is ended, so that
/// its slot is never another's while it runs. That waits, so one that leaves a thread that may wait is marked with
/// [`Settled::on_its_way`].
pub struct Settled {
    parts: Option<Standing>,
    /// What it gives its CPUs back to; absent for one that was running before.
    booted: Option<Arc<CpuBook>>,
    on_its_way: bool,
}

impl Settled {
    /// Of a machine that this engine booted.
    pub fn booted(parts: Standing, cpus: &Arc<CpuBook>) -> Self {
        Self {
            parts: Some(parts),
            booted: Some(Arc::clone(cpus)),
            on_its_way: false,
        }
    }

    /// Of a machine of an earlier engine, which goes on whatever happens.
    pub fn found(parts: Standing) -> Self {
        Self {
            parts: Some(parts),
            booted: None,
            on_its_way: false,
        }
    }

    pub fn group(&self) -> &Group {
        &self.parts.as_ref().expect("only `take` takes them").group
    }

    /// Handed to an async caller, who may have left: dropped from now on it is ended on a thread that may wait.
    pub fn on_its_way(mut self) -> Self {
        self.on_its_way = true;
        self
    }

    /// On a thread that may wait again: dropped here it has ended when that returns.
    pub fn arrived(mut self) -> Self {
        self.on_its_way = false;
        self
    }

    pub(crate) fn take(mut self) -> Standing {
        self.parts.take().expect("only this takes them")
    }
}

impl Drop for Settled {
    fn drop(&mut self) {
        let (Some(parts), Some(cpus)) = (self.parts.take(), &self.booted) else {
            return;
        };
        if self.on_its_way
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // Ended here after all if the runtime takes no more work.
            let settled = Self::booted(parts, cpus);
            runtime.spawn_blocking(move || drop(settled));
            return;
        }
        let Standing {
            detail,
            senses,
            group,
            held: (link, slot),
        } = parts;
        let pidfd = senses.pidfd.get_ref();
        let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
        let removed = seat::remove_when_empty(&group);
        link.release();
        give_back(slot, removed);
        cpus.give_back(&detail.cpus, detail.cpu);
    }
}

impl Seats {
    /// Boots PID 1; the child of the seat becomes what is told. The tier has checked the limits.
    pub async fn boot(
        self: &Arc<Self>,
        boot: Boot,
        becomes: Becomes,
    ) -> Result<Settled, IsolationError> {
        let Boot {
            machine,
            root: make,
            turn,
        } = boot;
        let turn = match turn {
            None => self.turn(machine.owner.as_deref()).await?,
            taken => taken,
        };
        let machine = Arc::new(machine);
        let ready = self.take_ready();
        let runtime = tokio::runtime::Handle::current();
        let (made, root) = std::sync::mpsc::sync_channel(1);
        // While the child prepares itself the volume is made. Begun first: the other waits for it.
        let rooting = {
            let (seats, machine) = (Arc::clone(self), Arc::clone(&machine));
            let is_tree = !matches!(becomes, Becomes::Supervised(_));
            spawn_blocking(move || {
                let _ = made.send(seats.make_root(make, &machine, is_tree));
            })
        };
        let seating = {
            let seats = Arc::clone(self);
            blocking(move || {
                let _entered = runtime.enter();
                // Goes back when the boot is over, also if nobody waits for it any more.
                let _turn = turn;
                let seat = ready.map_or_else(|| seats.maker.make(), Ok)?;
                let cpus = seats.furnish(&seat, &machine)?;
                let root = root.recv().map_err(|error| {
                    IsolationError::failed("make the root")(io::Error::other(error))
                })??;
                let settled = seats.finish(seat, cpus, &root, &machine, becomes)?;
                Ok(settled.on_its_way())
            })
        };
        // Nobody may clear a failed boot away while its volume is still being made.
        let (settled, _) = tokio::join!(seating, rooting);
        let settled = settled?;
        self.refill_in_background();
        Ok(settled)
    }

    /// A turn to boot, where this tier boots only so many at once.
    pub async fn turn(&self, owner: Option<&str>) -> Result<Option<BootTurn>, IsolationError> {
        match &self.turns {
            Some(turns) => turns.take(owner).await.map(Some),
            None => Ok(None),
        }
    }

    /// Who answers at the guest's socket of a machine in this slot.
    pub fn answerer(&self, pid: i32, slot: &Slot) -> Answerer {
        match self.own_kernel {
            true => Answerer::Uids(slot.uids()),
            false => Answerer::Process(pid),
        }
    }

    /// Puts a seat's limits and network in force; nothing of the sandbox runs yet.
    pub(crate) fn furnish(
        &self,
        seat: &Seat,
        spec: &MachineSpec,
    ) -> Result<CpuHold, IsolationError> {
        let limits = &spec.limits;
        let cpus = CpuHold::take(&self.cpus, limits);
        let group = seat.group();
        let limit = |error| IsolationError::failed("set the limits")(error);
        group
            .set_memory(MemoryLimit::of(limits, limits.memory_mb))
            .map_err(limit)?;
        group.set_cpu(limits.cpu, &cpus.chosen).map_err(limit)?;
        let tasks = self.task_cost.of(limits.pids);
        group.set_pids(tasks).map_err(limit)?;
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

    fn make_root(
        &self,
        make: MakeRoot,
        spec: &MachineSpec,
        is_tree: bool,
    ) -> Result<Root, IsolationError> {
        let root = make()?;
        if !is_tree {
            return Ok(root);
        }
        if rootfs::is_block(&root.disk) {
            return Err(IsolationError::Unsupported(
                "the disk is a block image of the tier 'vm', which no other tier can read; use isolation vm".into(),
            ));
        }
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
        becomes: Becomes,
    ) -> Result<Settled, IsolationError> {
        let limits = &spec.limits;
        let uid_base = seat.uid_base();
        let (tree, others, keeper) = match becomes {
            Becomes::Supervised(supervised) => {
                let given = supervised.give(&seat, root)?;
                (given.programs, given.others, Some(given.keeper))
            }
            becomes => {
                let (user_ns, overlays) = (seat.user_ns(), &self.overlays);
                let overlay = rootfs::mount(root, &self.base_dir, user_ns, uid_base, overlays)?;
                let volumes = Volumes {
                    trees: crate::volumes::trees(&spec.volumes, user_ns)?,
                    paths: crate::volumes::paths(&spec.volumes),
                };
                let keeper = match becomes {
                    Becomes::Keeper(keeper) => Some(keeper),
                    _ => None,
                };
                (overlay, volumes, keeper)
            }
        };
        let start = self.start_of(spec)?;
        let mut taken = seat.start(&start, tree, others, keeper.as_ref())?;
        let (pid, mounted) = (taken.pid, std::mem::take(&mut taken.mounted));
        let mut clean_up = TakenGuard::of(taken);
        crate::volumes::check_found(&mounted)?;
        let start_time = detail::start_time(pid)
            .map_err(IsolationError::failed("look at PID 1"))?
            .ok_or_else(|| {
                IsolationError::failed("look at PID 1")(io::Error::other("the guest ended at once"))
            })?;
        let installed = self.maker.programs.name();
        let guest = installed.map_err(IsolationError::failed("find the guest"))?;
        let detail = Detail {
            pid,
            start_time,
            uid_base,
            cpus: cpus.chosen.clone(),
            cpu: limits.cpu,
            device: self.host.pool_device,
            guest,
            sandbox: Some(spec.id.clone()),
            network: spec.network.clone(),
            volumes: crate::volumes::places(&spec.volumes, mounted),
        };
        let pidfd = clean_up
            .pidfd
            .try_clone()
            .map_err(IsolationError::failed("keep the pidfd"))?;
        let mark = MemoryLimit::of(limits, limits.memory_mb).mark();
        let held = clean_up.held.as_ref().expect("set above");
        let answerer = self.answerer(pid, &held.1);
        let senses = Senses::open(pid, pidfd, &clean_up.group, mark, answerer)?;
        let held = clean_up.held.take().expect("set above");
        cpus.keep();
        let parts = Standing {
            detail,
            senses,
            group: clean_up.group.clone(),
            held,
        };
        Ok(Settled::booted(parts, &self.cpus))
    }

    pub(crate) fn start_of(&self, spec: &MachineSpec) -> Result<Start, IsolationError> {
        let limits = &spec.limits;
        let visible = limits.visible_cpus();
        Ok(Start {
            hostname: spec.hostname.clone(),
            sandbox: spec.id.to_string(),
            boot_id: boot_id::random().map_err(IsolationError::failed("make a boot id"))?,
            cpuinfo: self.cpuinfo.for_cpus(visible),
            cpu_online: shown::cpu_online(visible),
            meminfo: shown::meminfo(limits.memory_ceiling_mb() << 20),
            shm_bytes: shared::shm_bytes(limits.memory_mb),
            open_files: limits.open_files,
            no_new_privs: spec.no_new_privs,
        })
    }
}

/// CPUs that go back unless the boot succeeds.
pub struct CpuHold {
    book: Arc<CpuBook>,
    pub chosen: Vec<u32>,
    cpu: f64,
    kept: bool,
}

impl CpuHold {
    pub fn take(book: &Arc<CpuBook>, limits: &Resources) -> Self {
        Self {
            book: Arc::clone(book),
            chosen: book.take(limits.visible_cpus(), limits.cpu),
            cpu: limits.cpu,
            kept: false,
        }
    }

    pub fn keep(mut self) {
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
pub(crate) struct TakenGuard {
    pidfd: std::os::fd::OwnedFd,
    group: crate::cgroup::Group,
    /// Taken by the machine that it becomes.
    held: Option<(Link, Slot)>,
}

impl TakenGuard {
    pub(crate) fn of(taken: seat::Taken) -> Self {
        Self {
            pidfd: taken.pidfd,
            group: taken.group,
            held: Some((taken.link, taken.slot)),
        }
    }
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
