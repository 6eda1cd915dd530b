//! Seats whose child becomes a supervisor: of a virtual machine, or of work that is done once, for a disk.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cove_isolation::{IsolationError, MachineSpec, Root};
use cove_spawner::message::{Keeper, Supervisor};
use rustix::fs::{Mode, OFlags};

use crate::boot::TakenGuard;
use crate::rootfs;
use crate::seat::{Seat, Volumes};
use crate::seats::Seats;

/// What the supervisor is told, and the descriptors that this speaks of.
pub struct Work {
    pub arguments: Vec<String>,
    pub descriptors: Vec<OwnedFd>,
    /// Further ones, after the interface of a machine.
    pub saved: Vec<OwnedFd>,
}

/// A machine under a supervisor.
pub struct Supervised {
    /// The tree of programs that it runs.
    pub programs: PathBuf,
    /// A device file to show as `/dev/kvm`, if the machine has KVM; QEMU has no rights and must be able to open it.
    pub kvm: Option<PathBuf>,
    /// Gets the first process, so that a boot can be given up.
    pub first: Arc<OnceLock<OwnedFd>>,
    /// Opens the machine's disk. May wait. The interface comes after its descriptors, or something else where there
    /// is none; it says which.
    pub work: MakeWork,
}

/// Is told whether there is an interface.
pub type MakeWork = Box<dyn FnOnce(&Root, bool) -> Result<Work, IsolationError> + Send>;

/// What a seat is started with.
pub(crate) struct Given {
    pub programs: OwnedFd,
    pub others: Volumes,
    pub keeper: Keeper,
}

impl Supervised {
    pub(crate) fn give(self, seat: &Seat, root: &Root) -> Result<Given, IsolationError> {
        let tap = seat.link().tap()?;
        let mut work = (self.work)(root, tap.is_some())?;
        let last = match tap {
            Some(tap) => Ok(tap),
            None => nothing(),
        };
        work.descriptors
            .push(last.map_err(IsolationError::failed("open /dev/null"))?);
        work.descriptors.append(&mut work.saved);
        let first = seat.pidfd().try_clone_to_owned();
        let first = first.map_err(IsolationError::failed("keep the pidfd"))?;
        let _ = self.first.set(first);
        let kvm = self.kvm.as_deref().map(rootfs::device).transpose();
        let kvm = kvm.map_err(IsolationError::failed("open /dev/kvm"))?;
        given(&self.programs, (None, kvm), work)
    }
}

fn nothing() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/null", flags, Mode::empty())?)
}

fn given(
    programs: &std::path::Path,
    (root, kvm): (Option<OwnedFd>, Option<OwnedFd>),
    work: Work,
) -> Result<Given, IsolationError> {
    let keeper = Keeper::Supervisor(Supervisor {
        shows_root: root.is_some(),
        shows_kvm: kvm.is_some(),
        arguments: work.arguments,
    });
    let mut trees = Vec::from_iter(root);
    trees.extend(kvm);
    trees.extend(work.descriptors.into_iter().chain(work.saved));
    Ok(Given {
        programs: rootfs::programs(programs)
            .map_err(IsolationError::failed("open the programs"))?,
        others: Volumes {
            trees,
            paths: Vec::new(),
        },
        keeper,
    })
}

impl Seats {
    /// Has a supervisor do something with a tree, seen as a sandbox would see it, in a seat of its own; returns when
    /// it is done. `work` is told which user and group of the host the supervisor is. May wait.
    pub fn do_once(
        &self,
        spec: &MachineSpec,
        root: &Root,
        (programs, patience): (&std::path::Path, Duration),
        work: impl FnOnce(u32) -> Result<Work, IsolationError>,
    ) -> Result<(), IsolationError> {
        let mut seat = self.maker.make()?;
        seat.wait_longer(patience);
        let _cpus = self.furnish(&seat, spec)?;
        rootfs::prepare_restore(&root.disk).map_err(IsolationError::failed("prepare the disk"))?;
        let (user_ns, uid_base) = (seat.user_ns(), seat.uid_base());
        let tree = rootfs::mount(root, &self.base_dir, user_ns, uid_base, &self.overlays)?;
        let given = given(programs, (Some(tree), None), work(uid_base)?)?;
        let start = self.start_of(spec)?;
        let taken = seat.start(&start, given.programs, given.others, Some(&given.keeper))?;
        // It is over, or ends here.
        drop(TakenGuard::of(taken));
        Ok(())
    }
}
