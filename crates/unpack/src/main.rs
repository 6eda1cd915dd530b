//! `cove-unpack`: unpacks the archive on standard input into the working directory, confined.
//!
//! Called by [`cove_unpack::driver`] with one argument, the order as JSON. Reports on standard
//! output in frames ([`cove_unpack::report`]); errors of its own go to standard error in plain words.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use cove_confine::cell::{self, Identity, Network, Rights, RootDirectory, Stage, Walls};
use cove_confine::seccomp::{Otherwise, Threads, allow_only, calls};
use cove_confine::{ConfineError, rights};
use cove_unpack::apply::Target;
use cove_unpack::archive::Archive;
use cove_unpack::driver::Order;
use cove_unpack::report::{Failure, MAX_WARNINGS, Message, Warning};
use cove_unpack::stream::Stream;
use rustix::thread::CapabilitySet;

/// A progress line after so many bytes or entries, whichever comes first.
const PROGRESS_BYTES: u64 = 8 << 20;
const PROGRESS_ENTRIES: u64 = 1000;

/// A zstd window is at most 128 MiB; the rest is small.
const MAX_ADDRESS_SPACE: u64 = 1 << 30;
/// One per level of a directory tree being deleted, and a few.
const MAX_OPEN_FILES: u64 = 1024;
/// Over the files below its root: owners, modes and capabilities as the archive has them.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP);

/// Reading standard input, writing files below the root. Notably absent: anything that runs a program, makes
/// a process or a socket, mounts, or makes devices.
const CALLS: &[&[libc::c_long]] = &[
    calls::BASE,
    calls::FILES,
    &[
        libc::SYS_pwrite64,
        libc::SYS_openat2,
        libc::SYS_ftruncate,
        libc::SYS_mkdirat,
        libc::SYS_symlinkat,
        libc::SYS_linkat,
        libc::SYS_unlinkat,
        libc::SYS_fchown,
        libc::SYS_fchownat,
        libc::SYS_fchmod,
        libc::SYS_utimensat,
        libc::SYS_fsetxattr,
    ],
];

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(failure) => {
            send(&Message::Failed { failure });
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Failure> {
    rights::close_other_descriptors().map_err(failed("other descriptors"))?;
    let usage = |reason: String| Failure::Usage { reason };
    let argument = std::env::args()
        .nth(1)
        .ok_or_else(|| usage("one argument expected".to_owned()))?;
    let order: Order = serde_json::from_str(&argument).map_err(|error| usage(error.to_string()))?;
    cell::die_with_parent(order.parent)?;
    let walls = Walls {
        place: RootDirectory::WorkingDirectory,
        identity: Identity::Range(order.uid_base),
        network: Network::None,
    };
    match cell::enter(walls)? {
        Stage::Outside { worker } => Ok(match cell::wait(worker) {
            Some(0) => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }),
        Stage::Inside(cell) => {
            let rights = Rights {
                address_space: MAX_ADDRESS_SPACE,
                open_files: MAX_OPEN_FILES,
                file_bytes: order.limits.file_bytes,
                capabilities: KEPT,
            };
            let root = cell::lock(cell, rights)?;
            allow_only(CALLS, Otherwise::Kill, Threads::This).map_err(failed("system calls"))?;
            work(root, &order)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn failed(step: &'static str) -> impl Fn(std::io::Error) -> ConfineError {
    move |error| ConfineError {
        step,
        reason: error.to_string(),
    }
}

fn work(root: OwnedFd, order: &Order) -> Result<(), Failure> {
    let stream = Stream::new(input(), order.limits.total_bytes, order.hash);
    let mut archive = Archive::new(stream, order.limits);
    let mut warnings = 0;
    let mut warn = |warning: Warning| {
        warnings += 1;
        if warnings <= MAX_WARNINGS {
            send(&Message::Warning { warning });
        }
    };
    let mut reported = (0, 0);
    let mut progress = |archive: &Archive| {
        let now = (archive.stream().bytes(), archive.entries());
        if now.0 - reported.0 >= PROGRESS_BYTES || now.1 - reported.1 >= PROGRESS_ENTRIES {
            reported = now;
            send(&Message::Progress {
                bytes: now.0,
                entries: now.1,
            });
        }
    };
    Target::new(root, order.limits, order.content, &mut warn)
        .unpack(&mut archive, &mut progress)?;
    send(&Message::Done {
        bytes: archive.stream().bytes(),
        entries: archive.entries(),
        digest: archive.stream().digest(),
        warnings,
    });
    Ok(())
}

/// Standard input without the buffer and lock of the standard library.
fn input() -> Box<dyn Read> {
    // SAFETY: standard input is open (the driver gives it) and nothing else in the program uses it.
    Box::new(File::from(unsafe { OwnedFd::from_raw_fd(0) }))
}

/// A parent that no longer reads will kill this process anyway, so a failed write changes nothing.
fn send(message: &Message) {
    let mut output = std::io::stdout();
    let _ = output.write_all(&message.encode());
    let _ = output.flush();
}
