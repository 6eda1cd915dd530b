//! `cove-unpack`: unpacks the archive on standard input into the working directory, confined.
//!
//! Called by [`cove_unpack::driver`] with one argument, the order as JSON. Reports on standard
//! output, one JSON object a line; errors of its own go to standard error in plain words.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use cove_unpack::apply::Target;
use cove_unpack::archive::Archive;
use cove_unpack::confine::{self, Place, Rights, Stage};
use cove_unpack::driver::Order;
use cove_unpack::report::{Failure, MAX_WARNINGS, Message, Warning};
use cove_unpack::stream::Stream;
use rustix::process::{WaitOptions, waitpid};

/// A progress line after so many bytes or entries, whichever comes first.
const PROGRESS_BYTES: u64 = 8 << 20;
const PROGRESS_ENTRIES: u64 = 1000;

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
    let usage = |reason: String| Failure::Usage { reason };
    let argument = std::env::args()
        .nth(1)
        .ok_or_else(|| usage("one argument expected".to_owned()))?;
    let order: Order = serde_json::from_str(&argument).map_err(|error| usage(error.to_string()))?;
    match confine::enter(order.parent, order.uid_base, Place::WorkingDirectory)? {
        Stage::Outside { worker } => {
            let ended = waitpid(Some(worker), WaitOptions::empty()).ok().flatten();
            let status = ended.map(|(_, status)| status);
            if let Some(signal) = status.and_then(|status| status.terminating_signal()) {
                eprintln!("killed by signal {signal}");
            }
            let success = status.and_then(|status| status.exit_status()) == Some(0);
            Ok(if success {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Stage::Inside(cell) => {
            let root = confine::lock(cell, Rights::to_unpack(order.limits.file_bytes))?;
            work(root, &order)?;
            Ok(ExitCode::SUCCESS)
        }
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
        diff_id: archive.stream().diff_id(),
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
    let mut line = serde_json::to_vec(message).expect("messages are plain data");
    line.push(b'\n');
    let _ = std::io::stdout().write_all(&line);
}
