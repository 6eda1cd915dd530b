//! From a fresh clone to PID 1 of a sandbox.
//!
//! Two halves. *Park*: everything that does not depend on the image — ids, proc, sysfs, terminals, a
//! small tmpfs for our own files, covers over what nobody inside should see (`kernel_files`) — so that a parked child
//! can wait in a pool. *Become*: the root arrives as a detached mount, the prepared trees move into
//! it, the process pivots, gives up its rights and turns into the guest.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use cove_spawner::message::{ChildReply, Failure, Keeper, MountPoints, Start, Step};
use cove_spawner::{boot_id, shared};
use cove_wire::packet;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};

use crate::kernel_files::KernelFiles;
use crate::seccomp::Filters;
use crate::{keeper, lockdown, mounts, resolver, supervise, volumes};

pub struct Inherited<'a> {
    pub socket: OwnedFd,
    pub gate: OwnedFd,
    pub guest_dir: OwnedFd,
    /// Own cgroup directories as detached mounts; an empty name is the version 2 hierarchy.
    pub shown: Vec<(String, OwnedFd)>,
    pub unshare_cgroup: bool,
    pub staging: &'a str,
    pub filters: &'a Filters,
    pub kernel_files: &'a KernelFiles,
    /// Where sandboxes send queries for names.
    pub resolver: Option<Ipv4Addr>,
}

/// What a parked child keeps open for its start.
struct Parked {
    /// Moved by its descriptor: at its place something else lies over it.
    sys: OwnedFd,
    /// The setting that limits shared segments, which cannot be opened any more afterwards.
    segments: Option<fs::File>,
}

/// Terminals a sandbox may have. The kernel has a few thousand for the whole host, so that without a
/// share of its own one sandbox could take every other's.
const TERMINALS_MAX: &str = "256";
/// System V queues and semaphores outlive their makers, so they may take a few megabytes only.
const MESSAGE_QUEUES: &str = "256";
const SEMAPHORES: &str = "32000 32000 500 1024";
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 512;

/// Never returns: the process becomes the guest or ends.
pub fn run(inherited: Inherited<'_>) -> ! {
    let outcome = (|| {
        // The gate: nothing may happen before ids are mapped and limits apply.
        let mut byte = [0];
        if rustix::io::read(&inherited.gate, &mut byte).step("wait for the go-ahead")? == 0 {
            std::process::exit(0);
        }
        let parked = park(&inherited)?;
        packet::send(&inherited.socket, &ChildReply::Parked, &[])
            .step("report that it is parked")?;
        let Some((start, mut fds)) =
            packet::receive::<Start>(&inherited.socket).step("wait for the start")?
        else {
            // The engine is gone or has no use for this one.
            std::process::exit(0);
        };
        if fds.is_empty() {
            return Err(Failure::new("receive the root", Errno::BADF));
        }
        let keeper = keeper::among(&mut fds)?;
        let others = fds.split_off(1);
        let root = fds.remove(0);
        match &keeper {
            None => become_guest(&inherited, &start, root, others, &parked),
            Some(Keeper::Runsc(_)) if !others.is_empty() => Err(Failure::new(
                "mount volumes under a keeper",
                Errno::OPNOTSUPP,
            )),
            Some(Keeper::Runsc(keeper)) => {
                furnish(&inherited, &start, &parked)?;
                keeper::run(inherited.staging, &inherited.socket, &start, keeper, root)
            }
            Some(Keeper::Supervisor(supervisor)) => {
                furnish(&inherited, &start, &parked)?;
                let given = (root, others);
                supervise::run(inherited.staging, &inherited.socket, supervisor, given)
            }
        }
    })();
    let Err(failure) = outcome;
    let _ = packet::send(&inherited.socket, &ChildReply::Failed(failure), &[]);
    std::process::exit(1)
}

pub enum Never {}

fn park(inherited: &Inherited<'_>) -> Result<Parked, Failure> {
    lockdown::take_mapped_root().step("become root of the namespace")?;
    // A session of another pid namespace could not be captured with the sandbox.
    rustix::process::setsid().step("begin a session")?;
    if inherited.unshare_cgroup {
        // SAFETY: affects this process alone.
        if unsafe { libc::unshare(libc::CLONE_NEWCGROUP) } != 0 {
            return Err(Failure::new(
                "unshare the cgroup namespace",
                Errno::from_raw_os_error(crate::clone::last_errno()),
            ));
        }
    }
    lockdown::loopback_up().step("bring up loopback")?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step("make mounts private")?;

    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let inert = quiet | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let own = inherited.staging;
    let tmpfs = mounts::new_filesystem("tmpfs", &[("mode", "755")], quiet).step("make a tmpfs")?;
    mounts::attach(&tmpfs, own).step("attach the tmpfs")?;
    let proc = mounts::new_filesystem("proc", &[], inert).step("make /proc")?;
    mounts::attach(&proc, "/proc").step("attach /proc")?;
    let sys = mounts::new_filesystem("sysfs", &[], inert | MountAttrFlags::MOUNT_ATTR_RDONLY)
        .step("make /sys")?;
    mounts::attach(&sys, "/sys").step("attach /sys")?;

    for dir in ["bin", "proc"] {
        fs::DirBuilder::new()
            .mode(0o755)
            .create(format!("{own}/{dir}"))
            .step("make our directories")?;
    }
    fs::create_dir(format!("{own}/shm")).step("make shm")?;
    fs::set_permissions(format!("{own}/shm"), fs::Permissions::from_mode(0o1777))
        .step("open shm to all users")?;
    mounts::attach(&inherited.guest_dir, &format!("{own}/bin"))
        .step("attach the guest's directory")?;
    inherited.kernel_files.narrow(own)?;
    for file in ["proc/meminfo", "proc/cpuinfo", "proc/online"] {
        fs::write(format!("{own}/{file}"), "").step("make our files")?;
    }
    for (file, at) in [
        ("meminfo", "/proc/meminfo"),
        ("cpuinfo", "/proc/cpuinfo"),
        ("online", "/sys/devices/system/cpu/online"),
    ] {
        mounts::bind(&format!("{own}/proc/{file}"), at).step("show the sandbox's own figures")?;
    }
    let queues = ipc_setting("msgmni").step("open the limit of message queues")?;
    limit(queues.as_ref(), MESSAGE_QUEUES).step("limit message queues")?;
    let semaphores = ipc_setting("sem").step("open the limit of semaphores")?;
    limit(semaphores.as_ref(), SEMAPHORES).step("limit semaphores")?;
    let segments = ipc_setting("shmall").step("open the limit of shared segments")?;
    // Everybody may ping; the policy decides what becomes of it.
    match fs::write("/proc/sys/net/ipv4/ping_group_range", "0 65535") {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
    .step("allow ping to all users")?;
    inherited.kernel_files.close_settings(own)?;
    for (name, mount) in &inherited.shown {
        let at = if name.is_empty() {
            "/sys/fs/cgroup".to_owned()
        } else {
            let at = format!("{own}/cgroup/{name}");
            fs::create_dir_all(&at).step("make the cgroup's directory")?;
            at
        };
        mounts::attach(mount, &at).step("show the sandbox's cgroup")?;
    }
    Ok(Parked { sys, segments })
}

/// Writes what the sandbox is shown of itself, and sizes what it may keep in memory.
fn furnish(inherited: &Inherited<'_>, start: &Start, parked: &Parked) -> Result<(), Failure> {
    let own = inherited.staging;
    for (file, text) in [
        ("meminfo", &start.meminfo),
        ("cpuinfo", &start.cpuinfo),
        ("online", &start.cpu_online),
    ] {
        fs::write(format!("{own}/proc/{file}"), text).step("write the sandbox's own figures")?;
    }
    for (file, text) in [
        (boot_id::FILE, &start.boot_id),
        (boot_id::OWNER_FILE, &start.sandbox),
    ] {
        fs::write(format!("{own}/{file}"), text).step("write the sandbox's boot id")?;
    }
    resize_tmpfs(own, start.shm_bytes).step("size the tmpfs")?;
    let pages = shared::segment_pages(start.shm_bytes);
    limit(parked.segments.as_ref(), &pages.to_string()).step("limit shared segments")
}

fn become_guest(
    inherited: &Inherited<'_>,
    start: &Start,
    root: OwnedFd,
    volumes: Vec<OwnedFd>,
    parked: &Parked,
) -> Result<Never, Failure> {
    let own = inherited.staging;
    furnish(inherited, start, parked)?;
    let pts = mounts::new_filesystem(
        "devpts",
        &[
            ("ptmxmode", "0666"),
            ("mode", "0620"),
            ("gid", "5"),
            ("max", TERMINALS_MAX),
        ],
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )
    .step("make /dev/pts")?;

    // The root goes over /tmp of this private namespace: every host has one, and nothing here uses it.
    let place = "/tmp";
    mounts::attach(&root, place).step("attach the root")?;
    drop(root);
    let root = openat(
        CWD,
        place,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("open the root")?;
    let inside = root.as_fd();
    let filter = match volumes.is_empty() {
        true => &inherited.filters.plain,
        false => &inherited.filters.with_volumes,
    };
    if !volumes.is_empty() {
        let mounted = attach_volumes(inherited, inside, place, volumes)?;
        packet::send(&inherited.socket, &ChildReply::Mounted(mounted), &[])
            .step("report where volumes are")?;
    }
    mounts::attach_inside(&pts, inside, "dev/pts").step("attach /dev/pts")?;
    mounts::bind_inside(&format!("{own}/shm"), inside, "dev/shm").step("attach /dev/shm")?;
    mounts::attach_inside(&parked.sys, inside, "sys").step("move /sys")?;
    mounts::move_inside(own, inside, ".cove").step("move our tmpfs")?;
    mounts::move_inside("/proc", inside, "proc").step("move /proc")?;

    rustix::process::fchdir(&root).step("enter the root")?;
    rustix::process::pivot_root(".", ".").step("pivot into the root")?;
    unmount(".", UnmountFlags::DETACH).step("let go of the host's root")?;
    rustix::process::chdir("/").step("enter the new root")?;

    rustix::system::sethostname(start.hostname.as_bytes()).step("set the host name")?;
    let listener = listen().step("listen for the host")?;
    if let Some(address) = inherited.resolver {
        resolver::keep_inside(address).step("take the resolver's address")?;
    }
    lockdown::new_clock().step("start the sandbox's own clock")?;
    lockdown::limit_open_files(start.open_files).step("limit open files")?;
    lockdown::forbid_core_dumps().step("forbid core dumps")?;
    let null = openat(
        CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("open /dev/null")?;
    if start.no_new_privs {
        rustix::thread::set_no_new_privs(true).step("forbid new privileges")?;
    }
    lockdown::bound_capabilities().step("bound capabilities")?;
    lockdown::filter_syscalls(filter).step("filter system calls")?;
    lockdown::drop_capabilities().step("give up capabilities")?;
    // The last word before exec; what fails after it shows as a guest that never answers.
    packet::send(&inherited.socket, &ChildReply::Ready, &[]).step("report that it is ready")?;
    lockdown::exec(&null, listener.as_fd(), inherited.resolver)
        .step("run the guest")
        .map(|()| unreachable!("exec does not return"))
}

/// Before anything else is attached, so that a tree in which links lead into the host's places is refused and
/// covers none of them.
fn attach_volumes(
    inherited: &Inherited<'_>,
    inside: std::os::fd::BorrowedFd<'_>,
    place: &str,
    given: Vec<OwnedFd>,
) -> Result<Vec<String>, Failure> {
    let Some((MountPoints(paths), _)) =
        packet::receive(&inherited.socket).step("wait for the mount points")?
    else {
        std::process::exit(0);
    };
    if paths.len() != given.len() {
        return Err(Failure::new("receive the volumes", Errno::INVAL));
    }
    let pairs = paths.iter().zip(&given);
    pairs
        .map(|(path, volume)| volumes::attach(volume, inside, place, path))
        .collect()
}

pub fn listen() -> std::io::Result<UnixListener> {
    let listener = UnixListener::bind("/.cove/sock")?;
    // `bind` listens with a small backlog; a second call widens it.
    // SAFETY: a valid listening socket.
    if unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(listener)
}

/// A setting of the own IPC namespace, for writing. Kernels before 6.10 keep these to the host's root;
/// there a sandbox can fill its own memory with such objects until it is stopped.
fn ipc_setting(name: &str) -> std::io::Result<Option<fs::File>> {
    let path = format!("/proc/sys/kernel/{name}");
    match fs::OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(None),
        other => other.map(Some),
    }
}

fn limit(setting: Option<&fs::File>, value: &str) -> std::io::Result<()> {
    match setting {
        Some(mut setting) => setting.write_all(value.as_bytes()),
        None => Ok(()),
    }
}

fn resize_tmpfs(path: &str, bytes: u64) -> Result<(), Errno> {
    use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_string, fspick};
    let context = fspick(CWD, path, FsPickFlags::FSPICK_CLOEXEC)?;
    let inodes = shared::inodes(bytes);
    fsconfig_set_string(&context, "size", bytes.to_string())?;
    fsconfig_set_string(&context, "nr_inodes", inodes.to_string())?;
    fsconfig_reconfigure(&context)
}
