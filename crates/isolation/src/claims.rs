//! Uid ranges, claimed host-wide so that several engines live side by side.
//!
//! A range is 65,536 ids. Ranges are claimed in blocks: a file per block under a host-wide directory
//! that a reboot empties (ids on disk are always 0..65535, so nothing there depends on the range a
//! sandbox had). Within its blocks an engine hands ranges out by itself.
//!
//! A claim holds while its engine lives, told by a lock, or its data is there: sandboxes may be running
//! without an engine. The lock counts also where the data cannot be seen, in another mount namespace.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

/// Ids in a range.
pub const RANGE_IDS: u32 = 65_536;
/// The first range lies above everything that distributions, systemd and other container tools hand out.
const FIRST_RANGE: u32 = 0x7000_0000 / RANGE_IDS;
/// The last id of all means "none" to the kernel, so the last range is not used.
const END_RANGE: u32 = u32::MAX / RANGE_IDS;
/// How files end that living engines hold locked.
const ALIVE: &str = ".alive";
const BLOCK_RANGES: u32 = 256;
const BLOCKS: u32 = (END_RANGE - FIRST_RANGE) / BLOCK_RANGES;

#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    instance: String,
    data_dir: PathBuf,
}

#[derive(Debug, Default)]
struct Books {
    blocks: BTreeSet<u32>,
    free: BTreeSet<u32>,
    /// Ranges are handed out in turn: what the kernel still clears away of a sandbox that is gone, such
    /// as its interface, goes by the range's number.
    last: u32,
}

/// The ranges of one engine.
#[derive(Debug)]
pub struct UidRanges {
    dir: PathBuf,
    instance: String,
    data_dir: PathBuf,
    /// Locked as long as this engine lives.
    _alive: fs::File,
    books: Mutex<Books>,
}

/// One range in use; it goes back when dropped.
#[derive(Debug)]
pub struct UidRange {
    index: u32,
    owner: Arc<UidRanges>,
}

impl UidRange {
    pub fn base(&self) -> u32 {
        self.index * RANGE_IDS
    }

    /// A number no other range on this host has.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for UidRange {
    fn drop(&mut self) {
        self.owner.books().free.insert(self.index);
    }
}

impl UidRanges {
    /// `dir` is the same for every engine of a host. Blocks this instance had before are its again.
    pub fn open(dir: &Path, instance: &str, data_dir: &Path) -> io::Result<Arc<Self>> {
        fs::create_dir_all(dir)?;
        let lock = lock(dir)?;
        remove_dead(dir)?;
        let alive = open_to_lock(&alive_file(dir, instance))?;
        rustix::fs::flock(&alive, FlockOperation::LockShared)?;
        let ranges = Self {
            dir: dir.to_owned(),
            instance: instance.to_owned(),
            data_dir: data_dir.to_owned(),
            _alive: alive,
            books: Mutex::default(),
        };
        {
            let mut books = ranges.books();
            for block in 0..BLOCKS {
                if ranges
                    .read(block)
                    .is_some_and(|claim| claim.instance == instance)
                {
                    books.add(block);
                }
            }
        }
        drop(lock);
        Ok(Arc::new(ranges))
    }

    /// A range nobody on this host uses.
    pub fn take(self: &Arc<Self>) -> io::Result<Option<UidRange>> {
        loop {
            if let Some(index) = self.books().next() {
                return Ok(Some(UidRange {
                    index,
                    owner: Arc::clone(self),
                }));
            }
            if !self.claim_block()? {
                return Ok(None);
            }
        }
    }

    /// A particular range, for a machine found running. `None` when it is not ours or taken already.
    pub fn retake(self: &Arc<Self>, base: u32) -> Option<UidRange> {
        let index = base / RANGE_IDS;
        self.books().free.remove(&index).then(|| UidRange {
            index,
            owner: Arc::clone(self),
        })
    }

    /// Whether an instance, or a sandbox of it, may be running.
    pub fn is_claimed_by(&self, instance: &str) -> bool {
        (0..BLOCKS)
            .filter_map(|block| self.read(block))
            .any(|claim| claim.instance == instance && self.holds(&claim))
    }

    fn holds(&self, claim: &Claim) -> bool {
        claim.data_dir.exists() || is_alive(&self.dir, &claim.instance)
    }

    /// Gives every block back; for an engine that leaves nothing running.
    pub fn release(&self) -> io::Result<()> {
        let _lock = lock(&self.dir)?;
        let mut books = self.books();
        for block in std::mem::take(&mut books.blocks) {
            fs::remove_file(self.dir.join(block.to_string()))?;
        }
        books.free.clear();
        match fs::remove_file(alive_file(&self.dir, &self.instance)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn claim_block(&self) -> io::Result<bool> {
        let _lock = lock(&self.dir)?;
        let mut books = self.books();
        for block in 0..BLOCKS {
            if books.blocks.contains(&block) {
                continue;
            }
            if self.read(block).is_some_and(|claim| self.holds(&claim)) {
                continue;
            }
            let claim = Claim {
                instance: self.instance.clone(),
                data_dir: self.data_dir.clone(),
            };
            let path = self.dir.join(block.to_string());
            let draft = self.dir.join(format!("{block}.new"));
            fs::write(
                &draft,
                serde_json::to_vec(&claim).map_err(io::Error::other)?,
            )?;
            fs::rename(&draft, &path)?;
            books.add(block);
            return Ok(true);
        }
        Ok(false)
    }

    fn read(&self, block: u32) -> Option<Claim> {
        serde_json::from_slice(&fs::read(self.dir.join(block.to_string())).ok()?).ok()
    }

    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held while claims are made and read.
fn lock(dir: &Path) -> io::Result<fs::File> {
    let file = open_to_lock(&dir.join("lock"))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn alive_file(dir: &Path, instance: &str) -> PathBuf {
    dir.join(format!("{instance}{ALIVE}"))
}

fn is_alive(dir: &Path, instance: &str) -> bool {
    fs::File::open(alive_file(dir, instance)).is_ok_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
    })
}

/// Removes what told of engines that ended; who claims a range is read from the claims.
fn remove_dead(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let Some(instance) = name.to_str().and_then(|name| name.strip_suffix(ALIVE)) else {
            continue;
        };
        if !is_alive(dir, instance) {
            fs::remove_file(alive_file(dir, instance))?;
        }
    }
    Ok(())
}

fn open_to_lock(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
}

impl Books {
    fn next(&mut self) -> Option<u32> {
        let index = self
            .free
            .range(self.last.saturating_add(1)..)
            .next()
            .or_else(|| self.free.first())
            .copied()?;
        self.free.remove(&index);
        self.last = index;
        Some(index)
    }

    fn add(&mut self, block: u32) {
        self.blocks.insert(block);
        let first = FIRST_RANGE + block * BLOCK_RANGES;
        self.free.extend(first..first + BLOCK_RANGES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn two_engines_never_share_a_range() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        let host = dir.path().join("uids");
        let first = UidRanges::open(&host, "one", &a).unwrap();
        let second = UidRanges::open(&host, "two", &b).unwrap();
        let held: Vec<_> = (0..300)
            .flat_map(|_| {
                [
                    first.take().unwrap().unwrap(),
                    second.take().unwrap().unwrap(),
                ]
            })
            .collect();
        let bases: HashSet<u32> = held.iter().map(UidRange::base).collect();
        assert_eq!(bases.len(), held.len());
        assert!(
            bases
                .iter()
                .all(|base| *base >= 0x7000_0000 && base.checked_add(RANGE_IDS).is_some())
        );
    }

    #[test]
    fn a_restarted_engine_has_its_blocks_again_and_can_retake_a_range() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("uids");
        let before = UidRanges::open(&host, "one", dir.path()).unwrap();
        let base = before.take().unwrap().unwrap().base();
        drop(before);
        let after = UidRanges::open(&host, "one", dir.path()).unwrap();
        let range = after.retake(base).expect("still ours");
        assert!(after.retake(base).is_none(), "taken twice");
        assert_ne!(after.take().unwrap().unwrap().base(), range.base());
    }

    #[test]
    fn a_range_given_back_is_not_the_next_one_handed_out() {
        let dir = tempfile::tempdir().unwrap();
        let ranges = UidRanges::open(&dir.path().join("uids"), "one", dir.path()).unwrap();
        let mut before = ranges.take().unwrap().unwrap().index();
        for _ in 0..600 {
            let index = ranges.take().unwrap().unwrap().index();
            assert_ne!(index, before);
            before = index;
        }
    }

    #[test]
    fn claims_of_vanished_data_directories_are_free_again() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("uids");
        let gone = dir.path().join("gone");
        let old = UidRanges::open(&host, "old", &gone).unwrap();
        let base = old.take().unwrap().unwrap().base();
        let new = UidRanges::open(&host, "new", dir.path()).unwrap();
        // Its data may only be out of sight.
        assert!(new.is_claimed_by("old"));
        assert_ne!(new.take().unwrap().unwrap().base(), base);
        drop(old);
        assert!(!new.is_claimed_by("old"));
        let third = UidRanges::open(&host, "third", dir.path()).unwrap();
        assert_eq!(third.take().unwrap().unwrap().base(), base);
        assert!(!alive_file(&host, "old").exists());
    }
}
