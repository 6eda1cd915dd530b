//! PID 1 of a seat that holds a virtual machine. It starts QEMU under a user id of its own and without rights, gives
//! up its own, and from then on carries the host's calls to the guest over a port of the machine. It ends with QEMU,
//! and QEMU with it: it is PID 1 of their namespace.
//!
//! The first argument says whether the machine boots (`machine`), goes on from what was captured (`restore`), or only
//! shows that it could (`prove`).
//!
//! With the argument `disk` it makes a disk image of a tree instead and ends.
//!
//! Descriptors: 3 listens for the host, 4 leads to the engine until the guest answers, those from 5 on are what the
//! arguments speak of.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

use cove_spawner::message::{ChildReply, Failure};
use cove_wire::packet;

mod console;
mod disk;
mod machine;
mod memory;
mod program;
mod qmp;
mod save;

const ENGINE: i32 = 4;

/// What the engine is told when something fails: the step, and what the program said.
type Told = Result<(), (String, io::Error)>;

fn main() -> ExitCode {
    // SAFETY: the spawner leaves this descriptor open for this program, and nothing else owns it.
    let engine = unsafe { OwnedFd::from_raw_fd(ENGINE) };
    // SAFETY: the number is that of an open descriptor; the flag keeps it from other programs.
    unsafe { libc::fcntl(ENGINE, libc::F_SETFD, libc::FD_CLOEXEC) };
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next();
    let arguments: Vec<String> = arguments.collect();
    let ended = match mode.as_deref() {
        Some("disk") => disk::make(&arguments),
        mode => match machine::Plan::of(mode.unwrap_or_default(), &arguments) {
            Some(plan) => return machine::run(plan, engine),
            None => Err(("start".into(), io::ErrorKind::InvalidInput.into())),
        },
    };
    tell(engine.as_fd(), &ended);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The last word to the engine.
fn tell(engine: std::os::fd::BorrowedFd<'_>, outcome: &Told) {
    let reply = match outcome {
        Ok(()) => ChildReply::Ready,
        Err((step, error)) => ChildReply::Failed(Failure {
            step: step.clone(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }),
    };
    // An engine that is gone ends this seat anyway.
    let _ = packet::send(engine, &reply, &[]);
}
