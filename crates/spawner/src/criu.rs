//! Running CRIU where it leaves no trace: in a mount namespace of its own, whose /tmp and /run are
//! private, with the root, the images and everything else a restore needs attached below /tmp. It is
//! gone with the process, however that ends.

use std::ffi::CString;
use std::fs;
use std::io::{Read, Seek};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use cove_spawner::message::{CgroupEntry, Criu, Failure, Replacement, Restorer, Step, places};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, mount_change};

use crate::clone::last_errno;
use crate::mounts;

/// The descriptor on which CRIU is spoken to, as its argument names it.
const CONVERSATION: i32 = 3;
/// Holds what CRIU found out about the kernel from one run to the next; it takes 150 ms to find out
/// again, and CRIU trusts the file only on a tmpfs.
const REMEMBERED: &str = "criu-run";
/// What CRIU's own files may take: a few links and directories, and the replaced images.
const SCRATCH_BYTES: &str = "256m";
/// Where the library is that goes with CRIU.
const LIBRARY: &str = "/tmp/owner.so";
/// CRIU runs `tar` to save and fill small filesystems.
const PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
const REPLACEMENTS_MAX: u64 = 64 << 20;

/// Starts it and returns its pid and pidfd. It ends by itself when its conversation does.
pub fn run(request: &Criu, fds: Vec<OwnedFd>) -> Result<(i32, OwnedFd), Failure> {
    remember(&request.staging)?;
    // The child says on this pipe what failed; it closes when the program runs.
    let (failure_read, failure_write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step("make a pipe")?;
    let (gate_read, gate_write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).step("make a pipe")?;
    let mut pidfd: i32 = -1;
    // SAFETY: all-zero bytes are a valid clone_args.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_PIDFD as u64;
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
        drop((failure_read, gate_write));
        let Err(failure) = become_criu(request, fds, &gate_read);
        let told = postcard::to_stdvec(&failure).unwrap_or_default();
        let _ = rustix::io::write(&failure_write, &told);
        std::process::exit(1);
    }
    if pid < 0 {
        return Err(Failure::new(
            "clone for criu",
            Errno::from_raw_os_error(last_errno()),
        ));
    }
    let pid = pid as i32;
    // SAFETY: clone3 stored a fresh descriptor there because of CLONE_PIDFD.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    drop((failure_write, gate_read, fds));
    if let Some(restore) = &request.restore
        && let Err(failure) = enter_cgroup(&restore.cgroup, pid)
    {
        let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
        return Err(failure);
    }
    // A failed write means that the child is gone, which the pipe tells.
    let _ = rustix::io::write(&gate_write, &[1]);
    let mut told = Vec::new();
    fs::File::from(failure_read)
        .read_to_end(&mut told)
        .step("wait for criu to run")?;
    match postcard::from_bytes::<Failure>(&told) {
        Ok(failure) => Err(failure),
        Err(_) => Ok((pid, pidfd)),
    }
}

/// Once per spawner: a tmpfs in its own mount namespace that outlives single runs.
fn remember(staging: &str) -> Result<(), Failure> {
    let dir = format!("{staging}/{REMEMBERED}");
    if Path::new(&dir).exists() {
        return Ok(());
    }
    let tmpfs = mounts::new_filesystem(
        "tmpfs",
        &[("mode", "755"), ("size", SCRATCH_BYTES)],
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )
    .step("make a tmpfs")?;
    mounts::attach(&tmpfs, staging).step("attach a tmpfs")?;
    fs::create_dir(&dir).step("make a directory")
}

fn enter_cgroup(entry: &CgroupEntry, pid: i32) -> Result<(), Failure> {
    match entry {
        CgroupEntry::V1 { procs, .. } => {
            for file in procs {
                fs::write(file, pid.to_string()).step("enter the cgroup")?;
            }
            Ok(())
        }
        CgroupEntry::V2 { dir } => {
            fs::write(format!("{dir}/cgroup.procs"), pid.to_string()).step("enter the cgroup")
        }
    }
}

enum Never {}

fn become_criu(request: &Criu, fds: Vec<OwnedFd>, gate: &OwnedFd) -> Result<Never, Failure> {
    let mut byte = [0];
    if rustix::io::read(gate, &mut byte).step("wait for the go-ahead")? == 0 {
        std::process::exit(0);
    }
    let mut fds = fds.into_iter();
    let missing = || Failure::new("receive descriptors", Errno::BADF);
    let conversation = fds.next().ok_or_else(missing)?;
    let mut flags = libc::CLONE_NEWNS;
    if request.restore.is_some() {
        flags |= libc::CLONE_NEWCGROUP;
    }
    // SAFETY: affects this process alone.
    if unsafe { libc::unshare(flags) } != 0 {
        let errno = Errno::from_raw_os_error(last_errno());
        return Err(Failure::new("unshare namespaces", errno));
    }
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step("make mounts private")?;
    match &request.restore {
        None => furnish(request, Vec::new())?,
        Some(restore) => {
            let [root, images, replacements] = [
                fds.next().ok_or_else(missing)?,
                fds.next().ok_or_else(missing)?,
                fds.next().ok_or_else(missing)?,
            ];
            let mut trees = vec![
                (places::ROOT.to_owned(), root),
                (places::IMAGES.to_owned(), images),
                (
                    places::GUEST.to_owned(),
                    mounts::clone_read_only(&restore.guest_dir)
                        .step("clone the guest's directory")?,
                ),
            ];
            trees.extend(shown(restore)?);
            let volumes = fds.enumerate();
            trees.extend(
                volumes.map(|(number, volume)| (format!("{}/{number}", places::VOLUMES), volume)),
            );
            furnish(request, trees)?;
            replace(replacements, request.owner)?;
        }
    }
    exec(request, conversation)
}

/// The cgroup as the sandbox will be shown it.
fn shown(restore: &Restorer) -> Result<Vec<(String, OwnedFd)>, Failure> {
    let clone = |dir: &str| mounts::clone_read_only(dir).step("clone the cgroup's directory");
    match &restore.cgroup {
        CgroupEntry::V1 { shown, .. } => shown
            .iter()
            .map(|(dir, name)| Ok((format!("{}/{name}", places::CGROUP), clone(dir)?)))
            .collect(),
        CgroupEntry::V2 { dir } => Ok(vec![(places::CGROUP.to_owned(), clone(dir)?)]),
    }
}

fn furnish(request: &Criu, trees: Vec<(String, OwnedFd)>) -> Result<(), Failure> {
    let scratch = mounts::new_filesystem(
        "tmpfs",
        &[("mode", "755"), ("size", SCRATCH_BYTES)],
        MountAttrFlags::empty(),
    )
    .step("make a tmpfs")?;
    mounts::attach(&scratch, "/tmp").step("attach the tmpfs")?;
    fs::write(LIBRARY, &request.library).step("write the library")?;
    for (at, tree) in trees {
        fs::create_dir_all(&at).step("make a place")?;
        mounts::attach(&tree, &at).step("attach a tree")?;
    }
    // The last step, because it hides what lies below /run.
    mounts::bind(&format!("{}/{REMEMBERED}", request.staging), "/run").step("attach /run")
}

/// Puts changed images over those that were captured.
fn replace(replacements: OwnedFd, owner: u32) -> Result<(), Failure> {
    let mut file = fs::File::from(replacements);
    file.rewind().step("read the changed images")?;
    let mut packed = Vec::new();
    file.take(REPLACEMENTS_MAX)
        .read_to_end(&mut packed)
        .step("read the changed images")?;
    let list: Vec<Replacement> = postcard::from_bytes(&packed)
        .map_err(|_| Failure::new("read the changed images", Errno::INVAL))?;
    fs::create_dir("/tmp/changed").step("make a directory")?;
    for replacement in list {
        let from = format!("/tmp/changed/{}", replacement.name);
        fs::write(&from, replacement.content).step("write a changed image")?;
        // Read inside the sandbox's user namespace, like the others.
        std::os::unix::fs::chown(&from, Some(owner), Some(owner))
            .step("give a changed image to the sandbox")?;
        mounts::bind(&from, &format!("{}/{}", places::IMAGES, replacement.name))
            .step("replace an image")?;
    }
    Ok(())
}

fn exec(request: &Criu, conversation: OwnedFd) -> Result<Never, Failure> {
    let invalid = |_| Failure::new("run criu", Errno::INVAL);
    let program = CString::new(request.program.as_str()).map_err(invalid)?;
    let number = CString::new(CONVERSATION.to_string()).map_err(invalid)?;
    let path = CString::new(PATH).map_err(invalid)?;
    let library = CString::new(format!("LD_PRELOAD={LIBRARY}")).map_err(invalid)?;
    let owner = CString::new(format!("COVE_OWNER={}", request.owner)).map_err(invalid)?;
    let argv = [
        program.as_ptr(),
        c"swrk".as_ptr(),
        number.as_ptr(),
        std::ptr::null(),
    ];
    let envp = [
        path.as_ptr(),
        library.as_ptr(),
        owner.as_ptr(),
        std::ptr::null(),
    ];
    // SAFETY: system calls with pointers to locals that outlive them; the vectors end with null.
    unsafe {
        // Ignoring SIGCHLD would be inherited, and CRIU waits for the programs it runs.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::setsid();
        let kept = if conversation.as_fd().as_raw_fd() == CONVERSATION {
            libc::fcntl(CONVERSATION, libc::F_SETFD, 0)
        } else {
            libc::dup2(conversation.as_raw_fd(), CONVERSATION)
        };
        if kept >= 0 {
            libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
        }
    }
    Err(Failure::new(
        "run criu",
        Errno::from_raw_os_error(last_errno()),
    ))
}
