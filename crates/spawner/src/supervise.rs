//! From a parked child to the supervisor of a virtual machine: a small tree that holds nothing of the host but the
//! programs it runs, and the descriptors it was given.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use cove_spawner::message::{Failure, Step, Supervisor};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::child::{Never, listen};
use crate::clone::last_errno;
use crate::{keeper, lockdown};

const PROGRAM: &str = "/.cove/bin/runner";
const SOCKET: &str = "/.cove/sock";
/// The listener is the first of the descriptors that it gets, the way to the engine the second.
const FIRST: i32 = 3;
/// Out of the way of those.
const ASIDE: i32 = 64;
const MODE: u32 = 0o600;

/// Never returns when it succeeds. `given` are the tree of programs, and what else came along.
pub fn run(
    own: &str,
    engine: &OwnedFd,
    supervisor: &Supervisor,
    (programs, mut others): (OwnedFd, Vec<OwnedFd>),
) -> Result<Never, Failure> {
    let mut trees = vec![(programs, "vm")];
    for (shown, at) in [
        (supervisor.shows_root, "root"),
        (supervisor.shows_kvm, keeper::KVM),
    ] {
        if shown && others.is_empty() {
            return Err(Failure::new("receive the tree", Errno::BADF));
        }
        if shown {
            trees.push((others.remove(0), at));
        }
    }
    keeper::enter_tree(own, trees)?;
    lockdown::forbid_core_dumps().step("forbid core dumps")?;
    lockdown::raise_open_files().step("raise the limit of open files")?;
    let listener = listen().step("listen for the host")?;
    // QEMU has another user id and cannot connect there.
    rustix::fs::chmod(SOCKET, Mode::from_raw_mode(MODE)).step("close the socket to others")?;
    let null = openat(
        CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("open /dev/null")?;
    let mut passed = vec![listener.as_fd(), engine.as_fd()];
    passed.extend(others.iter().map(AsFd::as_fd));
    exec(&null, &passed, &supervisor.arguments)
        .step("run the supervisor")
        .map(|()| unreachable!("exec does not return"))
}

fn exec(
    null: &OwnedFd,
    passed: &[std::os::fd::BorrowedFd<'_>],
    arguments: &[String],
) -> Result<(), Errno> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    let failed = || Errno::from_raw_os_error(last_errno());
    let text = |text: &str| CString::new(text).map_err(|_| Errno::INVAL);
    let program = text(PROGRAM)?;
    let arguments = std::iter::once("cove-supervisor")
        .chain(arguments.iter().map(String::as_str))
        .map(text)
        .collect::<Result<Vec<_>, _>>()?;
    let mut pointers: Vec<_> = arguments.iter().map(|text| text.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let environment = [std::ptr::null::<libc::c_char>()];
    let mut targets: Vec<(i32, i32)> = (0..FIRST)
        .map(|stream| (null.as_raw_fd(), stream))
        .collect();
    for (fd, target) in passed.iter().zip(FIRST..) {
        targets.push((fd.as_raw_fd(), target));
    }
    let last = FIRST + i32::try_from(passed.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: descriptors are valid; strings and arrays end with a zero and live across the calls.
    unsafe {
        // The sources may sit on the targets' numbers, so they are first moved out of the way.
        for (source, _) in &mut targets {
            *source = libc::fcntl(*source, libc::F_DUPFD_CLOEXEC, ASIDE);
            if *source < 0 {
                return Err(failed());
            }
        }
        for (source, target) in targets {
            if libc::dup2(source, target) < 0 {
                return Err(failed());
            }
        }
        if libc::syscall(libc::SYS_close_range, last, u32::MAX, CLOSE_RANGE_CLOEXEC) != 0 {
            return Err(failed());
        }
        lockdown::reset_signals();
        libc::execve(program.as_ptr(), pointers.as_ptr(), environment.as_ptr());
    }
    Err(failed())
}
