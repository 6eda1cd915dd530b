//! Preloaded into CRIU: makes some of its system calls as the uid that the environment names, and shows
//! it terminals under their own numbers.
//!
//! The user namespace of a sandbox is owned by the sandbox's own first uid, so that what the kernel
//! counts by user is counted for each sandbox apart. A namespace is owned by whoever makes it, so the
//! clone that makes one is done as that uid. Only the owner may ask for the limits of processes in
//! the namespace on a host whose root lacks CAP_SYS_RESOURCE. And in a tree whose ids are mapped the
//! host's root cannot make a link. For everything else CRIU stays root, which it insists on.
//! The spawner has seen to it that capabilities survive the change.
#![no_std]

use core::arch::asm;
use core::ffi::{c_char, c_int, c_long, c_uint};

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn __errno_location() -> *mut c_int;
}

const UNCHANGED: c_long = -1;
const CLONE_NEWUSER: u64 = 0x1000_0000;
const PR_SET_DUMPABLE: c_long = 4;

#[cfg(target_arch = "x86_64")]
mod number {
    use core::ffi::c_long;
    pub const FSTAT: c_long = 5;
    pub const IOCTL: c_long = 16;
    pub const SETRESUID: c_long = 117;
    pub const SETRESGID: c_long = 119;
    pub const PRCTL: c_long = 157;
    pub const LINKAT: c_long = 265;
    pub const PRLIMIT64: c_long = 302;
    pub const CLONE3: c_long = 435;
    pub const GETPID: c_long = 39;
    pub const GETUID: c_long = 102;
    pub const SETNS: c_long = 308;
}

#[cfg(target_arch = "aarch64")]
mod number {
    use core::ffi::c_long;
    pub const FSTAT: c_long = 80;
    pub const IOCTL: c_long = 29;
    pub const SETRESUID: c_long = 147;
    pub const SETRESGID: c_long = 149;
    pub const PRCTL: c_long = 167;
    pub const LINKAT: c_long = 37;
    pub const PRLIMIT64: c_long = 261;
    pub const CLONE3: c_long = 435;
    pub const GETPID: c_long = 172;
    pub const GETUID: c_long = 174;
    pub const SETNS: c_long = 268;
}

type Arguments = [c_long; 6];

/// # Safety
/// As the system call itself.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: c_long, a: Arguments) -> c_long {
    let answer;
    // SAFETY: the registers are those the kernel reads and changes.
    unsafe {
        asm!("syscall", inlateout("rax") number => answer, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _);
    }
    answer
}

/// # Safety
/// As the system call itself.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: c_long, a: Arguments) -> c_long {
    let answer;
    // SAFETY: the registers are those the kernel reads and changes.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a[0] => answer, in("x1") a[1], in("x2") a[2],
            in("x3") a[3], in("x4") a[4], in("x5") a[5]);
    }
    answer
}

/// Makes a call with the owner as effective user and group. In processes that CRIU forked into the
/// sandbox's namespace the uid means nothing; the change fails there and is not needed.
///
/// # Safety
/// As the system call itself.
unsafe fn as_owner(number: c_long, arguments: Arguments) -> c_long {
    // SAFETY: plain credential changes of this single-threaded process, and the call asked for.
    unsafe {
        let Some(owner) = owner() else {
            return call(number, arguments);
        };
        let take = |id: c_long| {
            call(number::SETRESGID, [UNCHANGED, id, UNCHANGED, 0, 0, 0]);
            call(number::SETRESUID, [UNCHANGED, id, UNCHANGED, 0, 0, 0]);
        };
        take(owner);
        let answer = call(number, arguments);
        if !(number == number::CLONE3 && answer == 0) {
            take(0);
        }
        // The change gave this process's files in /proc to root, and what was cloned sets its clock
        // through one of them.
        call(number::PRCTL, [PR_SET_DUMPABLE, 1, 0, 0, 0, 0]);
        answer
    }
}

fn owner() -> Option<c_long> {
    // SAFETY: the name is a C string, and what is returned is null or one.
    let mut at = unsafe { getenv(c"COVE_OWNER".as_ptr()) };
    if at.is_null() {
        return None;
    }
    let mut value: c_uint = 0;
    loop {
        // SAFETY: the string ends with a zero, at which this stops.
        let byte = unsafe { *at } as u8;
        if byte == 0 {
            return Some(value as c_long);
        }
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(digit.into())?;
        // SAFETY: the byte was not the last one.
        at = unsafe { at.add(1) };
    }
}

fn answer(result: c_long) -> c_long {
    if (-4095..0).contains(&result) {
        // SAFETY: the C library's place for it, this thread's own.
        unsafe { *__errno_location() = -result as c_int };
        return -1;
    }
    result
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let arguments = [a, b, c, d, e, f];
    // SAFETY: passed on as they came; the first word of a clone's arguments is its flags.
    unsafe {
        let owners = match number {
            number::CLONE3 => *(a as *const u64) & CLONE_NEWUSER != 0,
            number::PRLIMIT64 => a != 0 && a != call(number::GETPID, [0; 6]),
            _ => false,
        };
        answer(match owners {
            true => as_owner(number, arguments),
            false => call(number, arguments),
        })
    }
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linkat(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let arguments = [
        from_dir.into(),
        from as c_long,
        to_dir.into(),
        to as c_long,
        flags.into(),
        0,
    ];
    // SAFETY: passed on as they came.
    unsafe { answer(as_owner(number::LINKAT, arguments)) as c_int }
}

/// Before a dump CRIU has a child become the sandbox's user, enter the user namespace and then all
/// others, to see that they belong together. A guest that was restored once cannot be looked at from
/// there, because it does not let itself be traced and its memory was made outside. In that child,
/// the only one that is not root, the first step is left out: Cove made the namespaces and knows.
///
/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    // SAFETY: passed on as they came.
    unsafe {
        if kind as u64 == CLONE_NEWUSER && call(number::GETUID, [0; 6]) != 0 {
            return 0;
        }
        answer(call(number::SETNS, [fd.into(), kind.into(), 0, 0, 0, 0])) as c_int
    }
}

/// The kernel's encoding of device 5:0, `/dev/tty`.
const OWN_TERMINAL: u64 = 5 << 8;
/// Majors of terminals in `/dev/pts`.
const TERMINALS: core::ops::RangeInclusive<u32> = 136..=143;
/// Asks a descriptor for the device of the terminal it leads to.
const TIOCGDEV: c_long = 0x8004_5432;

/// As the kernel and the C library lay it out, up to what is of interest.
#[repr(C)]
pub struct Stat {
    dev: u64,
    ino: u64,
    #[cfg(target_arch = "x86_64")]
    links_mode_owners: [u64; 3],
    #[cfg(target_arch = "aarch64")]
    links_mode_owners: [u64; 2],
    rdev: u64,
}

/// A process that opened `/dev/tty` holds its session's terminal under a name that means something else
/// in each session, and CRIU wants to be sure of the session. It gets the terminal instead, which
/// is what the descriptor leads to, and saves it like any other descriptor of it; a restore opens the
/// terminal by its own name.
///
/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat64(fd: c_int, stat: *mut Stat) -> c_int {
    // SAFETY: passed on as they came; what a good answer filled in is read and written in place.
    unsafe {
        let result = call(number::FSTAT, [fd.into(), stat as c_long, 0, 0, 0, 0]);
        if result == 0 && (*stat).rdev == OWN_TERMINAL {
            let mut device: u32 = 0;
            let place = &raw mut device as c_long;
            let told = call(number::IOCTL, [fd.into(), TIOCGDEV, place, 0, 0, 0]);
            if told == 0 && TERMINALS.contains(&(device >> 8 & 0xfff)) {
                (*stat).rdev = device.into();
            }
        }
        answer(result) as c_int
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
