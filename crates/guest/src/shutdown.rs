//! The end: everything inside is asked to stop, then made to, and the disk is flushed.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use cove_protocol::message::Shutdown;
use tokio::time::{Instant, sleep, sleep_until};

use crate::call::{Call, Ended};
use crate::failure::Failure;
use crate::process::kept;
use crate::state::State;

/// How long killed processes may take to disappear.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Between two hang-ups of the same terminal.
const HANG_UP_AGAIN: Duration = Duration::from_millis(200);
/// A longer grace time is cut.
const GRACE_MAX: Duration = Duration::from_millis(cove_limits::STOP_GRACE_MAX_MS);

pub async fn serve(state: &Rc<State>, call: &mut Call, request: Shutdown) -> Result<(), Ended> {
    state.stopping.set(true);
    state.services.close();
    signal_all(state, libc::SIGTERM);
    // Stopped processes act only when they go on.
    signal_all(state, libc::SIGCONT);
    let grace = Duration::from_millis(request.grace_ms).min(GRACE_MAX);
    let gone = tokio::select! {
        gone = all_gone_within(state, grace) => gone,
        never = hang_up_terminals(state) => match never {},
    };
    if !gone {
        signal_all(state, libc::SIGKILL);
        all_gone_within(state, KILL_WAIT).await;
    }
    kept::write(state).await;
    flush();
    let told = call.done(0).await;
    state.finished.notify_one();
    told?;
    Ok(())
}

/// Everything that was written is on the disk when the answer comes.
pub async fn flush_only(call: &mut Call) -> Result<(), Ended> {
    // It may take long, and other calls go on meanwhile.
    flushed().await?;
    call.done(0).await?;
    Ok(())
}

/// On a thread of its own.
pub async fn flushed() -> Result<(), Failure> {
    crate::thread::run(flush).await
}

/// Interactive shells ignore SIGTERM but end when their terminal hangs up. Said more than once: a
/// shell about to wait for input takes note of a signal only at the next one.
async fn hang_up_terminals(state: &State) -> Infallible {
    loop {
        for process in state.table.running() {
            if process.terminal.borrow().is_some() {
                process.signal_group(libc::SIGHUP);
            }
        }
        sleep(HANG_UP_AGAIN).await;
    }
}

/// PID 1 reaches everything in its namespace; an ordinary process only what it started.
fn signal_all(state: &State, signal: i32) {
    if std::process::id() == 1 {
        // SAFETY: as PID 1 this reaches every process of the sandbox but this one.
        unsafe { libc::kill(-1, signal) };
    } else {
        for process in state.table.running() {
            process.signal_group(signal);
        }
    }
}

async fn all_gone_within(state: &State, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let reaped = state.reaped.notified();
        if all_gone(state) {
            return true;
        }
        tokio::select! {
            () = reaped => {}
            () = sleep_until(deadline) => return all_gone(state),
        }
    }
}

/// Orphans become children of PID 1, so having none means being alone.
fn all_gone(state: &State) -> bool {
    if std::process::id() != 1 {
        return state.table.running_count() == 0;
    }
    // SAFETY: WNOWAIT leaves every child as it is; the struct is local.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, &mut info, flags) < 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD)
    }
}

/// Only the sandbox's own disk: flushing everything would wait for its neighbours.
fn flush() {
    let root = rustix::fs::open(
        "/",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    if let Ok(root) = root {
        // What cannot be flushed now is for whoever unmounts it to find.
        let _ = rustix::fs::syncfs(root);
    }
}
