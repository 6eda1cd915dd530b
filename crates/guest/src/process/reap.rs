//! Takes every dead child, ours and the orphans that fall to PID 1, and publishes exits.

use std::io;
use std::rc::Rc;

use crate::watched::Watched;
use cove_protocol::message::Exit;

use super::{CHANNELS, Input, Process};
use crate::own_kernel::ENDED_CODE;
use crate::state::State;

/// The code of a command killed by SIGKILL, and of a shell whose child was.
const KILLED_CODE: i32 = 128 + libc::SIGKILL;

pub async fn reap(state: Rc<State>, signals: Watched) {
    let mut info = [0; size_of::<libc::signalfd_siginfo>() * 8];
    loop {
        let Ok(mut ready) = signals.readable().await else {
            return;
        };
        // The signals only say that something happened; `waitpid` says what.
        while ready
            .try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut info)?))
            .is_ok_and(|read| read.is_ok())
        {}
        while let Some((pid, status)) = next_dead_child() {
            if let Some(process) = state.table.ended(pid) {
                leader_ended(&state, &process, status);
            }
        }
        state.reaped.notify_waiters();
    }
}

fn next_dead_child() -> Option<(i32, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: writes the status into a local.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
        if pid > 0 {
            return Some((pid, status));
        }
        if pid == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

fn leader_ended(state: &State, process: &Process, status: i32) {
    // SAFETY: signal 0 only asks whether the group still has members.
    let survivors = unsafe { libc::kill(-process.pid(), 0) == 0 };
    {
        let mut streams = process.streams.borrow_mut();
        streams.status = Some(status);
        streams.survivors = survivors;
    }
    process.leader_gone.notify_waiters();
    publish(state, process);
}

/// A pump found nothing left of what the leader wrote.
pub fn drained(state: &State, process: &Process, run: u64, channel: usize) {
    // What outlived a run of a service may hold its pipes for as long as it likes.
    if process.run.get().number != run {
        return;
    }
    process.streams.borrow_mut().drained[channel] = true;
    publish(state, process);
}

fn publish(state: &State, process: &Process) {
    let mut streams = process.streams.borrow_mut();
    let Some(status) = streams.status else {
        return;
    };
    if streams.exit.is_some() || streams.last.is_some() || streams.drained != [true; CHANNELS] {
        return;
    }
    let mut exit = describe(process, status);
    exit.stdout_bytes = streams.rings[0].end();
    exit.stderr_bytes = streams.rings[1].end();
    // Killed itself, or a shell whose child was; either way not by the guest.
    let ended = exit.code == KILLED_CODE || (state.own_kernel && exit.code == ENDED_CODE);
    if ended && !process.killed.get() {
        let memory = state.figures.memory();
        if memory.oom_kills > process.run.get().oom_kills_before {
            // A kernel of the sandbox's own does not know what happened to it.
            if exit.code == ENDED_CODE {
                (exit.code, exit.signal) = (KILLED_CODE, libc::SIGKILL);
            }
            exit.oom = true;
            exit.memory_limit_bytes = memory.limit;
            exit.memory_peak_bytes = memory.peak;
        }
    }
    if process.supervised.get() {
        streams.last = Some(exit);
        drop(streams);
        process.changed.notify_waiters();
        return;
    }
    streams.exit = Some(exit);
    drop(streams);
    // A call that is writing now holds the lock and sees the exit itself.
    if let Ok(mut input) = process.input.try_lock() {
        *input = Input::Closed;
    }
    process.changed.notify_waiters();
}

fn describe(process: &Process, status: i32) -> Exit {
    let signal = if libc::WIFSIGNALED(status) {
        libc::WTERMSIG(status)
    } else {
        0
    };
    let code = if signal == 0 {
        libc::WEXITSTATUS(status)
    } else {
        128 + signal
    };
    Exit {
        code,
        signal,
        timed_out: process.timed_out.get(),
        duration_ms: u64::try_from(process.run.get().started.elapsed().as_millis())
            .unwrap_or(u64::MAX),
        ..Exit::default()
    }
}
