//! A file that keeps a little of the host's disk for this installation's own bookkeeping.
//!
//! With nothing left on the disk a server can neither open its database nor write down that something was
//! deleted, so that nobody could make room through it. The file is given up when the disk is full, at a start
//! too, and made again when there is room.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

/// Bytes kept.
const RESERVE_BYTES: u64 = 64 << 20;
/// Given up when less than this is free.
const LOW_BYTES: u64 = 32 << 20;
/// Made again when this much is free.
const PLENTY_BYTES: u64 = 512 << 20;

fn path(dir: &Path) -> PathBuf {
    dir.join("reserve")
}

fn free(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Gives the reserve of an engine's data directory up where its disk is full. For the start of a server,
/// before anything is written.
pub fn make_room(dir: &Path) {
    if free(dir).is_some_and(|free| free < LOW_BYTES) && fs::remove_file(path(dir)).is_ok() {
        tracing::warn!("the disk is full; its last reserve is given up so that space can be freed");
    }
}

/// Gives it up or makes it again, as the disk is now.
pub(crate) fn keep(dir: &Path) {
    let file = path(dir);
    match free(dir) {
        Some(free) if free < LOW_BYTES => make_room(dir),
        Some(free) if free >= PLENTY_BYTES && !file.exists() => {
            let made = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&file)
                .and_then(|file| Ok(fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?));
            if let Err(error) = made {
                tracing::warn!(%error, "nothing of the disk is kept for the server itself");
            }
        }
        _ => {}
    }
}
