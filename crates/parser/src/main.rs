//! `cove-parser`: does one job on standard input and output, confined.
//!
//! Called by [`cove_parser::Parser`] with one argument, the order as JSON. The exit status tells how it
//! ended; a sentence on standard error is for the operator.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

use cove_confine::cell::{self, Identity, Network, Rights, Stage, Walls};
use cove_confine::rights;
use cove_confine::seccomp::{Otherwise, Threads, allow_only, calls};
use cove_parser::order::{Ending, Failed, Job};
use cove_parser::{answer, criu, driver, manifest, memory, tree};
use rustix::thread::CapabilitySet;

/// Reading the root and standard input, writing files and standard output. Notably absent: anything that
/// runs a program, makes a process or a socket, mounts, changes modes, owners or names, or opens a file by
/// its handle.
const CALLS: &[&[libc::c_long]] = &[
    calls::BASE,
    calls::FILES,
    &[
        libc::SYS_pread64,
        libc::SYS_writev,
        libc::SYS_readlinkat,
        libc::SYS_flistxattr,
        libc::SYS_fgetxattr,
    ],
];
/// What a job holds in memory has bounds far below.
const MAX_ADDRESS_SPACE: u64 = 1 << 30;
/// One per level of a directory tree, and a few.
const MAX_OPEN_FILES: u64 = 1024;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(failed) => {
            eprintln!("{}", failed.why);
            ExitCode::from(failed.ending as u8)
        }
    }
}

fn setup(why: impl ToString) -> Failed {
    Failed {
        ending: Ending::Setup,
        why: why.to_string(),
    }
}

fn run() -> Result<ExitCode, Failed> {
    rights::close_other_descriptors().map_err(setup)?;
    let argument = std::env::args().nth(1);
    let order = driver::order(&argument.unwrap_or_default()).map_err(setup)?;
    cell::die_with_parent(order.parent).map_err(setup)?;
    let walls = Walls {
        place: order.job.place(),
        identity: match order.job {
            Job::PackDirectory => Identity::User(order.uid_base),
            _ => Identity::Range(order.uid_base),
        },
        network: Network::None,
    };
    match cell::enter(walls).map_err(setup)? {
        Stage::Outside { worker } => {
            let code = cell::wait(worker);
            Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
        }
        Stage::Inside(cell) => {
            let (file_bytes, capabilities) = match &order.job {
                Job::UnpackMemory { most } => (*most, CapabilitySet::empty()),
                // Reads what its ids do not own, within its own root.
                Job::PackTree { .. }
                | Job::PackDirectory
                | Job::PackMemory { .. }
                | Job::EditImages { .. } => (0, CapabilitySet::DAC_READ_SEARCH),
                Job::ReadManifest | Job::ReadSignature | Job::ReadLog => {
                    (0, CapabilitySet::empty())
                }
            };
            let rights = Rights {
                address_space: MAX_ADDRESS_SPACE,
                open_files: MAX_OPEN_FILES,
                file_bytes,
                capabilities,
            };
            let root = cell::lock(cell, rights).map_err(setup)?;
            allow_only(CALLS, Otherwise::Kill, Threads::This).map_err(setup)?;
            work(&root, &order.job)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn work(root: &OwnedFd, job: &Job) -> Result<(), Failed> {
    let mut output = output();
    match job {
        Job::PackTree { gzip, .. } => tree::pack(root.as_fd(), *gzip, output)?,
        Job::PackDirectory => tree::pack_living(root.as_fd(), output)?,
        Job::PackMemory { .. } => memory::pack(root.as_fd(), output)?,
        Job::UnpackMemory { most } => memory::unpack(input(), root.as_fd(), *most)?,
        Job::ReadManifest => {
            let manifest = manifest::read_manifest(&all(manifest::DESCRIPTION_MAX)?)?;
            let answer = manifest::encode(&manifest).map_err(|e| Failed::damaged(e.to_string()))?;
            output.write_all(&answer)?;
        }
        Job::ReadSignature => {
            let signature = manifest::read_signature(&all(manifest::DESCRIPTION_MAX)?)?;
            output.write_all(&answer::encode_signature(signature.as_ref()))?;
        }
        Job::ReadLog => {
            let mut log = Vec::new();
            input().take(criu::LOG_MAX).read_to_end(&mut log)?;
            let finding = criu::log::find(&log);
            output.write_all(&answer::encode_finding(finding.as_ref()))?;
        }
        Job::EditImages { edits, .. } => {
            output.write_all(&criu::edit_images(root.as_fd(), edits)?)?;
        }
    }
    Ok(())
}

/// All of standard input, when it is no longer than that.
fn all(most: usize) -> Result<Vec<u8>, Failed> {
    let mut bytes = Vec::new();
    input().take(most as u64 + 1).read_to_end(&mut bytes)?;
    match bytes.len() > most {
        true => Err(Failed::too_large("it is too long")),
        false => Ok(bytes),
    }
}

/// Standard input without the buffer and lock of the standard library.
fn input() -> File {
    // SAFETY: standard input is open (the driver gives it), and every job takes it once at most.
    File::from(unsafe { OwnedFd::from_raw_fd(0) })
}

fn output() -> File {
    // SAFETY: standard output is open (the driver gives it) and used by nothing else.
    File::from(unsafe { OwnedFd::from_raw_fd(1) })
}
