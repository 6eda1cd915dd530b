//! Giving up rights, in the order that keeps each step possible.

use std::ffi::CString;
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use cove_confine::{rights, seccomp};
use cove_spawner::RESOLVER_VARIABLE;
use rustix::io::Errno;
use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;

use crate::clone::last_errno;

/// What a sandbox keeps: enough for package managers, sudo, su and servers on low ports; nothing
/// that reaches the kernel's configuration, other namespaces, raw packets or devices.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Takes uid and gid 0 of the new user namespace in all their forms.
pub fn take_mapped_root() -> std::io::Result<()> {
    rights::become_user(0, 0)?;
    // Changing ids gave this process's files in /proc to the host's root, and the clock is set
    // through one of them. Nobody else is in the namespace yet to make use of it.
    Ok(rustix::process::set_dumpable_behavior(
        DumpableBehavior::Dumpable,
    )?)
}

pub fn loopback_up() -> Result<(), Errno> {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: the request outlives the call and has the type this ioctl reads.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) }.into())
}

/// A time namespace whose uptime starts now. It takes effect at exec (or, on older kernels, for the
/// guest's children).
pub fn new_clock() -> std::io::Result<()> {
    const CLONE_NEWTIME: i32 = 0x80;
    // SAFETY: affects this process alone.
    check(unsafe { libc::unshare(CLONE_NEWTIME) }.into())?;
    let now = |clock| rustix::time::clock_gettime(clock).tv_sec;
    let offsets = format!(
        "monotonic -{} 0\nboottime -{} 0\n",
        now(rustix::time::ClockId::Monotonic),
        now(rustix::time::ClockId::Boottime)
    );
    fs::write("/proc/self/timens_offsets", offsets)
}

/// Raising the hard limit needs a right over the host that this process has given up, so more than the
/// host's own limit fails; the tier refuses such a wish before it comes here.
pub fn limit_open_files(wanted: u64) -> Result<(), Errno> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(wanted),
        maximum: Some(wanted),
    };
    setrlimit(Resource::Nofile, limit)
}

/// A crash inside must not start the host's core dump handler on a guest's data. Of all limits only
/// the value 1 keeps the kernel from that; the hard limit cannot be raised again inside.
pub fn forbid_core_dumps() -> Result<(), Errno> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    match setrlimit(Resource::Core, limit) {
        // The host's own limit is 0 already and cannot be raised to 1; the sandbox still starts.
        Err(Errno::PERM) => Ok(()),
        other => other,
    }
}

/// All that this process may have open.
pub fn raise_open_files() -> Result<(), Errno> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, limit)
}

/// For a process that needs no right any more.
pub fn drop_every_right() -> std::io::Result<()> {
    rights::bound_capabilities(CapabilitySet::empty())?;
    rights::keep_capabilities(CapabilitySet::empty())?;
    rights::forbid_new_rights()
}

/// Takes away what no program inside may ever get back, setuid or not.
pub fn bound_capabilities() -> std::io::Result<()> {
    rights::bound_capabilities(KEPT)
}

/// Gives up the rest of this process's own rights. Comes after the filter, whose installation needs
/// CAP_SYS_ADMIN in the namespace as long as no_new_privs is off.
pub fn drop_capabilities() -> std::io::Result<()> {
    rights::keep_capabilities(KEPT)
}

pub fn filter_syscalls(filter: &[libc::sock_filter]) -> std::io::Result<()> {
    seccomp::apply(filter, seccomp::Threads::This)
}

/// Becomes the guest, with standard streams on /dev/null and the listener as descriptor 3.
pub fn exec(
    null: &OwnedFd,
    listener: BorrowedFd<'_>,
    resolver: Option<Ipv4Addr>,
) -> Result<(), Errno> {
    const LISTENER: i32 = 3;
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    let variable = |address| CString::new(format!("{RESOLVER_VARIABLE}={address}")).ok();
    let resolver = resolver.and_then(variable);
    // SAFETY: descriptors are valid; strings and arrays are NUL-terminated and live across the call.
    unsafe {
        // The sources may sit on the targets' numbers, so they are first moved out of the way.
        let null = check_fd(libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 64))?;
        let listener = check_fd(libc::fcntl(listener.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 64))?;
        for stream in 0..=2 {
            check_fd(libc::dup2(null, stream))?;
        }
        check_fd(libc::dup2(listener, LISTENER))?;
        check(libc::syscall(
            libc::SYS_close_range,
            LISTENER as u32 + 1,
            u32::MAX,
            CLOSE_RANGE_CLOEXEC,
        ))?;
        reset_signals();
        let arguments = [c"cove-guest".as_ptr(), std::ptr::null()];
        let resolver = resolver.as_ref();
        let environment = [
            resolver.map_or(std::ptr::null(), |variable| variable.as_ptr()),
            std::ptr::null::<libc::c_char>(),
        ];
        check(
            libc::execve(
                c"/.cove/bin/guest".as_ptr(),
                arguments.as_ptr(),
                environment.as_ptr(),
            )
            .into(),
        )
    }
}

/// Default dispositions and nothing blocked.
pub fn reset_signals() {
    // SAFETY: sets dispositions and the mask of this single-threaded process; failures only concern
    // signals that cannot be changed.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

fn check(result: i64) -> Result<(), Errno> {
    if result < 0 {
        Err(Errno::from_raw_os_error(last_errno()))
    } else {
        Ok(())
    }
}

fn check_fd(result: i32) -> Result<i32, Errno> {
    check(result.into()).map(|()| result)
}
