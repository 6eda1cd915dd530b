//! `cove-parser`: does one job on standard input and output, confined.
//!
//! Called by [`cove_parser::Parser`] with one argument, the order as JSON. The exit status tells how it
//! ended; a sentence on standard error is for the operator.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

use cove_parser::order::{Ending, Failed, Job};
use cove_parser::{answer, criu, driver, manifest, memory, tree};
use cove_unpack::confine::{self, Rights, Stage};
use rustix::process::{WaitOptions, waitpid};

/// What reading the root and standard input, writing files and standard output, and the allocator need.
/// Notably absent: anything that runs a program, makes a process or a socket, mounts, changes modes,
/// owners or names, or opens a file by its handle.
const CALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_readlinkat,
    libc::SYS_flistxattr,
    libc::SYS_fgetxattr,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_getrandom,
    libc::SYS_futex,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
/// Reads what its ids do not own, within its own root.
const DAC_READ_SEARCH: u32 = 1 << 2;

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
    let argument = std::env::args().nth(1);
    let order = driver::order(&argument.unwrap_or_default()).map_err(setup)?;
    let place = order.job.place();
    match confine::enter(order.parent, order.uid_base, place).map_err(setup)? {
        Stage::Outside { worker } => {
            let ended = waitpid(Some(worker), WaitOptions::empty()).ok().flatten();
            let status = ended.map(|(_, status)| status);
            if let Some(signal) = status.and_then(|status| status.terminating_signal()) {
                eprintln!("killed by signal {signal}");
            }
            let code = status.and_then(|status| status.exit_status());
            Ok(code
                .and_then(|code| u8::try_from(code).ok())
                .map_or(ExitCode::FAILURE, ExitCode::from))
        }
        Stage::Inside(cell) => {
            let (file_bytes, capabilities) = match &order.job {
                Job::UnpackMemory { most } => (*most, 0),
                Job::PackTree { .. }
                | Job::PackDirectory
                | Job::PackMemory { .. }
                | Job::EditImages { .. } => (0, DAC_READ_SEARCH),
                Job::ReadManifest | Job::ReadSignature | Job::ReadLog => (0, 0),
            };
            let rights = Rights {
                file_bytes,
                capabilities,
                calls: CALLS,
            };
            let root = confine::lock(cell, rights).map_err(setup)?;
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
