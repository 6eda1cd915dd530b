//! The log: lines on standard error, for people or for programs.
//!
//! Whoever logs only puts a line into a bounded queue; one thread writes them out. A standard error that
//! cannot be written to (a full disk, a pipe whose reader is gone or stands still) costs lines, which are
//! counted (see [`LostLines`]), and nothing else: no caller waits, fails or panics.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use tracing_subscriber::EnvFilter;

use super::ServeError;
use super::settings::Settings;

mod lost;

pub use lost::{LostLines, Process};

/// Bytes that wait to be written; lines beyond are dropped.
const QUEUE_BYTES_MAX: usize = 1024 * 1024;
/// A longer line is cut.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// How long an ending process waits for its last lines to be written.
const FLUSH_WAIT: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// The writing thread has taken bytes that are not out yet.
    writing: bool,
    /// The writing thread runs.
    started: bool,
    /// Lines that never came out, since this process began.
    lost: u64,
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    lost: LostLines,
}

/// Installs the log of this process. Lines are kept until [`Log::begin`].
pub fn start(settings: &Settings, lost: LostLines) -> Result<Log, ServeError> {
    let filter = EnvFilter::try_new(&settings.log).map_err(|error| ServeError::Settings {
        message: format!("log is not a filter: {error}"),
    })?;
    let log = Log(Arc::new(Shared {
        queue: Mutex::default(),
        changed: Condvar::new(),
        lost,
    }));
    let writer = log.clone();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_writer(move || writer.clone());
    let started = match settings.log_format.as_str() {
        "json" => lines.json().flatten_event(true).try_init(),
        _ => lines.with_ansi(io::stderr().is_terminal()).try_init(),
    };
    started.map_err(|error| ServeError::Start {
        message: format!("cannot log: {error}"),
        hint: None,
    })?;
    // The default hook writes to standard error itself, and would wait for a pipe nobody reads.
    std::panic::set_hook(Box::new(|panic| {
        let trace = std::backtrace::Backtrace::capture();
        match trace.status() {
            std::backtrace::BacktraceStatus::Captured => tracing::error!(%trace, "{panic}"),
            _ => tracing::error!("{panic}"),
        }
    }));
    Ok(log)
}

impl Log {
    /// Starts the thread that writes. Apart from [`start`], because a process that gives privileges up
    /// must do so while it has one thread.
    pub fn begin(&self) -> Result<(), ServeError> {
        self.queue().started = true;
        let log = self.clone();
        let thread = std::thread::Builder::new().name("log".into());
        match thread.spawn(move || log.write_on_and_on()) {
            Ok(_) => Ok(()),
            Err(source) => {
                self.queue().started = false;
                Err(ServeError::io("cannot start the thread that logs", source))
            }
        }
    }

    /// Waits until what was logged is written, for a moment at most.
    pub fn flush(&self) {
        let mut queue = self.queue();
        if !queue.started {
            drop(queue);
            self.write_once();
            return;
        }
        let waits = |queue: &mut Queue| queue.writing || !queue.bytes.is_empty();
        self.0.changed.wait_while_for(&mut queue, waits, FLUSH_WAIT);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.queue.lock()
    }

    fn add(&self, line: &[u8]) {
        let mut queue = self.queue();
        let kept = &line[..line.len().min(LINE_BYTES_MAX)];
        if queue.bytes.len() + kept.len() >= QUEUE_BYTES_MAX {
            self.lose(&mut queue, 1);
            return;
        }
        queue.bytes.extend_from_slice(kept);
        if !kept.ends_with(b"\n") {
            queue.bytes.push(b'\n');
        }
        drop(queue);
        self.0.changed.notify_all();
    }

    fn lose(&self, queue: &mut Queue, lines: u64) {
        queue.lost = queue.lost.saturating_add(lines);
        self.0.lost.note(queue.lost);
    }

    fn write_on_and_on(&self) {
        // Half a line may have come out; what follows begins on a new one.
        let mut torn = false;
        loop {
            let mut queue = self.queue();
            let waits = |queue: &mut Queue| queue.bytes.is_empty();
            self.0.changed.wait_while(&mut queue, waits);
            let mut bytes = std::mem::take(&mut queue.bytes);
            queue.writing = true;
            drop(queue);
            if torn {
                bytes.insert(0, b'\n');
            }
            let written = write_out(&bytes);
            let left = &bytes[written..];
            if written > 0 {
                torn = !left.is_empty() && bytes[written - 1] != b'\n';
            }
            let mut queue = self.queue();
            queue.writing = false;
            let lines = left.iter().filter(|byte| **byte == b'\n').count() as u64;
            if lines > 0 {
                self.lose(&mut queue, lines);
            }
            drop(queue);
            self.0.changed.notify_all();
        }
    }

    /// For a process that ends before its thread began.
    fn write_once(&self) {
        let bytes = std::mem::take(&mut self.queue().bytes);
        write_out(&bytes);
    }
}

/// How many bytes came out; waits for a reader, never fails.
fn write_out(bytes: &[u8]) -> usize {
    let stderr = rustix::stdio::stderr();
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::write(stderr, &bytes[written..]) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(rustix::io::Errno::INTR) => {}
            // Somebody else made it non-blocking; this thread may wait.
            Err(rustix::io::Errno::AGAIN) => {
                let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
                if poll(&mut ready, None).is_err_and(|errno| errno != rustix::io::Errno::INTR) {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    written
}

/// A line comes in one piece.
impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(lost: &LostLines) -> Log {
        Log(Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            lost: lost.of(Process::Control).unwrap(),
        }))
    }

    #[test]
    fn a_queue_nobody_empties_stays_bounded_and_counts() {
        let lost = LostLines::new().unwrap();
        let log = log(&lost);
        let line = [b'x'; 1023];
        for _ in 0..2000 {
            log.add(&line);
        }
        let queue = log.queue();
        assert!(queue.bytes.len() <= QUEUE_BYTES_MAX);
        assert_eq!(queue.bytes.len() as u64 / 1024 + queue.lost, 2000);
        assert_eq!(lost.total(), queue.lost);
        assert!(queue.lost > 0);
    }

    #[test]
    fn an_endless_line_is_cut() {
        let log = log(&LostLines::new().unwrap());
        log.add(&vec![b'x'; LINE_BYTES_MAX * 3]);
        let queue = log.queue();
        assert_eq!(queue.bytes.len(), LINE_BYTES_MAX + 1);
        assert!(queue.bytes.ends_with(b"x\n"));
    }
}
