//! PID 1 of a seat whose guest runs on a kernel of its own: a program beside the guest (runsc) makes that
//! kernel, and this process keeps it.
//!
//! The keeper pivots into a small tree that holds nothing of the host, runs the program there as the root of
//! the sandbox's user namespace, waits until the guest answers, gives up every right, and reaps what is left to
//! it. It ends with that kernel, and everything in the seat ends with it: it is PID 1 of their namespace.

use std::ffi::CString;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use cove_confine::seccomp::{Otherwise, Threads, allow_only};
use cove_spawner::message::{ChildReply, Failure, Keeper, Runsc, Start, Step};
use cove_wire::packet;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};

use crate::child::Never;
use crate::clone::last_errno;
use crate::{lockdown, mounts};

/// What the keeper's tree may hold: the bundle, and what the program notes about itself.
const TREE_BYTES: &str = "16777216";
const TREE_INODES: &str = "1024";
const DIRECTORIES: [&str; 8] = [
    ".cove", "proc", "root", "bundle", "state", "tmp", "dev", "vm",
];
/// A file of the tree, where a machine has it.
pub const KVM: &str = "dev/kvm";
const PROGRAM: &str = "/.cove/bin/runner";
/// Where the program is told to write the id of the kernel's process, and what went wrong.
const PID_FILE: &str = "/state/pid";
const LOG: &str = "/state/log";
const SOCKET: &str = "/.cove/sock";
/// How long the program and the guest together may take.
const START_LIMIT: Duration = Duration::from_secs(18);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// What is told of a log.
const LOG_TOLD: u64 = 600;
/// Of everything in the seat until the engine lowers the score of the kernel itself: when memory runs out, the
/// processes that stand for programs inside go first.
const OOM_SCORE: &str = "1000";

/// What the keeper calls once the guest answers: it closes its descriptors, reaps, and ends. The kernel that it keeps
/// is in the same namespaces; whoever takes that over and then the keeper has no more calls than these.
const AFTERWARDS: &[libc::c_long] = &[
    libc::SYS_close_range,
    libc::SYS_wait4,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // What the program's own end does: it frees its memory and its thread's signal stack.
    libc::SYS_munmap,
    libc::SYS_sigaltstack,
];

/// Longest description that is taken.
const DESCRIPTION_MAX: u64 = 256 * 1024;

/// What to keep, when the last of these descriptors describes it; mounts are directories.
pub fn among(fds: &mut Vec<OwnedFd>) -> Result<Option<Keeper>, Failure> {
    let Some(last) = fds.last() else {
        return Ok(None);
    };
    let kind = rustix::fs::fstat(last)
        .step("look at a descriptor")?
        .st_mode;
    match rustix::fs::FileType::from_raw_mode(kind).is_file() {
        true => fds.pop().map(read).transpose(),
        false => Ok(None),
    }
}

/// What the engine packed into a memory file.
fn read(packed: OwnedFd) -> Result<Keeper, Failure> {
    use std::io::Seek;
    let mut file = fs::File::from(packed);
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.take(DESCRIPTION_MAX).read_to_end(&mut bytes))
        .step("read what to keep")?;
    postcard::from_bytes(&bytes).map_err(|_| Failure::new("read what to keep", Errno::INVAL))
}

/// Never returns when it succeeds.
pub fn run(
    own: &str,
    socket: &OwnedFd,
    start: &Start,
    keeper: &Runsc,
    root: OwnedFd,
) -> Result<Never, Failure> {
    enter_tree(own, vec![(root, "root")])?;
    rustix::system::sethostname(start.hostname.as_bytes()).step("set the host name")?;
    fs::write("/bundle/config.json", &keeper.config).step("write the bundle")?;
    lockdown::forbid_core_dumps().step("forbid core dumps")?;
    lockdown::raise_open_files().step("raise the limit of open files")?;
    lockdown::reset_signals();
    let deadline = Instant::now() + START_LIMIT;
    let program = launch(keeper).step("start runsc")?;
    let (status, ended) = await_exit(program, deadline)?;
    if status != 0 {
        return Err(Failure::new(
            format!("run the guest: {}", log_tail()),
            Errno::IO,
        ));
    }
    let kernel = fs::read_to_string(PID_FILE).step("read who runs the guest")?;
    let kernel: i32 = kernel
        .trim()
        .parse()
        .map_err(|_| Failure::new("read who runs the guest", Errno::INVAL))?;
    if ended.contains(&kernel) {
        return Err(ended_at_once());
    }
    await_guest(kernel, deadline)?;
    packet::send(socket, &ChildReply::Ready, &[]).step("report that it is ready")?;
    lockdown::drop_every_right().step("give up every right")?;
    allow_only(&[AFTERWARDS], Otherwise::Kill, Threads::This).step("filter system calls")?;
    // SAFETY: closes every descriptor of this process, the socket to the engine included; none is used again.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
    loop {
        match reap(0) {
            Some((pid, _)) if pid != kernel => {}
            // The kernel ended, or there is nobody left to wait for.
            _ => std::process::exit(0),
        }
    }
}

/// Leaves the host's tree for one of the keeper's own.
pub fn enter_tree(own: &str, trees: Vec<(OwnedFd, &str)>) -> Result<(), Failure> {
    let place = "/tmp";
    let tree = mounts::new_filesystem(
        "tmpfs",
        &[
            ("mode", "755"),
            ("size", TREE_BYTES),
            ("nr_inodes", TREE_INODES),
        ],
        MountAttrFlags::MOUNT_ATTR_NOSUID,
    )
    .step("make the keeper's tree")?;
    mounts::attach(&tree, place).step("attach the keeper's tree")?;
    for dir in DIRECTORIES {
        fs::create_dir(format!("{place}/{dir}")).step("make the keeper's directories")?;
    }
    fs::write(format!("{place}/dev/null"), "").step("make the keeper's files")?;
    mounts::bind("/dev/null", &format!("{place}/dev/null")).step("show /dev/null")?;
    for (tree, at) in trees {
        if at == KVM {
            fs::write(format!("{place}/{at}"), "").step("make the keeper's files")?;
        }
        mounts::attach(&tree, &format!("{place}/{at}")).step("attach the root")?;
    }
    // The sandbox's own group, where the guest looks for its figures.
    if fs::exists("/sys/fs/cgroup/cgroup.procs").unwrap_or(false) {
        let shown = format!("{own}/cgroup");
        fs::create_dir_all(&shown).step("make the cgroup's directory")?;
        mounts::bind("/sys/fs/cgroup", &shown).step("show the sandbox's cgroup")?;
    }
    let tree = openat(
        CWD,
        place,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("open the keeper's tree")?;
    // runsc takes a namespace in which it sees these settings for the host's own and refuses it.
    mounts::cover(&format!("{own}/empty.d"), "/proc/sys/net").step("cover the settings")?;
    mounts::move_inside(own, tree.as_fd(), ".cove").step("move our tmpfs")?;
    mounts::move_inside("/proc", tree.as_fd(), "proc").step("move /proc")?;
    rustix::process::fchdir(&tree).step("enter the keeper's tree")?;
    rustix::process::pivot_root(".", ".").step("pivot into the keeper's tree")?;
    unmount(".", UnmountFlags::DETACH).step("let go of the host's root")?;
    rustix::process::chdir("/").step("enter the keeper's tree")
}

/// Starts the program, with nothing of the keeper's but /dev/null.
fn launch(keeper: &Runsc) -> Result<i32, Errno> {
    let null = openat(
        CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let text = |text: &str| CString::new(text).map_err(|_| Errno::INVAL);
    let program = text(PROGRAM)?;
    let arguments = std::iter::once("runsc")
        .chain(keeper.arguments.iter().map(String::as_str))
        .map(text)
        .collect::<Result<Vec<_>, _>>()?;
    let mut pointers: Vec<_> = arguments.iter().map(|text| text.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let environment = [c"HOME=/".as_ptr(), c"PATH=/".as_ptr(), std::ptr::null()];
    // SAFETY: this process has one thread, so that the child may do what any process may.
    match unsafe { libc::fork() } {
        0 => {
            let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
            // SAFETY: descriptors are valid; strings and arrays end with a zero and live across the call.
            unsafe {
                for stream in 0..=2 {
                    libc::dup2(null.as_raw_fd(), stream);
                }
                libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                libc::execve(program.as_ptr(), pointers.as_ptr(), environment.as_ptr());
                libc::_exit(127)
            }
        }
        -1 => Err(Errno::from_raw_os_error(last_errno())),
        pid => Ok(pid),
    }
}

/// The next child that ended and its status; `None` when none has, or there is none.
fn reap(flags: i32) -> Option<(i32, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: the status is a local of the right type.
        match unsafe { libc::waitpid(-1, &raw mut status, flags) } {
            -1 if last_errno() == libc::EINTR => {}
            -1 | 0 => return None,
            pid => return Some((pid, status)),
        }
    }
}

/// The program's status, and what ended before it: the kernel's process is left to this one and may be among them.
fn await_exit(program: i32, deadline: Instant) -> Result<(i32, Vec<i32>), Failure> {
    let mut ended = Vec::new();
    while Instant::now() < deadline {
        match reap(libc::WNOHANG) {
            Some((pid, status)) if pid == program => return Ok((status, ended)),
            Some((pid, _)) => ended.push(pid),
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
    Err(Failure::new("wait for runsc", Errno::TIMEDOUT))
}

/// Returns when the guest takes connections.
fn await_guest(kernel: i32, deadline: Instant) -> Result<(), Failure> {
    while Instant::now() < deadline {
        if UnixStream::connect(SOCKET).is_ok() {
            return Ok(());
        }
        match reap(libc::WNOHANG) {
            Some((pid, _)) if pid == kernel => return Err(ended_at_once()),
            Some(_) => {}
            None => std::thread::sleep(LOOK_EVERY),
        }
    }
    Err(Failure::new("wait for the guest", Errno::TIMEDOUT))
}

fn ended_at_once() -> Failure {
    let step = format!("run the guest: it ended at once: {}", log_tail());
    Failure::new(step, Errno::IO)
}

/// The end of what runsc said, as one line.
fn log_tail() -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        use std::io::{Seek, SeekFrom};
        let mut file = fs::File::open(LOG)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TOLD)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TOLD).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = read().unwrap_or_default();
    let plain = text.iter().map(|byte| match byte {
        b' '..=b'~' => char::from(*byte),
        _ => ' ',
    });
    plain.collect::<String>().trim().to_owned()
}
