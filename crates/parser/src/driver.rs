//! The privileged side: starts `cove-parser` on one job, holds what it reads as a descriptor, and checks
//! what it answers. Blocking. The program ends when the thread that started it does, so a job is begun and
//! waited for by the same one.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use cove_confine::SealedProgram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;

use crate::answer::{
    BadAnswer, FINDING_MAX, Finding, REPLACEMENTS_MAX, Replacement, SIGNATURE_BYTES, Signature,
    decode_finding, decode_replacements, decode_signature,
};
use crate::manifest::{self, MANIFEST_ANSWER_MAX, Manifest};
use crate::order::{Edits, Ending, Job, Order};

/// How long a job may take that reads no more than a few megabytes.
const SMALL_JOB_MAX: Duration = Duration::from_secs(60);
/// How long memory may take to unpack: it is gigabytes at most, and nobody else is waited for.
const UNPACK_MEMORY_MAX: Duration = Duration::from_secs(3600);
/// What is kept of a failed program's own words, for the operator.
const WORDS_MAX: usize = 500;

#[derive(Debug, thiserror::Error)]
pub enum ParserError {
    #[error("cannot start the parser or read its answer")]
    Start(#[source] io::Error),
    #[error("the input is damaged")]
    Damaged { words: String },
    #[error("the input is larger than allowed")]
    TooLarge,
    #[error("the disk is full")]
    DiskFull,
    /// Everything was packed; what changed meanwhile is as it was found.
    #[error("some files changed while they were packed")]
    Changed,
    #[error("the parser failed: {words}")]
    Failed { words: String },
    #[error("the parser took longer than {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error(transparent)]
    Answer(#[from] BadAnswer),
}

/// The program, and the ids it runs under.
#[derive(Debug)]
pub struct Parser {
    program: SealedProgram,
    uid_base: u32,
}

impl Parser {
    /// `uid_base` is the first of 65,536 uids (and gids) that own nothing on the host.
    pub fn new(program: &[u8], uid_base: u32) -> io::Result<Self> {
        Ok(Self {
            program: SealedProgram::new(program)?,
            uid_base,
        })
    }

    /// The directories as one tree, the first above the others, as a tar stream. Sockets are left out, as
    /// from any archive.
    pub fn pack_tree(&self, layers: Vec<PathBuf>, gzip: bool) -> Result<Packing, ParserError> {
        let job = Job::PackTree { layers, gzip };
        self.pack(job)
    }

    /// A living directory of the host's own as a tar stream, without what is mounted below it.
    pub fn pack_directory(&self, directory: &OwnedFd) -> Result<Packing, ParserError> {
        // By its descriptor: nobody can put another in its place.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let job = Job::PackDirectory;
        let running = self.start(&job, Stdio::null(), Some(Path::new(&path)))?;
        Packing::of(running)
    }

    /// The files of a memory image, packed.
    pub fn pack_memory(&self, directory: &Path) -> Result<Packing, ParserError> {
        let directory = [directory.to_owned()];
        self.pack(Job::PackMemory { directory })
    }

    fn pack(&self, job: Job) -> Result<Packing, ParserError> {
        Packing::of(self.start(&job, Stdio::null(), None)?)
    }

    /// Unpacks memory into an empty directory that only root may enter; half filled on an error.
    pub fn unpack_memory(
        &self,
        mut packed: File,
        directory: &Path,
        most: u64,
    ) -> Result<(), ParserError> {
        packed.rewind().map_err(ParserError::Start)?;
        let job = Job::UnpackMemory { most };
        let running = self.start(&job, Stdio::from(packed), Some(directory))?;
        match running.answer(0, UNPACK_MEMORY_MAX)?.is_empty() {
            true => Ok(()),
            false => Err(BadAnswer.into()),
        }
    }

    pub fn read_manifest(&self, bytes: &[u8]) -> Result<Manifest, ParserError> {
        let answer = self.read(&Job::ReadManifest, bytes, MANIFEST_ANSWER_MAX)?;
        Ok(manifest::decode(&answer)?)
    }

    pub fn read_signature(&self, bytes: &[u8]) -> Result<Option<Signature>, ParserError> {
        let answer = self.read(&Job::ReadSignature, bytes, SIGNATURE_BYTES)?;
        Ok(decode_signature(&answer)?)
    }

    /// Why CRIU failed, from the log it left; `None` when that names no error.
    pub fn read_log(&self, log: OwnedFd) -> Result<Option<Finding>, ParserError> {
        let running = self.start(&Job::ReadLog, Stdio::from(log), None)?;
        Ok(decode_finding(
            &running.answer(FINDING_MAX, SMALL_JOB_MAX)?,
        )?)
    }

    /// The images of a directory that must be others for a copy.
    pub fn edit_images(
        &self,
        directory: &Path,
        edits: Edits,
    ) -> Result<Vec<Replacement>, ParserError> {
        let directory = [directory.to_owned()];
        let job = Job::EditImages { directory, edits };
        let running = self.start(&job, Stdio::null(), None)?;
        let answer = running.answer(REPLACEMENTS_MAX, SMALL_JOB_MAX)?;
        Ok(decode_replacements(&answer)?)
    }

    fn read(&self, job: &Job, bytes: &[u8], most: usize) -> Result<Vec<u8>, ParserError> {
        let input = in_memory(bytes).map_err(ParserError::Start)?;
        let running = self.start(job, Stdio::from(input), None)?;
        running.answer(most, SMALL_JOB_MAX)
    }

    fn start(
        &self,
        job: &Job,
        input: Stdio,
        directory: Option<&Path>,
    ) -> Result<Running, ParserError> {
        #[derive(serde::Serialize)]
        struct Sent<'a> {
            parent: u32,
            uid_base: u32,
            job: &'a Job,
        }
        // The same as an order, without a copy of the job.
        let order = Sent {
            parent: std::process::id(),
            uid_base: self.uid_base,
            job,
        };
        let order = serde_json::to_string(&order).map_err(|e| ParserError::Start(e.into()))?;
        let child = self
            .program
            .command()
            .arg(order)
            .current_dir(directory.unwrap_or(Path::new("/")))
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(ParserError::Start)?;
        Ok(Running(child))
    }
}

/// Reads what [`Parser`] sends; for the program.
pub fn order(argument: &str) -> Result<Order, String> {
    serde_json::from_str(argument).map_err(|error| error.to_string())
}

fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create(
        "cove-parsed",
        MemfdFlags::CLOEXEC,
    )?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Ends the program when dropped before its end.
#[derive(Debug)]
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// All of the program's output, which is at most so long, once it ended well.
    fn answer(mut self, most: usize, limit: Duration) -> Result<Vec<u8>, ParserError> {
        let deadline = Instant::now() + limit;
        let mut output = self
            .0
            .stdout
            .take()
            .ok_or_else(|| ParserError::Start(io::ErrorKind::BrokenPipe.into()))?;
        let mut answer = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        loop {
            if !wait_for_bytes(&output, deadline).map_err(ParserError::Start)? {
                return Err(ParserError::TimedOut(limit));
            }
            match output.read(&mut chunk).map_err(ParserError::Start)? {
                0 => break,
                count if answer.len() + count > most => return Err(BadAnswer.into()),
                count => answer.extend_from_slice(&chunk[..count]),
            }
        }
        self.end().map(|()| answer)
    }

    /// Waits for the end of a program whose output was read to its own.
    fn end(&mut self) -> Result<(), ParserError> {
        let status = self.0.wait().map_err(ParserError::Start)?;
        if status.success() {
            return Ok(());
        }
        let words = self.words();
        Err(match status.code().and_then(Ending::from_status) {
            Some(Ending::Damaged) => ParserError::Damaged { words },
            Some(Ending::TooLarge) => ParserError::TooLarge,
            Some(Ending::DiskFull) => ParserError::DiskFull,
            Some(Ending::Changed) => ParserError::Changed,
            Some(Ending::Io | Ending::Setup) => ParserError::Failed { words },
            None => ParserError::Failed {
                words: format!("{status} {words}"),
            },
        })
    }

    /// The beginning of what a program that is gone said, escaped.
    fn words(&mut self) -> String {
        let mut words = Vec::new();
        if let Some(errors) = self.0.stderr.take() {
            let _ = errors.take(WORDS_MAX as u64).read_to_end(&mut words);
        }
        words.escape_ascii().to_string()
    }
}

/// False when nothing came until the deadline.
fn wait_for_bytes(pipe: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let patience = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&patience)) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The program packing something. Its output ends also when it fails, so only [`Packing::finish`] tells
/// whether it is whole.
#[derive(Debug)]
pub struct Packing {
    output: ChildStdout,
    running: Running,
}

impl Packing {
    fn of(mut running: Running) -> Result<Self, ParserError> {
        let output = running.0.stdout.take();
        Ok(Self {
            output: output.ok_or_else(|| ParserError::Start(io::ErrorKind::BrokenPipe.into()))?,
            running,
        })
    }

    /// The next bytes; an error when none come for so long.
    pub fn read(&mut self, buffer: &mut [u8], patience: Duration) -> io::Result<usize> {
        match wait_for_bytes(&self.output, Instant::now() + patience)? {
            true => self.output.read(buffer),
            false => Err(io::Error::new(io::ErrorKind::TimedOut, "packing stalled")),
        }
    }

    /// Waits for the end. What it has not given by now is lost.
    pub fn finish(self) -> Result<(), ParserError> {
        let (output, ending) = self.split();
        drop(output);
        ending.wait()
    }

    /// The output for somebody else to read, and the end to wait for. The program ends early when the
    /// output is closed.
    pub fn split(self) -> (ChildStdout, PackingEnd) {
        (self.output, PackingEnd(self.running))
    }
}

#[derive(Debug)]
pub struct PackingEnd(Running);

impl PackingEnd {
    pub fn wait(mut self) -> Result<(), ParserError> {
        self.0.end()
    }
}
