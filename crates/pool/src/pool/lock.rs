//! One live pool per data directory: an flock on `pool.lock`, which also tells who holds it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::config::Layout;
use crate::error::{Context, PoolError};

/// Longer than any process id; a lock file with more in it is not ours to believe.
const MAX_PID_TEXT: u64 = 32;

/// Held for as long as it lives; the kernel releases it when the process ends.
pub(super) struct Lock {
    _file: File,
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
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // Who holds it is only told where it can be read.
                let _ = file.take(MAX_PID_TEXT).read_to_string(&mut text);
                return Err(PoolError::Locked {
                    dir: layout.dir.clone(),
                    pid: text.trim().parse().ok(),
                });
            }
            Err(e) => return Err(PoolError::io("lock", path, e)),
        }
        file.set_len(0).context("write", &path)?;
        file.rewind().context("write", &path)?;
        writeln!(file, "{}", std::process::id()).context("write", &path)?;
        Ok(Lock { _file: file })
    }
}
