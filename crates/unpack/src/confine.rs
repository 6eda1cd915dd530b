//! How the program locks itself in before it looks at the first byte of the archive.
//!
//! ```text
//! parent (root) ── exec ──► stage 1: root, own namespaces
//!                              │  user namespace, idmapped copy of the target's mount
//!                              └─ fork ──► stage 2: PID 1 of its own, root directory = the target,
//!                                          a reserved uid range, a few capabilities over that range,
//!                                          no new privileges, a list of system calls
//! ```
//! The mount is idmapped, so that stage 2's range appears on disk as 0 to 65535. Its mount and
//! network namespaces belong to the user namespace of the host, where it has no capability at
//! all. Each stage is killed when its parent dies.

mod layers;
mod privileges;
mod seccomp;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::CWD;
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_change, move_mount,
    open_tree, unmount,
};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::report::Failure;

/// Ids in one range; the same in every sandbox.
pub const RANGE: u32 = 65_536;

/// What becomes the root directory of stage 2.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// The working directory, writable.
    WorkingDirectory,
    /// These directories as one, the first above the others. Nothing can be changed in them.
    Layers(&'a [PathBuf]),
    /// A directory of the host's own, read-only, with the ids it has: they may be beyond any sandbox's, and
    /// its file system one whose ids cannot be shifted. Stage 2 then stays in the host's user namespace, as
    /// the first uid of its range.
    HostDirectory,
    /// An empty directory in which nothing can be made.
    Nothing,
}

/// What is left to stage 2.
#[derive(Debug, Clone, Copy)]
pub struct Rights<'a> {
    /// The longest file it may write.
    pub file_bytes: u64,
    /// A set of the kernel's first 32 capabilities, over the range of ids alone.
    pub capabilities: u32,
    pub calls: &'a [libc::c_long],
}

impl Rights<'static> {
    /// What unpacking an archive takes.
    pub fn to_unpack(file_bytes: u64) -> Self {
        Self {
            file_bytes,
            capabilities: privileges::KEPT,
            calls: seccomp::ALLOWED,
        }
    }
}

/// What stage 1 prepared and stage 2 enters.
pub struct Cell {
    identity: Identity,
    tree: OwnedFd,
    /// Readable once stage 1 is gone.
    guardian: OwnedFd,
}

/// Whom stage 2 becomes.
enum Identity {
    /// Root of a user namespace over its range.
    RootInside(OwnedFd),
    /// An unprivileged uid of the host.
    User(u32),
}

pub enum Stage {
    /// In stage 1: the process that does the work.
    Outside { worker: Pid },
    /// In stage 2, not confined yet.
    Inside(Cell),
}

fn step<T, E: std::fmt::Display>(step: &str, result: Result<T, E>) -> Result<T, Failure> {
    result.map_err(|error| Failure::Confine {
        step: step.to_owned(),
        reason: error.to_string(),
    })
}

/// Prepares the namespaces around the place and forks the process that goes in. Returns twice, once in
/// each process. Must be called while the program has one thread.
pub fn enter(parent: u32, uid_base: u32, place: Place<'_>) -> Result<Stage, Failure> {
    // Whatever the parent has open and did not mean to hand on.
    // SAFETY: the program has just begun; nothing of it uses a descriptor besides the standard ones.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    step("other descriptors", check(closed as libc::c_int))?;
    step(
        "parent-death signal",
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    let alive = rustix::process::getppid().is_some_and(|pid| pid.as_raw_pid() as u32 == parent);
    if !alive {
        return step("parent", Err("the parent is gone already"));
    }
    let user_namespace = user_namespace(uid_base)?;
    // Copies can be made only of mounts of the namespace that is left below.
    let copies = match place {
        Place::Layers(layers) => layers::copy(layers, user_namespace.as_fd())?,
        Place::WorkingDirectory | Place::HostDirectory | Place::Nothing => Vec::new(),
    };
    let flags = libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    // SAFETY: unshare takes flags only; the program has one thread and shares no state by them.
    step("namespaces", check(unsafe { libc::unshare(flags) }))?;
    let propagation = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    step("private mounts", mount_change("/", propagation))?;
    let tree = match place {
        Place::WorkingDirectory => working_directory(&user_namespace)?,
        Place::Layers(_) => layers::join(copies)?,
        Place::HostDirectory => layers::host_directory()?,
        Place::Nothing => layers::nothing()?,
    };
    let guardian = step(
        "process descriptor",
        rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()),
    )?;
    match fork()? {
        Some(worker) => Ok(Stage::Outside { worker }),
        None => Ok(Stage::Inside(Cell {
            identity: match place {
                Place::HostDirectory => Identity::User(uid_base),
                _ => Identity::RootInside(user_namespace),
            },
            tree,
            guardian,
        })),
    }
}

fn working_directory(user_namespace: &OwnedFd) -> Result<OwnedFd, Failure> {
    let tree = step(
        "copy of the target's mount",
        open_tree(
            CWD,
            ".",
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
        ),
    )?;
    step(
        "idmapped mount",
        privileges::map_mount(tree.as_fd(), user_namespace.as_fd(), false),
    )?;
    Ok(tree)
}

/// Goes into the cell; afterwards strangers' bytes may be read. Returns the root directory.
pub fn lock(cell: Cell, rights: Rights<'_>) -> Result<OwnedFd, Failure> {
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
        Identity::RootInside(user_namespace) => {
            step("user namespace", privileges::join(user_namespace.as_fd()))?;
            step("ids", privileges::become_root_inside())?;
        }
        Identity::User(uid) => step("ids", privileges::become_user(uid))?,
    }
    step(
        "resource limits",
        privileges::limit_resources(rights.file_bytes),
    )?;
    step("capabilities", privileges::keep(rights.capabilities))?;
    // Only now: a change of ids clears the signal.
    step(
        "parent-death signal",
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)),
    )?;
    if privileges::is_readable(guardian.as_fd()) {
        return step("parent", Err("the parent is gone already"));
    }
    drop(guardian);
    let root = step(
        "opening the root",
        rustix::fs::open(
            "/",
            rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        ),
    )?;
    step("system call filter", seccomp::install(rights.calls))?;
    Ok(root)
}

/// A user namespace that maps 0..65536 to the range. Its maps must be written from outside, so a
/// short-lived child makes it and waits until they are.
fn user_namespace(uid_base: u32) -> Result<OwnedFd, Failure> {
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
    let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
    result.map(OwnedFd::from)
}

/// The child's pid in the parent, `None` in the child.
fn fork() -> Result<Option<Pid>, Failure> {
    // SAFETY: the program has one thread, so the child may go on using everything.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return step("fork", Err(std::io::Error::last_os_error()));
    }
    Ok(Pid::from_raw(pid))
}

fn check(result: libc::c_int) -> std::io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
