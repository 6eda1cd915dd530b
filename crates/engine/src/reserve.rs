//! A file that keeps a little of the host's disk for this installation's own bookkeeping.
//!
//! With nothing left on the disk a server can neither open its database nor write down that something was
//! deleted, so that nobody could make room through it. Half of the file is given up when the disk fills while
//! the engine runs. Programs outside may take that as well, so the rest waits for starts and for deletions that
//! find no room: each start on a full disk gives up half of what is left, each such deletion a little. The file
//! is made whole again when there is room.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

/// Bytes kept.
const RESERVE_BYTES: u64 = 64 << 20;
/// Of these, what is not given up while the engine runs.
const FOR_STARTS_BYTES: u64 = RESERVE_BYTES / 2;
/// What one deletion that found no room takes of the file.
const DELETION_BYTES: u64 = 1 << 20;
/// With less than this free a running engine gives its part up.
const LOW_BYTES: u64 = 32 << 20;
/// With less than this free a start takes its part.
const START_BYTES: u64 = 8 << 20;
/// Made whole again when this much is free.
const PLENTY_BYTES: u64 = 512 << 20;

fn path(dir: &Path) -> PathBuf {
    dir.join("reserve")
}

fn free(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn kept(dir: &Path) -> u64 {
    fs::metadata(path(dir)).map_or(0, |file| file.len())
}

fn shrink(dir: &Path, bytes: u64) -> bool {
    let shrunk = OpenOptions::new()
        .write(true)
        .open(path(dir))
        .and_then(|file| file.set_len(bytes));
    match &shrunk {
        Ok(()) => {
            tracing::warn!(
                kept = bytes,
                "the disk is full; releasing a part of the server's reserve so that space can be freed"
            );
        }
        Err(error) => {
            tracing::warn!(%error, "cannot release the server's reserve of disk space")
        }
    }
    shrunk.is_ok()
}

/// Gives up a part of the reserve in an engine's data directory where its disk is full. For a start, before
/// anything is written.
pub fn make_room(dir: &Path) {
    let kept = kept(dir);
    if kept > 0 && free(dir).is_some_and(|free| free < START_BYTES) {
        shrink(dir, kept / 2);
    }
}

/// Gives up what writing down one deletion takes. Tells whether there was something to give up.
pub(crate) fn give_up_for_deletion(dir: &Path) -> bool {
    let kept = kept(dir);
    kept > 0 && shrink(dir, kept.saturating_sub(DELETION_BYTES))
}

/// Gives a part up or makes it whole again, as the disk is now. Fails where it cannot be made.
pub(crate) fn keep(dir: &Path) -> io::Result<()> {
    match free(dir) {
        Some(free) if free < LOW_BYTES && kept(dir) > FOR_STARTS_BYTES => {
            shrink(dir, FOR_STARTS_BYTES);
            Ok(())
        }
        Some(free) if free >= PLENTY_BYTES && kept(dir) < RESERVE_BYTES => fill(dir),
        _ => Ok(()),
    }
}

fn fill(dir: &Path) -> io::Result<()> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path(dir))?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?)
}
