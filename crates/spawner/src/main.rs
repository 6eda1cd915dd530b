//! The spawner: reads requests on descriptor 3 until the engine is gone.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use cove_spawner::message::{Failure, PrepareReply, Request};
use cove_spawner::side::SIDE;
use cove_wire::packet;

mod child;
mod clone;
mod criu;
mod host_mounts;
mod keeper;
mod kernel_files;
mod lockdown;
mod mounts;
mod resolver;
mod seccomp;
mod supervise;
mod volumes;

const REQUESTS: i32 = 3;

fn main() {
    // SAFETY: the engine starts this program with its socket as descriptor 3 and nothing else owns it.
    let requests = unsafe { OwnedFd::from_raw_fd(REQUESTS) };
    // SAFETY: setting SIGCHLD to "ignore" makes the kernel reap children; no handler runs.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    // The engine may be stopped from a terminal with Ctrl-C; it decides when the spawner goes.
    // SAFETY: moves this process into its own session, no memory involved.
    unsafe { libc::setsid() };
    let filters = seccomp::programs();
    if let Err(error) = clone::keep_capabilities_across_uids() {
        fail(&error);
    }
    let kernel_files = kernel_files::KernelFiles::of_this_host();
    match packet::receive_hello(&requests) {
        Ok(Some(hello)) => {
            if let Err(refusal) = SIDE.accept(&hello) {
                let told = packet::send(&requests, &PrepareReply::Refused(refusal.clone()), &[]);
                if told.is_err() {
                    fail(&refusal);
                }
                return;
            }
        }
        Ok(None) => return,
        Err(error) => fail(&error),
    }
    let mut alone = false;
    loop {
        let (request, fds) = match packet::receive::<Request>(&requests) {
            Ok(Some(received)) => received,
            Ok(None) => return,
            Err(error) => {
                fail(&error);
            }
        };
        let sent = match serve(&request, fds, (&filters, &kernel_files), &mut alone) {
            Ok((reply, fds)) => {
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                packet::send(&requests, &reply, &fds)
            }
            Err(failure) => packet::send(&requests, &PrepareReply::Failed(failure), &[]),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Says why on the server's standard error, where that takes a line at once: a pipe that nobody reads must
/// not keep this process from ending.
fn fail(error: &dyn std::fmt::Display) -> ! {
    let mut stderr = libc::pollfd {
        fd: libc::STDERR_FILENO,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry that lives through the call, which does not wait.
    if unsafe { libc::poll(&raw mut stderr, 1, 0) } == 1 {
        let line = format!("spawner: {error}\n");
        // SAFETY: the line lives through the call; whether it came out is not looked at.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }
    std::process::exit(1);
}

fn serve(
    request: &Request,
    fds: Vec<OwnedFd>,
    (filters, kernel_files): (&seccomp::Filters, &kernel_files::KernelFiles),
    alone: &mut bool,
) -> Result<(PrepareReply, Vec<OwnedFd>), Failure> {
    if !*alone {
        // The engine names the directories it will speak of when it starts this program.
        let paths: Vec<String> = resolver::other_arguments().collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        host_mounts::keep_only(&paths)?;
        *alone = true;
    }
    match request {
        Request::Prepare(prepare) => {
            let made = clone::prepare(prepare, filters, kernel_files)?;
            let reply = PrepareReply::Prepared { pid: made.pid };
            Ok((reply, vec![made.pidfd, made.user_ns, made.socket]))
        }
        Request::Ids { uid_base } => Ok((PrepareReply::Ids, vec![clone::ids(*uid_base)?])),
        Request::Criu(request) => {
            let (pid, pidfd) = criu::run(request, fds)?;
            Ok((PrepareReply::Criu { pid }, vec![pidfd]))
        }
    }
}
