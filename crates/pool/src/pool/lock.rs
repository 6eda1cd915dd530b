//! One live pool per data directory: an flock on `pool.lock`, which also tells who holds it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::config::Layout;
use crate::error::{Context, PoolError};

/// Longer than any process id; a lock file with more in it is not ours to believe.
const MAX_PID_TEXT: u64 = 32;

const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// Held for as long as it lives; the kernel releases it when the process ends.
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone is not enough: a child that another thread is just starting holds a copy of
        // the descriptor until it becomes another program.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Lock {
    pub fn take(layout: &Layout) -> Result<Lock, PoolError> {
        let path = layout.lock();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .context("open", &path)?;
        for attempt in 1.. {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {}
                Err(e) => return Err(PoolError::io("lock", path, e)),
            }
            let pid = read_holder(&mut file);
            // A server killed while it was starting a child leaves a copy of the lock in that child
            // until it becomes another program. So when the holder is gone, its lock soon is.
            let gone = pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
            if !gone || attempt >= ATTEMPTS {
                return Err(PoolError::Locked {
                    dir: layout.dir.clone(),
                    pid,
                });
            }
            thread::sleep(PAUSE);
        }
        file.set_len(0).context("write", &path)?;
        file.rewind().context("write", &path)?;
        writeln!(file, "{}", std::process::id()).context("write", &path)?;
        Ok(Lock { file })
    }
}

/// The process that wrote itself into the lock file, where that can be read.
fn read_holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(MAX_PID_TEXT).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
