//! Makes a child and replaces it by the command. The child borrows this process's memory until
//! then (as `vfork` does), so nothing is copied however large the rings are, and it can leave the
//! reason of a failure where the parent reads it.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Stack of the child until it becomes the command.
const CHILD_STACK: usize = 64 * 1024;
/// Commands are the first to go when memory runs out, PID 1 the last; far enough apart that one with
/// much output kept is not taken for the largest (`cove-spawner`, `oom.rs`).
const OOM_SCORE: &[u8] = b"800";

/// Everything the child needs, laid out beforehand: it must not allocate.
pub struct SpawnPlan<'a> {
    pub argv: Vec<CString>,
    pub env: Vec<CString>,
    /// Programs to try in turn; the first that can be run wins.
    pub programs: Vec<CString>,
    /// Directories to try in turn.
    pub directories: Vec<CString>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub stdio: [BorrowedFd<'a>; 3],
    /// Standard input is a terminal and becomes the controlling one.
    pub terminal: bool,
    pub open_files: libc::rlimit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Fork,
    Terminal,
    User,
    Directory,
    Exec,
    Setup,
}

#[derive(Debug)]
pub struct SpawnError {
    pub step: Step,
    pub errno: i32,
}

struct Shared<'a> {
    plan: &'a SpawnPlan<'a>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    step: AtomicI32,
    errno: AtomicI32,
}

/// Starts the command and returns its pid once the child runs it.
pub fn spawn(plan: &SpawnPlan<'_>) -> Result<i32, SpawnError> {
    let shared = Shared {
        plan,
        argv: pointers(&plan.argv),
        env: pointers(&plan.env),
        step: AtomicI32::new(0),
        errno: AtomicI32::new(0),
    };
    let mut stack: Vec<u128> = Vec::with_capacity(CHILD_STACK / size_of::<u128>());
    let top = stack.spare_capacity_mut().as_mut_ptr_range().end;

    let blocked = SignalsBlocked::new();
    // SAFETY: the child runs `child` on a stack of its own, which with `shared` outlives it,
    // because CLONE_VFORK suspends this thread until the child has exec'd or exited.
    let pid = unsafe {
        libc::clone(
            child,
            top.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            ptr::from_ref(&shared).cast_mut().cast(),
        )
    };
    let fork_errno = std::io::Error::last_os_error().raw_os_error();
    drop(blocked);
    if pid < 0 {
        return Err(SpawnError {
            step: Step::Fork,
            errno: fork_errno.unwrap_or(libc::EAGAIN),
        });
    }
    let Some(step) = step_from(shared.step.load(Ordering::SeqCst)) else {
        return Ok(pid);
    };
    // The child is gone already; taking it here keeps the reaper from seeing an unknown child.
    // SAFETY: waits for our own child and takes no pointer but null.
    while unsafe { libc::waitpid(pid, ptr::null_mut(), 0) } < 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    {}
    Err(SpawnError {
        step,
        errno: shared.errno.load(Ordering::SeqCst),
    })
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([ptr::null()])
        .collect()
}

fn step_from(number: i32) -> Option<Step> {
    [
        Step::Fork,
        Step::Terminal,
        Step::User,
        Step::Directory,
        Step::Exec,
        Step::Setup,
    ]
    .into_iter()
    .find(|step| *step as i32 + 1 == number)
}

/// No handler may run in the child while it borrows our memory.
struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: both sets are local and initialised by the calls before use.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Self { before }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: restores a mask that `new` saved.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}

extern "C" fn child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn` passes its `Shared`, alive until this child has exec'd or exited.
    let shared = unsafe { &*argument.cast_const().cast::<Shared<'_>>() };
    // SAFETY: the child is single-threaded on its own stack, and `become_command` keeps to
    // system calls.
    let (step, errno) = unsafe { become_command(shared) };
    shared.errno.store(errno, Ordering::SeqCst);
    shared.step.store(step as i32 + 1, Ordering::SeqCst);
    // SAFETY: leaves without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

/// Returns only when something failed.
///
/// # Safety
/// Only in a child made by [`spawn`]: it changes descriptors, credentials and signals.
unsafe fn become_command(shared: &Shared<'_>) -> (Step, i32) {
    let plan = shared.plan;
    // SAFETY: plain system calls on values laid out by the parent. User and group are set by
    // number, not through the C library, which would carry them over to the parent's threads.
    unsafe {
        if libc::setsid() < 0 {
            return failed(Step::Setup);
        }
        if plan.terminal && libc::ioctl(plan.stdio[0].as_raw_fd(), libc::TIOCSCTTY, 0) < 0 {
            return failed(Step::Terminal);
        }
        for (target, source) in plan.stdio.iter().enumerate() {
            if libc::dup2(source.as_raw_fd(), target as i32) < 0 {
                return failed(Step::Setup);
            }
        }
        // Descriptors are positive; gVisor takes no larger bound.
        if libc::syscall(libc::SYS_close_range, 3, i32::MAX, 0) < 0 {
            return failed(Step::Setup);
        }
        libc::setrlimit(libc::RLIMIT_NOFILE, &plan.open_files);
        set_oom_score();
        if libc::syscall(libc::SYS_setgroups, plan.groups.len(), plan.groups.as_ptr()) < 0
            || libc::syscall(libc::SYS_setresgid, plan.gid, plan.gid, plan.gid) < 0
            || libc::syscall(libc::SYS_setresuid, plan.uid, plan.uid, plan.uid) < 0
        {
            return failed(Step::User);
        }
        if !plan
            .directories
            .iter()
            .any(|path| libc::chdir(path.as_ptr()) == 0)
        {
            return failed(Step::Directory);
        }
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        exec(shared)
    }
}

/// # Safety
/// As [`become_command`].
unsafe fn exec(shared: &Shared<'_>) -> (Step, i32) {
    let mut errno = libc::ENOENT;
    for program in &shared.plan.programs {
        // SAFETY: both arrays end in null and point to strings that outlive the call.
        unsafe { libc::execve(program.as_ptr(), shared.argv.as_ptr(), shared.env.as_ptr()) };
        match last_errno() {
            // Searching goes on over what is missing; being forbidden is worth remembering.
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => errno = libc::EACCES,
            other => return (Step::Exec, other),
        }
    }
    (Step::Exec, errno)
}

fn set_oom_score() {
    const PATH: &CStr = c"/proc/self/oom_score_adj";
    // SAFETY: plain system calls on constants. A sandbox without /proc goes without.
    unsafe {
        let file = libc::open(PATH.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
            libc::close(file);
        }
    }
}

fn failed(step: Step) -> (Step, i32) {
    (step, last_errno())
}

fn last_errno() -> i32 {
    // SAFETY: the C library's own address of errno.
    unsafe { *libc::__errno_location() }
}
