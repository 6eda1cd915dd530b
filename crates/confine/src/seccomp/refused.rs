//! Calls that a filter refused, noted by number, so that somebody can say so in the log.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers beyond are noted as the last one; the kernel is far from there.
const NUMBERS: usize = 1024;
const BITS: usize = u64::BITS as usize;

/// A signal handler has nowhere else to keep them.
static REFUSED: [AtomicU64; NUMBERS / BITS] = [const { AtomicU64::new(0) }; NUMBERS / BITS];

/// What was refused since [`note_refused`], by number.
#[derive(Debug)]
pub struct Refused(());

/// Makes calls that a filter with [`super::Otherwise::RefuseNoted`] refuses fail with EPERM, and notes
/// them. Call before the filter is installed.
pub fn note_refused() -> io::Result<Refused> {
    // SAFETY: an action of zeroes is a valid one to fill in.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_refusal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler only touches atomics and the registers it is handed.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(Refused(())),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Refused {
    /// The numbers that came since the last time.
    pub fn take(&self) -> Vec<usize> {
        let words = REFUSED.iter().enumerate();
        words
            .flat_map(|(at, word)| {
                let bits = word.swap(0, Relaxed);
                let set = (0..BITS).filter(move |bit| bits & (1 << bit) != 0);
                set.map(move |bit| at * BITS + bit)
            })
            .collect()
    }
}

/// The kernel did not run the call and goes on behind it, with the result that is put into its register.
extern "C" fn on_refusal(
    _signal: libc::c_int,
    _information: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel hands over a context that is this handler's until it returns.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let failed = -i64::from(libc::EPERM);
    #[cfg(target_arch = "x86_64")]
    let number = {
        let result = &mut context.uc_mcontext.gregs[libc::REG_RAX as usize];
        std::mem::replace(result, failed) as usize
    };
    #[cfg(target_arch = "aarch64")]
    let number = {
        context.uc_mcontext.regs[0] = failed as u64;
        context.uc_mcontext.regs[8] as usize
    };
    let number = number.min(NUMBERS - 1);
    REFUSED[number / BITS].fetch_or(1 << (number % BITS), Relaxed);
}

#[cfg(test)]
mod tests {
    use crate::seccomp::{Otherwise, Rule, Threads, install, note_refused};

    #[test]
    fn a_refused_call_fails_and_is_told() {
        let refused = note_refused().unwrap();
        let outcome = std::thread::spawn(|| {
            // SAFETY: plain flags; the unused arguments are zero as the kernel demands.
            let given_up = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            assert_eq!(given_up, 0);
            // Everything this thread needs to go on to its end, and not the one it asks for.
            let allowed: Vec<_> = (0..512)
                .filter(|number| *number != libc::SYS_getpriority)
                .map(Rule::allow)
                .collect();
            install(&allowed, Otherwise::RefuseNoted, Threads::This).unwrap();
            // SAFETY: asks for a number.
            let got = unsafe { libc::syscall(libc::SYS_getpriority, 0, 0) };
            (got, std::io::Error::last_os_error().raw_os_error())
        });
        assert_eq!(outcome.join().unwrap(), (-1, Some(libc::EPERM)));
        assert_eq!(refused.take(), [libc::SYS_getpriority as usize]);
        assert_eq!(refused.take(), Vec::<usize>::new());
    }
}
