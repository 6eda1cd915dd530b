//! The tier's side of a restore: everything the copy owns is made first, limits included.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use cove_isolation::{Boot, IsolationError, MachineSpec, Restore, Root};
use cove_model::Resources;
use cove_seats::cgroup::{Group, MemoryLimit};
use cove_seats::seat::{self, Link};
use cove_seats::{
    Answerer, CpuHold, Detail, Senses, Settled, Standing, blocking, guest_program, oom, rootfs,
    start_time, volumes,
};
use cove_spawner::shared;

use super::{ContainerTier, Shared};
use crate::machine::Container;
use crate::restore::{self, RestorePlan};
use crate::{boot_id, shared_memory};

/// What CRIU itself takes in the sandbox's cgroup while it works there.
const CRIU_MEMORY_MB: u64 = 128;
const CRIU_PIDS: u64 = 32;

impl ContainerTier {
    pub(super) async fn bring_back(
        &self,
        restore: Restore,
        only_prove: bool,
    ) -> Result<Option<Container>, IsolationError> {
        let Restore { boot, memory } = restore;
        // Boots of this tier wait for no turn.
        let Boot {
            machine,
            root,
            turn: _,
        } = boot;
        self.shared.capabilities().check(&machine.limits)?;
        self.shared.capturer.program()?;
        let shared = Arc::clone(&self.shared);
        let runtime = tokio::runtime::Handle::current();
        blocking(move || {
            let _entered = runtime.enter();
            let root = root()?;
            let plan = Copy {
                spec: &machine,
                root: &root,
                memory: &memory,
                only_prove,
            };
            shared.revive(&plan)
        })
        .await
    }
}

/// What to bring back, and as what.
struct Copy<'a> {
    spec: &'a MachineSpec,
    root: &'a Root,
    memory: &'a Path,
    only_prove: bool,
}

/// A link that loses its rules unless a machine took it over.
#[derive(Default)]
struct LinkGuard(RefCell<Option<Link>>);

impl Drop for LinkGuard {
    fn drop(&mut self) {
        if let Some(link) = self.0.take() {
            link.release();
        }
    }
}

/// Ends whatever runs in a group and removes it, unless a machine took it over.
struct GroupGuard {
    group: Group,
    kept: bool,
}

impl Drop for GroupGuard {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for pid in self.group.processes() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        if let Err(error) = seat::remove_when_empty(&self.group) {
            tracing::warn!(%error, "the cgroup of a failed restore stays behind until the next sweep");
        }
    }
}

impl Shared {
    fn revive(&self, copy: &Copy<'_>) -> Result<Option<Container>, IsolationError> {
        let &Copy {
            spec,
            root,
            memory,
            only_prove,
        } = copy;
        let limits = &spec.limits;
        check_size(memory, limits)?;
        let places = volumes::of_memory(memory, &spec.volumes)?;
        let slot = self
            .seats
            .maker
            .slots
            .take()
            .map_err(IsolationError::failed("claim a uid range"))?
            .ok_or(IsolationError::Exhausted("uid range"))?;
        let group = self
            .seats
            .cgroups
            .create(&slot.name())
            .map_err(IsolationError::failed("make the cgroup"))?;
        // Dropped before the slot, so that no other sandbox gets it while something still runs.
        let link = LinkGuard::default();
        let mut guard = GroupGuard { group, kept: false };
        let group = guard.group.clone();
        let cpus = CpuHold::take(&self.seats.cpus, limits);
        let limit = |error| IsolationError::failed("set the limits")(error);
        // While CRIU works in the group it needs room besides the sandbox, and all of the CPU.
        let roomy = limits.memory_ceiling_mb() + CRIU_MEMORY_MB;
        group
            .set_memory(MemoryLimit {
                now_bytes: roomy << 20,
                ceiling_bytes: roomy << 20,
            })
            .map_err(limit)?;
        group.set_pids(limits.pids + CRIU_PIDS).map_err(limit)?;

        rootfs::prepare_restore(&root.disk).map_err(IsolationError::failed("prepare the disk"))?;
        let ids = self.seats.maker.spawner.ids(slot.uid_base())?;
        let overlay = rootfs::mount(
            root,
            &self.seats.base_dir,
            ids.as_fd(),
            slot.uid_base(),
            &self.seats.overlays,
        )?;
        let trees = volumes::trees(&spec.volumes, ids.as_fd())?;
        let guest_dir = guest_program::of_memory(&self.seats.runtime_dir, memory)
            .map_err(IsolationError::failed("find the guest of the memory"))?;
        let guest = guest_dir
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let plan = RestorePlan {
            memory,
            hostname: &spec.hostname,
            uid_base: slot.uid_base(),
            ids: ids.as_fd(),
            group: &group,
            open_files: limits.open_files,
            shm_bytes: shared::shm_bytes(limits.memory_mb),
            guest_dir: guest_dir.to_string_lossy().into_owned(),
            only_prove,
            volumes: &trees,
            places: &places,
        };
        let network = self.seats.host.network.as_ref();
        let attach = |first: &restore::Restored| {
            let made = Link::of(first.pid, first.pidfd.as_fd(), &slot, network)
                .map_err(IsolationError::failed("open the network namespace"))?;
            let attached = made.furnish(&slot);
            link.0.replace(Some(made));
            attached
        };
        let restored = restore::restore(&self.capturer, &plan, overlay, attach, |first| {
            shared_memory::limit(first.pid, plan.shm_bytes)
                .map_err(IsolationError::failed("limit the shared memory"))?;
            boot_id::renew(first.pid, &spec.id)
                .map_err(IsolationError::failed("give the copy a boot id"))?;
            oom::settle(&group, first.pid).map_err(IsolationError::failed("set the OOM scores"))?;
            if let Some(link) = link.0.borrow().as_ref() {
                link.set(&spec.id, &spec.network)?;
            }
            self.put_in_force(&group, limits, &cpus.chosen)
        })?;
        let Some(restored) = restored else {
            return Ok(None);
        };
        // CRIU is gone from the group, and what it took with it.
        memory_within(&group, limits, 0)?;
        group
            .hold_memory(MemoryLimit::of(limits, limits.memory_mb))
            .map_err(limit)?;
        let start_time = start_time(restored.pid)
            .map_err(IsolationError::failed("look at PID 1"))?
            .ok_or_else(|| {
                IsolationError::failed("look at PID 1")(io::Error::other("the guest ended at once"))
            })?;
        let mark = MemoryLimit::of(limits, limits.memory_mb).mark();
        let senses = Senses::open(
            restored.pid,
            restored.pidfd,
            &group,
            mark,
            Answerer::Process(restored.pid),
        )?;
        let link = link.0.take().ok_or_else(|| {
            let missing = io::Error::other("criu did not report the namespaces");
            IsolationError::failed("attach the network")(missing)
        })?;
        let detail = Detail {
            pid: restored.pid,
            start_time,
            uid_base: slot.uid_base(),
            cpus: cpus.chosen.clone(),
            cpu: limits.cpu,
            device: self.seats.host.pool_device,
            guest,
            sandbox: Some(spec.id.clone()),
            network: spec.network.clone(),
            volumes: places,
        };
        guard.kept = true;
        cpus.keep();
        let parts = Standing {
            detail,
            senses,
            group,
            held: (link, slot),
        };
        let settled = Settled::booted(parts, &self.seats.cpus);
        Ok(Some(self.container(settled)))
    }

    /// The limits as asked for, while every process of the copy stands still.
    fn put_in_force(
        &self,
        group: &Group,
        limits: &Resources,
        cpus: &[u32],
    ) -> Result<(), IsolationError> {
        let limit = |error| IsolationError::failed("set the limits")(error);
        // CRIU is still in the group: until it is gone the limit is held at what is in use.
        let needed = memory_within(group, limits, CRIU_MEMORY_MB)?;
        let mut memory = MemoryLimit::of(limits, limits.memory_mb);
        memory.ceiling_bytes = memory.ceiling_bytes.max(needed);
        group.hold_memory(memory).map_err(limit)?;
        group.set_cpu(limits.cpu, cpus).map_err(limit)?;
        group.set_pids(limits.pids).map_err(limit)?;
        if let Some(device) = self.seats.host.pool_device
            && (limits.io_read_mb_s.is_some() || limits.io_write_mb_s.is_some())
        {
            let bytes = |mb: Option<u64>| mb.map(|mb| mb << 20);
            let (read, write) = (bytes(limits.io_read_mb_s), bytes(limits.io_write_mb_s));
            // Version 1 takes processes into this group one by one; none of them can fork now.
            for pid in group.processes() {
                group.set_io(device, read, write, pid).map_err(limit)?;
            }
        }
        Ok(())
    }
}

/// Refuses memory that cannot fit before anything is made for it.
fn check_size(memory: &Path, limits: &Resources) -> Result<(), IsolationError> {
    let bytes: u64 = std::fs::read_dir(memory)
        .map_err(IsolationError::failed("open the captured memory"))?
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with(crate::capture::PAGES)
        })
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum();
    if bytes > limits.memory_ceiling_mb() << 20 {
        return Err(IsolationError::LimitBelowUse {
            field: "memory_mb",
            used: bytes.div_ceil(1 << 20),
            wanted: limits.memory_ceiling_mb(),
        });
    }
    Ok(())
}

/// What the group uses and cannot give back, when the limits have room for it.
fn memory_within(
    group: &Group,
    limits: &Resources,
    besides_mb: u64,
) -> Result<u64, IsolationError> {
    let usage = group
        .usage()
        .map_err(IsolationError::failed("read the cgroup"))?;
    let needed = usage
        .memory_bytes
        .saturating_sub(usage.memory_reclaimable_bytes);
    if needed > (limits.memory_ceiling_mb() + besides_mb) << 20 {
        return Err(IsolationError::LimitBelowUse {
            field: "memory_mb",
            used: needed.div_ceil(1 << 20),
            wanted: limits.memory_ceiling_mb(),
        });
    }
    Ok(needed)
}
