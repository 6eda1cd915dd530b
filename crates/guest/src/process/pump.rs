//! Carries one output stream of a command from its pipe or terminal into its ring.
//!
//! Without a foreground follower it never stops reading, so a command never waits for anybody to
//! look. With one it reads no more than the ring can take without dropping what the follower has
//! not had yet, and the command feels the follower's pace.

use std::os::fd::AsRawFd;
use std::rc::Rc;

use crate::watched::Watched;

use super::{Process, reap};
use crate::state::{State, unix_ms};

/// Read from a terminal after the leader's exit at most before the exit is reported; pipes say
/// themselves how much they hold.
const TERMINAL_REST: u64 = 64 * 1024;

enum Phase {
    Live,
    /// The leader is gone; this much is to be read before its exit may be reported.
    Draining(u64),
    /// The exit has been reported as far as this stream goes; others may still hold the pipe.
    Told,
}

enum Got {
    Data(usize),
    NothingNow,
    /// The foreground follower has to take something first.
    NoRoom,
    End,
}

pub async fn pump(
    state: Rc<State>,
    process: Rc<Process>,
    channel: usize,
    source: Rc<Watched>,
    terminal: bool,
) {
    let run = process.run.get().number;
    let mut phase = Phase::Live;
    loop {
        let room_made = process.room.notified();
        let leader_gone = process.leader_gone.notified();
        if matches!(phase, Phase::Live) && !process.running() {
            let rest = if terminal {
                TERMINAL_REST
            } else {
                pending(&source)
            };
            phase = Phase::Draining(rest);
        }
        if matches!(phase, Phase::Draining(0)) {
            reap::drained(&state, &process, run, channel);
            phase = Phase::Told;
        }
        let live = matches!(phase, Phase::Live);
        let got = if let Phase::Draining(_) = phase {
            // Readiness may not have been reported yet for what the leader wrote last.
            read(&state, &process, channel, &source)
        } else {
            tokio::select! {
                ready = source.readable() => match ready {
                    Ok(mut ready) => {
                        let got = read(&state, &process, channel, &source);
                        if matches!(got, Got::NothingNow) {
                            ready.clear_ready();
                        }
                        got
                    }
                    Err(_) => Got::End,
                },
                () = leader_gone, if live => continue,
            }
        };
        match got {
            Got::Data(count) => {
                if let Phase::Draining(rest) = &mut phase {
                    *rest = rest.saturating_sub(count as u64);
                }
                process.changed.notify_waiters();
            }
            Got::NothingNow => {
                if let Phase::Draining(rest) = &mut phase {
                    *rest = 0;
                }
            }
            Got::NoRoom => room_made.await,
            Got::End => break,
        }
    }
    if terminal {
        process.terminal.take();
    }
    reap::drained(&state, &process, run, channel);
}

fn read(state: &State, process: &Process, channel: usize, source: &Watched) -> Got {
    let room = state.table.room(process, channel);
    if room == 0 {
        return Got::NoRoom;
    }
    state.table.with_scratch(|scratch| {
        match rustix::io::read(source.get_ref(), &mut scratch[..room]) {
            Ok(0) => Got::End,
            Ok(count) => {
                let now = Some(unix_ms());
                state.table.keep(process, channel, &scratch[..count], now);
                Got::Data(count)
            }
            Err(rustix::io::Errno::AGAIN) => Got::NothingNow,
            // A terminal whose last user is gone says EIO.
            Err(_) => Got::End,
        }
    })
}

/// Bytes in the pipe now.
fn pending(source: &Watched) -> u64 {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    unsafe { libc::ioctl(source.as_raw_fd(), libc::FIONREAD, &mut count) };
    u64::try_from(count).unwrap_or(0)
}
