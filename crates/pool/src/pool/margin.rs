//! What the host sets aside for a loop-backed pool ahead of use, so that nobody else can take it.
//!
//! The loop file is sparse: a block of it takes a block of the host's disk when it is first written. Where the
//! host has none left, data that cannot be written is an error for its writer alone, but when the kernel
//! cannot write what the filesystem itself consists of it turns the filesystem read-only for everybody. So
//! every chunk that does not hold data is allocated whole, always, and the newest chunk of data as long as
//! that takes no more than a part of the reserve. New chunks come as the filesystem grows, so this is repeated
//! every second. [`Pool::give_back`] leaves these chunks out, and the kernel is asked to discard nothing itself.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, fallocate};

use super::Pool;
use crate::config::Backend;
use crate::error::{Context, PoolError};
use crate::space;
use crate::sys;
use crate::sys::chunks::{Chunk, chunks};

/// Data set aside ahead of use takes at most this part of the reserve.
const DATA_DIVISOR: u64 = 2;

impl Pool {
    /// Has the host set aside what the pool cannot do without. Cheap when it is there already; to be repeated,
    /// since the filesystem grows chunk by chunk.
    pub fn secure_margin(&self) -> Result<(), PoolError> {
        if self.inner.backend != Backend::BtrfsLoop {
            return Ok(());
        }
        let kept = self.kept_chunks()?;
        let image = self.inner.layout.image();
        let file = OpenOptions::new()
            .write(true)
            .open(&image)
            .context("open", &image)?;
        // Counted also where it fails: what could be set aside is not to be given back.
        let bytes = kept.iter().map(|chunk| chunk.length).sum();
        self.inner.margin.store(bytes, Ordering::Relaxed);
        for chunk in kept {
            let flags = FallocateFlags::KEEP_SIZE;
            fallocate(&file, flags, chunk.physical, chunk.length)
                .context("set space aside in", &image)?;
        }
        Ok(())
    }

    fn kept_chunks(&self) -> Result<Vec<Chunk>, PoolError> {
        let all = self.chunks()?;
        let free = space::filesystem(&self.inner.layout.dir)?.1;
        let reserve = self.inner.reserve;
        let newest = all.iter().rev().find(|chunk| chunk.is_data).copied();
        let newest = newest.filter(|chunk| {
            chunk.length <= reserve / DATA_DIVISOR && free > reserve.saturating_add(chunk.length)
        });
        let mut kept: Vec<_> = all.into_iter().filter(|chunk| !chunk.is_data).collect();
        kept.extend(newest);
        Ok(kept)
    }

    fn chunks(&self) -> Result<Vec<Chunk>, PoolError> {
        let root = &self.inner.root;
        let file = File::open(root).context("open", root)?;
        chunks(file.as_fd()).context("read the chunks of", root)
    }

    /// Returns the blocks of deleted data to the host.
    pub fn give_back(&self) -> Result<(), PoolError> {
        if self.inner.backend != Backend::BtrfsLoop {
            return Ok(());
        }
        let root = &self.inner.root;
        let file = File::open(root).context("open", root)?;
        let kept = self.kept_chunks()?;
        for chunk in self.chunks()? {
            if chunk.is_data && !kept.contains(&chunk) {
                sys::trim(file.as_fd(), chunk.logical, chunk.length).context("trim", root)?;
            }
        }
        Ok(())
    }

    /// The same, including what is deleted already but not cleaned up yet; waits until that is done.
    pub fn give_back_all(&self) -> Result<(), PoolError> {
        if self.inner.backend == Backend::BtrfsLoop {
            let root = &self.inner.root;
            let file = File::open(root).context("open", root)?;
            sys::sync_and_clean(file.as_fd()).context("sync", root)?;
        }
        self.give_back()
    }
}
