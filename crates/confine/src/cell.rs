//! Namespaces and a root directory of a program's own, entered before it looks at the first byte.
//!
//! ```text
//! parent (root) ── exec ──► stage 1: root, own namespaces
//!                              │  the future root directory, as a mount that is attached nowhere
//!                              └─ fork ──► stage 2: PID 1 of its own, that root directory, ids that own
//!                                          nothing on the host, at most a few capabilities over them,
//!                                          no new privileges
//! ```
//! A directory that sandboxes use is mounted with its ids shifted, so that stage 2's range appears on disk
//! as 0 to 65535. Stage 2's mount and network namespaces belong to the user namespace of the host, where
//! it has no capability (but for [`RootDirectory::HostDirectory`]). Each stage is killed when its parent dies. What
//! is missing afterwards is the list of system calls, [`crate::seccomp::allow_only`].

mod roots;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, OFlags};
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, UnmountFlags, mount_change, move_mount, unmount,
};
use rustix::process::{Pid, PidfdFlags, Resource, Signal, WaitOptions, waitpid};
use rustix::thread::CapabilitySet;

use crate::rights::{
    become_user, forbid_new_rights, keep_across_ids, keep_capabilities, limit_resources,
};
use crate::{ConfineError, check, step};

/// Ids in one range; the same in every sandbox.
pub const RANGE: u32 = 65_536;

/// What becomes the root directory of stage 2.
#[derive(Debug, Clone, Copy)]
pub enum RootDirectory<'a> {
    /// The working directory, writable. Only for [`Identity::Range`].
    WorkingDirectory,
    /// These directories as one, the first above the others. Nothing can be changed in them. Only for
    /// [`Identity::Range`].
    Layers(&'a [PathBuf]),
    /// The working directory, one of the host's own, read-only, with the ids it has: they may be beyond any
    /// sandbox's, and its file system one whose ids cannot be shifted.
    HostDirectory,
    /// An empty directory in which nothing can be made.
    Nothing,
}

/// Whom stage 2 becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Root of a user namespace over the [`RANGE`] of ids that begins here.
    Range(u32),
    /// An unprivileged uid (and gid) of the host.
    User(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    None,
    /// The host's own, for programs whose work is to dial.
    Host,
}

/// What stage 1 builds around stage 2.
#[derive(Debug, Clone, Copy)]
pub struct Walls<'a> {
    pub place: RootDirectory<'a>,
    pub identity: Identity,
    pub network: Network,
}

/// What is left to stage 2.
#[derive(Debug, Clone, Copy)]
pub struct Rights {
    pub address_space: u64,
    pub open_files: u64,
    /// The longest file it may write.
    pub file_bytes: u64,
    /// Over its range of ids alone; over the host's files with [`Identity::User`].
    pub capabilities: CapabilitySet,
}

/// What stage 1 prepared and stage 2 enters.
pub struct Cell {
    identity: Prepared,
    tree: OwnedFd,
    /// Readable once stage 1 is gone.
    guardian: OwnedFd,
}

enum Prepared {
    RootInside(OwnedFd),
    User(u32),
}

pub enum Stage {
    /// In stage 1: the process that does the work, for [`wait`] or [`guard`].
    Outside { worker: Pid },
    /// In stage 2, not confined yet; for [`lock`].
    Inside(Cell),
}

/// Ends this process when the thread that started it ends; fails where `parent` is gone already.
pub fn die_with_parent(parent: u32) -> Result<(), ConfineError> {
    step(
        "parent-death signal",
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    match rustix::process::getppid().is_some_and(|pid| pid.as_raw_pid() as u32 == parent) {
        true => Ok(()),
        false => step("parent", Err("the parent is gone already")),
    }
}

/// Prepares the walls and forks the process that goes in. Returns twice, once in each process. Must be
/// called while the program has one thread.
pub fn enter(walls: Walls<'_>) -> Result<Stage, ConfineError> {
    let identity = match walls.identity {
        Identity::Range(base) => Prepared::RootInside(user_namespace(base)?),
        Identity::User(0) => return step("ids", Err("root is not an unprivileged user")),
        Identity::User(uid) => Prepared::User(uid),
    };
    let shifted = || match &identity {
        Prepared::RootInside(namespace) => Ok(namespace.as_fd()),
        Prepared::User(_) => step("root directory", Err("it needs a range of ids")),
    };
    // Copies can be made only of mounts of the namespace that is left below.
    let copies = match walls.place {
        RootDirectory::Layers(layers) => roots::copy(layers, shifted()?)?,
        RootDirectory::WorkingDirectory | RootDirectory::HostDirectory | RootDirectory::Nothing => {
            Vec::new()
        }
    };
    let network = match walls.network {
        Network::None => libc::CLONE_NEWNET,
        Network::Host => 0,
    };
    let flags = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP
        | network;
    // SAFETY: unshare takes flags only; the program has one thread and shares no state by them.
    step("namespaces", check(unsafe { libc::unshare(flags) }.into()))?;
    let propagation = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("private mounts", mount_change("/", propagation))?;
    let tree = match walls.place {
        RootDirectory::WorkingDirectory => roots::working_directory(shifted()?)?,
        RootDirectory::Layers(_) => roots::join(copies)?,
        RootDirectory::HostDirectory => roots::host_directory()?,
        RootDirectory::Nothing => roots::nothing()?,
    };
    let guardian = step(
        "process descriptor",
        rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()),
    )?;
    Ok(match fork()? {
        Some(worker) => Stage::Outside { worker },
        None => Stage::Inside(Cell {
            identity,
            tree,
            guardian,
        }),
    })
}

/// Goes into the cell. Afterwards only the list of system calls is missing. Returns the root directory.
pub fn lock(cell: Cell, rights: Rights) -> Result<OwnedFd, ConfineError> {
    let Cell {
        identity,
        tree,
        guardian,
    } = cell;
    step(
        "attaching the root",
        move_mount(&tree, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH),
    )?;
    step("entering the root", rustix::process::fchdir(&tree))?;
    step("changing the root", rustix::process::pivot_root(".", "."))?;
    step("leaving the old root", unmount(".", UnmountFlags::DETACH))?;
    step("entering the new root", rustix::process::chdir("/"))?;
    drop(tree);
    match identity {
        Prepared::RootInside(user_namespace) => {
            // SAFETY: setns takes a descriptor and a flag.
            let joined = unsafe { libc::setns(user_namespace.as_raw_fd(), libc::CLONE_NEWUSER) };
            step("user namespace", check(joined.into()))?;
            step("ids", become_user(0, 0))?;
            // The modes of an archive must arrive as they are.
            rustix::process::umask(rustix::fs::Mode::empty());
        }
        Prepared::User(uid) => {
            step("ids", keep_across_ids())?;
            step("ids", become_user(uid, uid))?;
        }
    }
    let limits = [
        (Resource::As, Some(rights.address_space)),
        (Resource::Nofile, Some(rights.open_files)),
        (Resource::Fsize, Some(rights.file_bytes)),
        (Resource::Core, Some(0)),
        (Resource::Memlock, Some(0)),
    ];
    step("resource limits", limit_resources(&limits))?;
    step("capabilities", keep_capabilities(rights.capabilities))?;
    step("new privileges", forbid_new_rights())?;
    // Only now: a change of ids clears the signal.
    step(
        "parent-death signal",
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    if is_readable(guardian.as_fd()) {
        return step("parent", Err("the parent is gone already"));
    }
    drop(guardian);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    step(
        "opening the root",
        rustix::fs::open("/", flags, rustix::fs::Mode::empty()),
    )
}

/// In stage 1: waits for the worker's end. Its exit status, or `None` when a signal ended it, which is said
/// on standard error.
pub fn wait(worker: Pid) -> Option<u8> {
    let ended = waitpid(Some(worker), WaitOptions::empty()).ok().flatten();
    let (_, status) = ended?;
    if let Some(signal) = status.terminating_signal() {
        eprintln!("killed by signal {signal}");
    }
    status
        .exit_status()
        .and_then(|code| u8::try_from(code).ok())
}

/// In stage 1: waits for the worker's end, and ends it when the parent closed its end of the socket. Whether
/// the worker ended well.
pub fn guard(worker: Pid, parent: BorrowedFd<'_>) -> io::Result<bool> {
    let ended = rustix::process::pidfd_open(worker, PidfdFlags::empty())?;
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
            // Without events: a closed peer is always reported.
            PollFd::from_borrowed_fd(parent, PollFlags::empty()),
        ];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result?,
        };
        if fds[1].revents().contains(PollFlags::HUP) {
            let _ = rustix::process::kill_process(worker, Signal::KILL);
        }
        if let Some((_, status)) = waitpid(Some(worker), WaitOptions::NOHANG)? {
            return Ok(status.exit_status() == Some(0));
        }
        if fds[1].revents().contains(PollFlags::HUP) {
            waitpid(Some(worker), WaitOptions::empty())?;
            return Ok(false);
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // When in doubt the parent counts as gone.
    poll(&mut fds, Some(&now)).map_or(true, |ready| ready > 0)
}

/// A user namespace that maps 0..65536 to the range. Its maps must be written from outside, so a
/// short-lived child makes it and waits until they are.
fn user_namespace(uid_base: u32) -> Result<OwnedFd, ConfineError> {
    let (ready, made) = step("pipe", std::io::pipe())?;
    let (release, hold) = step("pipe", std::io::pipe())?;
    let Some(child) = fork()? else {
        drop((ready, hold));
        // SAFETY: unshare takes flags only; this child has one thread.
        let unshared = unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0;
        if unshared && { made }.write_all(b"m").is_ok() {
            // Ends when the parent closes its end, also by dying.
            let _ = { release }.read(&mut [0]);
        }
        // SAFETY: ends this process at once, without running anything the parent registered.
        unsafe { libc::_exit(0) }
    };
    drop((made, release));
    let result = (|| {
        step("user namespace", { ready }.read_exact(&mut [0]))?;
        let pid = child.as_raw_pid();
        let map = format!("0 {uid_base} {RANGE}\n");
        step("uid map", fs::write(format!("/proc/{pid}/uid_map"), &map))?;
        step("gid map", fs::write(format!("/proc/{pid}/gid_map"), &map))?;
        step(
            "user namespace",
            fs::File::open(format!("/proc/{pid}/ns/user")),
        )
    })();
    drop(hold);
    let _ = waitpid(Some(child), WaitOptions::empty());
    result.map(OwnedFd::from)
}

/// The child's pid in the parent, `None` in the child.
fn fork() -> Result<Option<Pid>, ConfineError> {
    // SAFETY: the program has one thread, so the child may go on using everything.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return step("fork", Err(io::Error::last_os_error()));
    }
    Ok(Pid::from_raw(pid))
}
