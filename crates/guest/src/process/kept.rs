//! Output that outlives a stop: a shutdown writes the newest finished commands with their output to the sandbox's disk,
//! and the next start reads them.
//!
//! Root inside can change the file, so it is read with limits, and what it says is only shown to callers.

use std::cell::{Cell, RefCell};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cove_limits::{PROCESSES_FINISHED_MAX, RING_MAX, TAG_MAX, USER_MAX};
use cove_protocol::message::{self, OutputTime, ProcessKind};
use prost::Message;
use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;

use super::ring::Ring;
use super::start::{ID_MAX, OWNER_MAX};
use super::{CHANNELS, Input, Process, Run, Streams, list};
use crate::state::State;

/// Where PID 1 keeps it.
pub const DIRECTORY: &str = "/var/lib/cove-guest";
const FILE: &str = "output";
const UNFINISHED: &str = "output.new";
/// Says which form the rest has.
const MAGIC: &[u8] = b"cove output 1\n";
/// Bytes of the whole file.
const FILE_MAX: usize = 8 * 1024 * 1024;
/// Bytes of one stream, so that one loud command does not push out all others.
const STREAM_MAX: usize = 1024 * 1024;
/// Bytes of what is said of one command besides its output. More than one ever has.
const PROCESS_MAX: usize = 16 * 1024;
/// How long a command that was just killed may take to publish its end.
const PUBLISH_WAIT: Duration = Duration::from_secs(1);
const PUBLISH_LOOK: Duration = Duration::from_millis(5);

/// One finished command.
#[derive(Clone, PartialEq, Message)]
struct Kept {
    /// A `message::Process`, decoded only when it is small: each empty argument takes two bytes here and twelve
    /// times as much in memory.
    #[prost(bytes = "bytes", tag = "1")]
    process: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    stdout: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    stderr: Bytes,
    /// When their parts came, as pairs of offset and milliseconds since 1970. Files of earlier guests have none.
    #[prost(bytes = "bytes", tag = "4")]
    stdout_times: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    stderr_times: Bytes,
}

/// Bytes of one pair.
const TIME: usize = 16;

fn packed(times: &[OutputTime]) -> Bytes {
    let pairs = times.iter().flat_map(|time| {
        let (offset, unix_ms) = (time.offset.to_le_bytes(), time.unix_ms.to_le_bytes());
        offset.into_iter().chain(unix_ms)
    });
    pairs.collect()
}

fn unpacked(pairs: &[u8]) -> impl Iterator<Item = OutputTime> {
    let (pairs, _) = pairs.as_chunks::<TIME>();
    pairs.iter().map(|pair| {
        let (offset, unix_ms) = pair.split_at(TIME / 2);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        OutputTime {
            offset: number(offset),
            unix_ms: number(unix_ms).cast_signed(),
        }
    })
}

/// Interpreters and sessions end with the machine that they belong to.
fn is_kept(kind: i32) -> bool {
    !matches!(
        ProcessKind::try_from(kind),
        Ok(ProcessKind::CodeContext | ProcessKind::DialectSession)
    )
}

/// Writes the file. A disk that is full or read-only keeps what it has.
pub async fn write(state: &State) {
    let Some(directory) = &state.kept else {
        return;
    };
    let deadline = Instant::now() + PUBLISH_WAIT;
    while Instant::now() < deadline && state.table.all().iter().any(|one| one.exit().is_none()) {
        sleep(PUBLISH_LOOK).await;
    }
    let contents = contents(state);
    // A disk that nothing happened on stays the same: snapshots tell by that whether they are worth taking.
    let is_new = contents.len() > MAGIC.len()
        && !load(&directory.join(FILE)).is_ok_and(|before| before == contents);
    if is_new {
        let _ = replace(directory, &contents);
    }
}

/// The newest first, as many as fit.
fn contents(state: &State) -> Vec<u8> {
    let mut contents = MAGIC.to_vec();
    for process in state.table.finished_newest_first() {
        if process.exit().is_none() || !is_kept(process.kind) {
            continue;
        }
        let streams = process.streams.borrow();
        let [(stdout, stdout_times), (stderr, stderr_times)] =
            [0, 1].map(|channel| tail(&streams.rings[channel]));
        drop(streams);
        let kept = Kept {
            process: message::Process {
                // Says nothing after the stop.
                pid: 0,
                viewers: 0,
                ..list::describe(&process)
            }
            .encode_to_vec()
            .into(),
            stdout,
            stderr,
            stdout_times,
            stderr_times,
        };
        if contents.len() + kept.encoded_len() + prost::length_delimiter_len(kept.encoded_len())
            > FILE_MAX
        {
            break;
        }
        if kept.encode_length_delimited(&mut contents).is_err() {
            break;
        }
    }
    contents
}

/// The last output of a stream, and when it came.
fn tail(ring: &Ring) -> (Bytes, Bytes) {
    let from = ring.end().saturating_sub(STREAM_MAX as u64);
    let (from, data) = ring.read(from, STREAM_MAX);
    (data, packed(&ring.times(from, ring.end())))
}

fn replace(directory: &Path, contents: &[u8]) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let unfinished = directory.join(UNFINISHED);
    let _ = fs::remove_file(&unfinished);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&unfinished)
        .and_then(|mut file| file.write_all(contents))
        .and_then(|()| fs::rename(&unfinished, directory.join(FILE)));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Reads the file into the table. What does not fit its form ends the reading.
pub fn read(state: &State) {
    let Some(directory) = &state.kept else {
        return;
    };
    let Ok(contents) = load(&directory.join(FILE)) else {
        return;
    };
    let Some(rest) = contents.strip_prefix(MAGIC) else {
        return;
    };
    let mut rest = Bytes::copy_from_slice(rest);
    let mut found = Vec::new();
    while !rest.is_empty() && found.len() < PROCESSES_FINISHED_MAX {
        let Ok(kept) = Kept::decode_length_delimited(&mut rest) else {
            break;
        };
        found.extend(restored(kept));
    }
    for (process, output) in found.into_iter().rev() {
        if !state.table.adopt_finished(Rc::clone(&process)) {
            continue;
        }
        for (channel, (data, times)) in output.iter().enumerate() {
            if !data.is_empty() {
                state.table.keep(&process, channel, data, None);
                let ring = &mut process.streams.borrow_mut().rings[channel];
                ring.restore_times(unpacked(times));
            }
        }
    }
}

/// No link, and nothing that a reader would wait for.
fn load(path: &Path) -> io::Result<Vec<u8>> {
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() > FILE_MAX as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut contents = Vec::new();
    file.take(FILE_MAX as u64).read_to_end(&mut contents)?;
    Ok(contents)
}

/// With each stream's output, and when it came.
type Restored = (Rc<Process>, [(Bytes, Bytes); CHANNELS]);

fn restored(kept: Kept) -> Option<Restored> {
    if kept.process.len() > PROCESS_MAX {
        return None;
    }
    let told = message::Process::decode(kept.process).ok()?;
    let mut exit = told.exit?;
    let is_short = |text: &str, limit| text.len() <= limit;
    let output = [
        (kept.stdout, kept.stdout_times),
        (kept.stderr, kept.stderr_times),
    ];
    let ends = [told.stdout_bytes, told.stderr_bytes];
    let fits = !told.id.is_empty()
        && is_short(&told.id, ID_MAX)
        && is_short(&told.user, USER_MAX)
        && is_short(&told.tag, TAG_MAX)
        && is_short(&told.owner, OWNER_MAX)
        && is_short(&told.mark, OWNER_MAX)
        && is_kept(told.kind)
        && output.iter().zip(ends).all(|((data, _), end)| {
            let length = data.len() as u64;
            length <= RING_MAX && length <= end && end < i64::MAX as u64
        });
    if !fits {
        return None;
    }
    (exit.stdout_bytes, exit.stderr_bytes) = (ends[0], ends[1]);
    let ring = |channel: usize| {
        let length = output[channel].0.len();
        Ring::starting_at(length, ends[channel] - length as u64)
    };
    let process = Process {
        argv: list::cut(&told.argv),
        cwd: list::cut(std::slice::from_ref(&told.cwd)).concat(),
        id: told.id,
        run: Cell::new(Run {
            number: 0,
            // Its number may be that of another command by now.
            pid: 0,
            started_unix_ms: told.started_unix_ms,
            started: Instant::now(),
            oom_kills_before: 0,
        }),
        supervised: Cell::new(false),
        user: told.user,
        kind: told.kind,
        owner: told.owner,
        tag: told.tag,
        mark: told.mark,
        size: Cell::new(told.pty),
        refused_before: None,
        sees_refusals: told.sees_refusals,
        streams: RefCell::new(Streams {
            rings: [ring(0), ring(1)],
            drained: [true; CHANNELS],
            status: Some(0),
            survivors: false,
            last: None,
            exit: Some(exit),
            foreground: None,
        }),
        changed: Notify::new(),
        room: Notify::new(),
        leader_gone: Notify::new(),
        terminal: RefCell::new(None),
        input: Mutex::new(Input::Closed),
        viewers: Cell::new(0),
        interrupted: Cell::new(None),
        timed_out: Cell::new(exit.timed_out),
        killed: Cell::new(false),
    };
    Some((Rc::new(process), output))
}
