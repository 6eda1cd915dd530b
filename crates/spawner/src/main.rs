//! The spawner: reads requests on descriptor 3 until the engine is gone.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use cove_spawner::message::{Prepare, PrepareReply};
use cove_spawner::socket;

mod child;
mod clone;
mod host_mounts;
mod lockdown;
mod mounts;
mod seccomp;

const REQUESTS: i32 = 3;

fn main() {
    // SAFETY: the engine starts this program with its socket as descriptor 3 and nothing else owns it.
    let requests = unsafe { OwnedFd::from_raw_fd(REQUESTS) };
    // SAFETY: setting SIGCHLD to "ignore" makes the kernel reap children; no handler runs.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    // The engine may be stopped from a terminal with Ctrl-C; it decides when the spawner goes.
    // SAFETY: moves this process into its own session, no memory involved.
    unsafe { libc::setsid() };
    let filter = seccomp::program();
    if let Err(error) = clone::keep_capabilities_across_uids() {
        eprintln!("spawner: {error}");
        std::process::exit(1);
    }
    let mut alone = false;
    loop {
        let prepare: Prepare = match socket::receive(&requests) {
            Ok(Some((prepare, _))) => prepare,
            Ok(None) => return,
            Err(error) => {
                eprintln!("spawner: {error}");
                std::process::exit(1);
            }
        };
        let made = if alone {
            Ok(())
        } else {
            host_mounts::keep_only(&[&prepare.guest_dir, &prepare.staging])
        }
        .and_then(|()| {
            alone = true;
            clone::prepare(&prepare, &filter)
        });
        let sent = match made {
            Ok(made) => {
                let fds = [
                    made.pidfd.as_fd(),
                    made.user_ns.as_fd(),
                    made.socket.as_fd(),
                ];
                socket::send(&requests, &PrepareReply::Prepared { pid: made.pid }, &fds)
            }
            Err(failure) => socket::send(&requests, &PrepareReply::Failed(failure), &[]),
        };
        if sent.is_err() {
            return;
        }
    }
}
