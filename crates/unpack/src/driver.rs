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
use crate::report::frame::FRAME_BYTES_MAX;
use crate::report::{Failure, MAX_WARNINGS, Message, Warning};

/// How often a stop request and the deadline are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Progress is far rarer than this; more frames than entries allowed means the program has gone wild.
const MAX_FRAMES: u64 = 4_000_000;
/// What is kept of the program's standard error, for the error message.
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
    #[error("cannot start the unpacking program")]
    Start(#[source] io::Error),
    #[error("cannot read the unpacking program's report")]
    Read(#[source] io::Error),
    #[error("the archive was refused")]
    Refused(#[from] Failure),
    #[error("unpacking took longer than {seconds} s")]
    Deadline { seconds: u64 },
    #[error("unpacking was stopped")]
    Stopped,
    #[error("the unpacking program ended without a result: {noise}")]
    Crashed { noise: String },
    #[error("the unpacking program sent an invalid report")]
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
    // Read once the program has ended; one that says more than a pipe holds waits there for its deadline.
    let (noise, errors) = io::pipe().map_err(UnpackError::Start)?;
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
        frames: 0,
        warnings: 0,
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
            let noise = match said(noise.into()) {
                noise if noise.is_empty() => status.to_string(),
                noise => noise,
            };
            Err(UnpackError::Crashed { noise })
        }
    }
}

/// The beginning of what a program that is gone left in the pipe, escaped.
fn said(pipe: OwnedFd) -> String {
    let mut noise = [0; MAX_NOISE_BYTES];
    // A process that was left behind may hold the other end; nobody waits for it.
    let read =
        rustix::io::ioctl_fionbio(&pipe, true).and_then(|()| rustix::io::read(&pipe, &mut noise));
    let noise = &noise[..read.unwrap_or(0)];
    noise.trim_ascii().escape_ascii().to_string()
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
    let mut chunk = [0; FRAME_BYTES_MAX];
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
            // Half a frame is what a program that crashed leaves, never one that has given its result.
            return match pending.is_empty() || reader.result.is_none() {
                true => Ok(()),
                false => Err(UnpackError::BadReport),
            };
        }
        pending.extend_from_slice(&chunk[..count]);
        // At most one frame that is not whole is left, so this stays below two of them.
        while let Some((message, length)) =
            Message::decode(&pending).map_err(|_| UnpackError::BadReport)?
        {
            pending.drain(..length);
            reader.take(message, event)?;
        }
    }
}

struct Reader {
    frames: u64,
    warnings: u64,
    result: Option<Result<Summary, Failure>>,
}

impl Reader {
    fn take(&mut self, message: Message, event: &mut dyn FnMut(Event)) -> Result<(), UnpackError> {
        self.frames += 1;
        if self.frames > MAX_FRAMES || self.result.is_some() {
            return Err(UnpackError::BadReport);
        }
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
                digest,
                warnings,
            } => {
                self.result = Some(Ok(Summary {
                    bytes,
                    entries,
                    diff_id: digest.map(diff_id),
                    warnings,
                }));
            }
            Message::Failed { failure } => self.result = Some(Err(failure)),
        }
        Ok(())
    }
}

fn diff_id(digest: [u8; 32]) -> String {
    format!("sha256:{}", hex::encode(digest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

    use std::io::Write;

    use super::*;

    /// What is made of a report that consists of these bytes.
    fn read(bytes: &[u8]) -> (Result<(), UnpackError>, Reader) {
        let (pipe, mut writer) = io::pipe().unwrap();
        let bytes = bytes.to_owned();
        let writing = std::thread::spawn(move || {
            // A reader that has seen enough closes its end.
            let _ = writer.write_all(&bytes);
        });
        let mut reader = Reader {
            frames: 0,
            warnings: 0,
            result: None,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let stop = AtomicBool::new(false);
        let read = read_report(pipe.into(), &mut reader, &stop, deadline, &mut |_| ());
        writing.join().unwrap();
        (read, reader)
    }

    fn done() -> Vec<u8> {
        let message = Message::Done {
            bytes: 7,
            entries: 1,
            digest: Some([0xab; 32]),
            warnings: 0,
        };
        message.encode()
    }

    #[test]
    fn a_report_ends_with_its_result() {
        let progress = Message::Progress {
            bytes: 1,
            entries: 1,
        };
        let report = [progress.encode(), done()].concat();
        let (read_to_end, reader) = read(&report);
        read_to_end.unwrap();
        let summary = reader.result.unwrap().unwrap();
        let digest = format!("sha256:{}", "ab".repeat(32));
        assert_eq!(summary.diff_id, Some(digest));
        for more in [done(), progress.encode(), vec![0]] {
            let (refused, _) = read(&[done(), more].concat());
            assert!(matches!(refused, Err(UnpackError::BadReport)));
        }
    }

    #[test]
    fn what_is_no_report_is_refused_or_counts_as_a_crash() {
        for nonsense in [&b"{\"type\":\"done\"}\n"[..], &[0xff; 5000]] {
            let padded = [nonsense, &[b'x'; 100]].concat();
            let (refused, _) = read(&padded);
            assert!(matches!(refused, Err(UnpackError::BadReport)));
        }
        let whole = done();
        let (ended, reader) = read(&whole[..whole.len() - 1]);
        ended.unwrap();
        assert!(reader.result.is_none());
    }

    #[test]
    fn more_warnings_than_there_can_be_are_refused() {
        let warning = Warning::TrailingData;
        let frame = Message::Warning { warning }.encode();
        let allowed = frame.repeat(MAX_WARNINGS as usize);
        read(&allowed).0.unwrap();
        let (refused, _) = read(&[allowed, frame].concat());
        assert!(matches!(refused, Err(UnpackError::BadReport)));
    }
}
