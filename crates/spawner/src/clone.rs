//! Making a child in new namespaces: who owns them, its uid range, its cgroup.

use std::fs;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use cove_spawner::message::{CgroupEntry, Failure, Prepare, Step};
use cove_spawner::oom;
use rustix::fs::{CWD, Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::kernel_files::KernelFiles;
use crate::{child, mounts};

/// The C library declares it too narrow for its value.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// How many ids a sandbox has.
const RANGE: u32 = 65_536;

pub struct Made {
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub user_ns: OwnedFd,
    pub socket: OwnedFd,
}

/// Lets this process take another effective uid and come back without losing its rights: the user
/// namespace must be owned by the sandbox's own base uid, so that the kernel's per-user counts
/// (inotify, keys, pipes) are the sandbox's own.
pub fn keep_capabilities_across_uids() -> Result<(), Failure> {
    use rustix::thread::{CapabilitiesSecureBits, set_capabilities_secure_bits};
    set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP)
        .step("keep capabilities across uid changes")
}

pub fn prepare(
    request: &Prepare,
    filters: &crate::seccomp::Filters,
    kernel_files: &KernelFiles,
) -> Result<Made, Failure> {
    let (engine_end, child_end) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .step("make the child's socket")?;
    // The child may go on only when its ids are mapped and its limits apply.
    let (gate_read, gate_write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step("make a pipe")?;
    let guest_dir =
        mounts::clone_read_only(&request.guest_dir).step("clone the guest's directory")?;
    let (into, shown) = cgroup_mounts(&request.cgroup)?;

    let cgroup_flags = if into.is_some() {
        CLONE_INTO_CGROUP | libc::CLONE_NEWCGROUP as u64
    } else {
        0
    };
    let flags = libc::CLONE_PIDFD as u64
        | libc::CLONE_NEWUSER as u64
        | libc::CLONE_NEWPID as u64
        | libc::CLONE_NEWNS as u64
        | libc::CLONE_NEWNET as u64
        | libc::CLONE_NEWIPC as u64
        | libc::CLONE_NEWUTS as u64
        | cgroup_flags;
    let mut pidfd: i32 = -1;
    // SAFETY: all-zero bytes are a valid clone_args.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = into.as_ref().map_or(0, |fd| fd.as_raw_fd() as u64);

    set_effective_uid(request.uid_base).step("take the sandbox's uid")?;
    // SAFETY: without CLONE_VM the child gets its own copy of memory, and this process has one thread.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const args,
            size_of::<libc::clone_args>(),
        )
    };
    if pid == 0 {
        drop((engine_end, gate_write, into));
        child::run(child::Inherited {
            socket: child_end,
            gate: gate_read,
            guest_dir,
            shown,
            unshare_cgroup: cgroup_flags == 0,
            staging: &request.staging,
            filters,
            kernel_files,
            resolver: crate::resolver::given(),
        });
    }
    let cloned = if pid < 0 {
        Err(Errno::from_raw_os_error(last_errno()))
    } else {
        Ok(pid as i32)
    };
    set_effective_uid(0).step("return to root")?;
    let pid = cloned.step("clone into new namespaces")?;
    // SAFETY: clone3 stored a fresh descriptor there because of CLONE_PIDFD.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    drop((child_end, gate_read, guest_dir, shown));

    let finish = || -> Result<OwnedFd, Failure> {
        let map = format!("0 {} {RANGE}", request.uid_base);
        fs::write(format!("/proc/{pid}/uid_map"), &map).step("map uids")?;
        fs::write(format!("/proc/{pid}/gid_map"), &map).step("map gids")?;
        // Before it may run: everything in the sandbox descends from it and inherits its minimum.
        oom::set(pid, oom::FIRST).step("set the OOM score")?;
        if let CgroupEntry::V1 { procs, .. } = &request.cgroup {
            for file in procs {
                fs::write(file, pid.to_string()).step("enter the cgroup")?;
            }
        }
        open(
            format!("/proc/{pid}/ns/user"),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .step("open the user namespace")
    };
    match finish() {
        Ok(user_ns) => {
            // The child blocks on this byte; a failed write means it died, which its socket will tell.
            let _ = rustix::io::write(&gate_write, &[1]);
            Ok(Made {
                pid,
                pidfd,
                user_ns,
                socket: engine_end,
            })
        }
        Err(failure) => {
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            Err(failure)
        }
    }
}

/// A user namespace with the ids of a sandbox, kept by its descriptor alone.
pub fn ids(uid_base: u32) -> Result<OwnedFd, Failure> {
    let mut pidfd: i32 = -1;
    // SAFETY: all-zero bytes are a valid clone_args.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_PIDFD as u64 | libc::CLONE_NEWUSER as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM the child gets its own copy of memory, and this process has one thread.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const args,
            size_of::<libc::clone_args>(),
        )
    };
    if pid == 0 {
        loop {
            // SAFETY: waits to be killed.
            unsafe { libc::pause() };
        }
    }
    if pid < 0 {
        let errno = Errno::from_raw_os_error(last_errno());
        return Err(Failure::new("clone a user namespace", errno));
    }
    // SAFETY: clone3 stored a fresh descriptor there because of CLONE_PIDFD.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let map = format!("0 {uid_base} {RANGE}");
    let made = (|| {
        fs::write(format!("/proc/{pid}/uid_map"), &map).step("map uids")?;
        fs::write(format!("/proc/{pid}/gid_map"), &map).step("map gids")?;
        open(
            format!("/proc/{pid}/ns/user"),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .step("open the user namespace")
    })();
    let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
    made
}

/// Detached mounts and the names they are shown under.
type Shown = Vec<(String, OwnedFd)>;

/// The cgroup directory to be born in (version 2), and detached mounts of what is shown inside.
fn cgroup_mounts(entry: &CgroupEntry) -> Result<(Option<OwnedFd>, Shown), Failure> {
    match entry {
        CgroupEntry::V1 { shown, .. } => {
            let mut mounts = Vec::with_capacity(shown.len());
            for (dir, name) in shown {
                mounts.push((
                    name.clone(),
                    mounts::clone_read_only(dir).step("clone the cgroup's directory")?,
                ));
            }
            Ok((None, mounts))
        }
        CgroupEntry::V2 { dir } => {
            let into = openat(
                CWD,
                dir.as_str(),
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .step("open the cgroup")?;
            let shown = mounts::clone_read_only(dir).step("clone the cgroup's directory")?;
            Ok((Some(into), vec![(String::new(), shown)]))
        }
    }
}

fn set_effective_uid(uid: u32) -> Result<(), Errno> {
    let keep = u32::MAX;
    // SAFETY: changes credentials of this single-threaded process only.
    match unsafe { libc::syscall(libc::SYS_setresuid, keep, uid, keep) } {
        0 => Ok(()),
        _ => Err(Errno::from_raw_os_error(last_errno())),
    }
}

pub fn last_errno() -> i32 {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// A detached copy of the mount at `path`, so that it can be attached in another namespace.
pub fn detached(path: &str) -> Result<OwnedFd, Errno> {
    open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
}
