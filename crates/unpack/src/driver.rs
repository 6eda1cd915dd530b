//! The privileged side: starts `cove-unpack` on a directory and reads its report under limits.
//! Blocking; holds the archive only as a descriptor and never looks into it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cove_confine::SealedProgram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::limits::{Content, UnpackLimits};
use crate::report::{Failure, MAX_LINE_BYTES, MAX_WARNINGS, Message, Warning};

/// How often a stop request and the deadline are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Progress is far rarer than this; more lines than entries allowed means the program has gone wild.
const MAX_LINES: u64 = 4_000_000;
/// What is kept of text that is not a report line, for the error message.
const MAX_NOISE_BYTES: usize = 1024;

/// The program's one argument.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The process that started the program.
    pub parent: u32,
    pub uid_base: u32,
    pub content: Content,
    /// Whether to hash the uncompressed archive.
    pub hash: bool,
    pub limits: UnpackLimits,
}

/// One archive into one directory.
#[derive(Debug)]
pub struct Job<'a> {
    pub program: &'a SealedProgram,
    pub target: &'a Path,
    /// The archive: a file or the reading end of a pipe.
    pub input: OwnedFd,
    /// First of 65,536 uids (and gids) that nothing else on the host uses.
    pub uid_base: u32,
    pub content: Content,
    pub hash: bool,
    pub limits: UnpackLimits,
}

/// What came of it, as the program tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    pub bytes: u64,
    pub entries: u64,
    /// `sha256:…` of the uncompressed archive, when asked for.
    pub diff_id: Option<String>,
    /// All warnings, also those beyond the ones reported.
    pub warnings: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Progress { bytes: u64, entries: u64 },
    Warning(Warning),
}

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("could not start the unpacking program")]
    Start(#[source] io::Error),
    #[error("could not read the unpacking program's report")]
    Read(#[source] io::Error),
    #[error("the archive was refused")]
    Refused(#[from] Failure),
    #[error("unpacking took longer than {seconds} s")]
    Deadline { seconds: u64 },
    #[error("unpacking was stopped")]
    Stopped,
    #[error("the unpacking program ended without a result: {noise}")]
    Crashed { noise: String },
    #[error("the unpacking program sent a report that makes no sense")]
    BadReport,
}

/// Unpacks, calling `event` as it goes. `stop` ends it early. On any error the directory is left
/// half filled, for the caller to delete.
pub fn unpack(
    job: Job<'_>,
    stop: &AtomicBool,
    event: &mut dyn FnMut(Event),
) -> Result<Summary, UnpackError> {
    let order = Order {
        parent: std::process::id(),
        uid_base: job.uid_base,
        content: job.content,
        hash: job.hash,
        limits: job.limits,
    };
    let order = serde_json::to_string(&order).expect("the order is plain data");
    let (report, output) = io::pipe().map_err(UnpackError::Start)?;
    let errors = output.try_clone().map_err(UnpackError::Start)?;
    let child = job
        .program
        .command()
        .arg(order)
        .current_dir(job.target)
        .stdin(Stdio::from(job.input))
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors))
        .spawn()
        .map_err(UnpackError::Start)?;
    let mut child = Running(child);
    let deadline = Instant::now() + Duration::from_secs(job.limits.seconds);
    let mut reader = Reader {
        lines: 0,
        warnings: 0,
        noise: Vec::new(),
        result: None,
    };
    let read = read_report(report.into(), &mut reader, stop, deadline, event);
    match read {
        Ok(()) => {}
        Err(UnpackError::Deadline { .. }) => {
            return Err(UnpackError::Deadline {
                seconds: job.limits.seconds,
            });
        }
        Err(error) => return Err(error),
    }
    let status = child.0.wait().map_err(UnpackError::Read)?;
    match reader.result {
        Some(Ok(summary)) if status.success() => Ok(summary),
        Some(Err(failure)) => Err(UnpackError::Refused(failure)),
        _ => {
            let noise = String::from_utf8_lossy(&reader.noise).trim().to_owned();
            let noise = if noise.is_empty() {
                status.to_string()
            } else {
                noise
            };
            Err(UnpackError::Crashed { noise })
        }
    }
}

/// Kills the program when dropped before its end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read_report(
    pipe: OwnedFd,
    reader: &mut Reader,
    stop: &AtomicBool,
    deadline: Instant,
    event: &mut dyn FnMut(Event),
) -> Result<(), UnpackError> {
    let read_error = |error: rustix::io::Errno| UnpackError::Read(error.into());
    let tick = Timespec {
        tv_sec: 0,
        tv_nsec: TICK.as_nanos() as i64,
    };
    let mut pending = Vec::new();
    let mut chunk = [0; MAX_LINE_BYTES];
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(UnpackError::Stopped);
        }
        if Instant::now() >= deadline {
            return Err(UnpackError::Deadline { seconds: 0 });
        }
        let mut fds = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
        match poll(&mut fds, Some(&tick)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(read_error(error)),
        }
        let count = rustix::io::read(&pipe, &mut chunk).map_err(read_error)?;
        if count == 0 {
            if !pending.is_empty() {
                reader.line(&pending, event)?;
            }
            return Ok(());
        }
        pending.extend_from_slice(&chunk[..count]);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            reader.line(&line[..end], event)?;
        }
        if pending.len() > MAX_LINE_BYTES {
            return Err(UnpackError::BadReport);
        }
    }
}

struct Reader {
    lines: u64,
    warnings: u64,
    noise: Vec<u8>,
    result: Option<Result<Summary, Failure>>,
}

impl Reader {
    fn line(&mut self, line: &[u8], event: &mut dyn FnMut(Event)) -> Result<(), UnpackError> {
        self.lines += 1;
        if self.lines > MAX_LINES || line.len() > MAX_LINE_BYTES || self.result.is_some() {
            return Err(UnpackError::BadReport);
        }
        let message = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(_) => {
                let room = MAX_NOISE_BYTES - self.noise.len().min(MAX_NOISE_BYTES);
                self.noise.extend_from_slice(&line[..line.len().min(room)]);
                return Ok(());
            }
        };
        match message {
            Message::Progress { bytes, entries } => event(Event::Progress { bytes, entries }),
            Message::Warning { warning } => {
                self.warnings += 1;
                if self.warnings > MAX_WARNINGS {
                    return Err(UnpackError::BadReport);
                }
                event(Event::Warning(warning));
            }
            Message::Done {
                bytes,
                entries,
                diff_id,
                warnings,
            } => {
                self.result = Some(Ok(Summary {
                    bytes,
                    entries,
                    diff_id,
                    warnings,
                }));
            }
            Message::Failed { failure } => self.result = Some(Err(failure)),
        }
        Ok(())
    }
}
