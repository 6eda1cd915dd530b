//! Slots: the one number a running machine has on its host, and what follows from it.
//!
//! A slot's number gives a machine its range of 65,536 uids, its index in the network (interface, outer
//! address) and its name in the kernel (cgroup). No two machines of a host share one, whatever their tier
//! and whichever engine runs them. Tiers take slots from here and derive nothing of that themselves.
//!
//! Slots are claimed in blocks: a file per block under a host-wide directory that a reboot empties (ids on
//! disk are always 0..65535, so nothing there depends on the slot a sandbox had). Within its blocks an
//! engine hands slots out by itself.
//!
//! A claim holds while its engine lives, as a lock shows, or its data is there: sandboxes may be running
//! without an engine. The lock counts also where the data cannot be seen, in another mount namespace.
//! Whatever the claims say, a block is not handed out while a process of the host has a uid of it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::uids;

/// Uids of a slot.
pub const SLOT_UIDS: u32 = 65_536;
/// The uids of the first slot lie above everything that distributions, systemd and other container tools
/// hand out.
const FIRST_SLOT: u32 = 0x7000_0000 / SLOT_UIDS;
/// The last id of all means "none" to the kernel, so the last range of uids is not used.
const END_SLOT: u32 = u32::MAX / SLOT_UIDS;
/// Where in the host's directory claims lie.
const DIRECTORY: &str = "uids";
/// How names of slots begin.
const NAME: &str = "sandbox-";
/// How files end that living engines hold locked.
const ALIVE: &str = ".alive";
const BLOCK_SLOTS: u32 = 256;
const BLOCKS: u32 = (END_SLOT - FIRST_SLOT) / BLOCK_SLOTS;

#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    instance: String,
    data_dir: PathBuf,
}

#[derive(Debug, Default)]
struct SlotTable {
    blocks: BTreeSet<u32>,
    free: BTreeSet<u32>,
    /// Slots are handed out in turn: what the kernel still clears away of a machine that is gone, such as
    /// its interface, goes by the slot's number.
    last: u32,
}

/// Tells which uids processes of this host have.
type InUse = fn() -> io::Result<BTreeSet<u32>>;

/// The slots of one engine.
#[derive(Debug)]
pub struct Slots {
    dir: PathBuf,
    instance: String,
    data_dir: PathBuf,
    /// Locked as long as this engine lives.
    _alive: fs::File,
    in_use: InUse,
    table: Mutex<SlotTable>,
}

/// One slot in use; it goes back when dropped.
#[derive(Debug)]
pub struct Slot {
    number: u32,
    owner: Arc<Slots>,
}

impl Slot {
    /// A number no other slot on this host has.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The first of its [`SLOT_UIDS`] uids and gids.
    pub fn uid_base(&self) -> u32 {
        self.number * SLOT_UIDS
    }

    /// Its uids and gids, the last one included.
    pub fn uids(&self) -> std::ops::RangeInclusive<u32> {
        self.uid_base()..=self.uid_base() + (SLOT_UIDS - 1)
    }

    /// What the network knows it by: its interface and its outer address follow from this.
    pub fn network_index(&self) -> u32 {
        self.number
    }

    /// What it is called in the kernel, as its cgroup is.
    pub fn name(&self) -> String {
        format!("{NAME}{}", self.number)
    }
}

/// The slot that has these uids.
pub fn number_of_uids(uid_base: u32) -> u32 {
    uid_base / SLOT_UIDS
}

/// The slot that has this name, if it is one of a slot.
pub fn number_of_name(name: &str) -> Option<u32> {
    name.strip_prefix(NAME)?.parse().ok()
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.owner.table().free.insert(self.number);
    }
}

impl Slots {
    /// `host_dir` is the same for every engine of a host. Blocks this instance had before are its again.
    pub fn open(host_dir: &Path, instance: &str, data_dir: &Path) -> io::Result<Arc<Self>> {
        Self::open_with(host_dir, instance, data_dir, uids::in_use)
    }

    fn open_with(
        host_dir: &Path,
        instance: &str,
        data_dir: &Path,
        in_use: InUse,
    ) -> io::Result<Arc<Self>> {
        let dir = host_dir.join(DIRECTORY);
        fs::create_dir_all(&dir)?;
        let lock = lock(&dir)?;
        remove_dead(&dir)?;
        let alive = open_to_lock(&alive_file(&dir, instance))?;
        rustix::fs::flock(&alive, FlockOperation::LockShared)?;
        let slots = Self {
            dir,
            instance: instance.to_owned(),
            data_dir: data_dir.to_owned(),
            _alive: alive,
            in_use,
            table: Mutex::default(),
        };
        {
            let mut table = slots.table();
            for block in 0..BLOCKS {
                let Some(claim) = slots.read(block) else {
                    continue;
                };
                if claim.instance == instance {
                    // Somewhere else than before: others look there for whether it is gone.
                    if claim.data_dir != data_dir {
                        slots.write(block)?;
                    }
                    table.add(block);
                }
            }
        }
        drop(lock);
        Ok(Arc::new(slots))
    }

    /// A slot nobody on this host uses.
    pub fn take(self: &Arc<Self>) -> io::Result<Option<Slot>> {
        loop {
            if let Some(number) = self.table().next() {
                return Ok(Some(Slot {
                    number,
                    owner: Arc::clone(self),
                }));
            }
            if !self.claim_block()? {
                return Ok(None);
            }
        }
    }

    /// A particular slot, for a machine found running. `None` when it is not ours or taken already.
    pub fn retake(self: &Arc<Self>, number: u32) -> Option<Slot> {
        self.table().free.remove(&number).then(|| Slot {
            number,
            owner: Arc::clone(self),
        })
    }

    /// Whether a slot is this engine's and nobody has it: what bears its number is left over.
    pub fn is_free(&self, number: u32) -> bool {
        self.table().free.contains(&number)
    }

    /// Whether an instance, or a sandbox of it, may be running.
    pub fn is_claimed_by(&self, instance: &str) -> bool {
        (0..BLOCKS)
            .filter_map(|block| self.read(block))
            .any(|claim| claim.instance == instance && self.holds(&claim))
    }

    /// Whether a slot is this engine's, free or not.
    pub fn owns(&self, number: u32) -> bool {
        block_of(number).is_some_and(|block| self.table().blocks.contains(&block))
    }

    /// Calls `work` with a test for slots whose engine is gone with its data. Nobody claims or releases any
    /// meanwhile.
    pub fn with_abandoned<T>(&self, work: impl FnOnce(&dyn Fn(u32) -> bool) -> T) -> io::Result<T> {
        let _lock = lock(&self.dir)?;
        let abandoned: BTreeSet<u32> = (0..BLOCKS)
            .filter(|block| self.read(*block).is_some_and(|claim| !self.holds(&claim)))
            .collect();
        Ok(work(&|number| {
            block_of(number).is_some_and(|block| abandoned.contains(&block))
        }))
    }

    fn holds(&self, claim: &Claim) -> bool {
        claim.data_dir.exists() || is_alive(&self.dir, &claim.instance)
    }

    /// Gives every block back; for an engine that leaves nothing running.
    pub fn release(&self) -> io::Result<()> {
        let _lock = lock(&self.dir)?;
        let mut table = self.table();
        for block in std::mem::take(&mut table.blocks) {
            fs::remove_file(self.dir.join(block.to_string()))?;
        }
        table.free.clear();
        match fs::remove_file(alive_file(&self.dir, &self.instance)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn claim_block(&self) -> io::Result<bool> {
        let _lock = lock(&self.dir)?;
        // A sandbox may outlive the claim it was made under: its engine was killed, and its data moved away.
        let in_use: BTreeSet<u32> = (self.in_use)()?
            .into_iter()
            .filter_map(|uid| block_of(number_of_uids(uid)))
            .collect();
        let mut table = self.table();
        for block in 0..BLOCKS {
            if table.blocks.contains(&block) || in_use.contains(&block) {
                continue;
            }
            if self.read(block).is_some_and(|claim| self.holds(&claim)) {
                continue;
            }
            self.write(block)?;
            table.add(block);
            return Ok(true);
        }
        Ok(false)
    }

    fn write(&self, block: u32) -> io::Result<()> {
        let claim = Claim {
            instance: self.instance.clone(),
            data_dir: self.data_dir.clone(),
        };
        let draft = self.dir.join(format!("{block}.new"));
        let content = serde_json::to_vec(&claim).map_err(io::Error::other)?;
        fs::write(&draft, content)?;
        fs::rename(&draft, self.dir.join(block.to_string()))
    }

    fn read(&self, block: u32) -> Option<Claim> {
        serde_json::from_slice(&fs::read(self.dir.join(block.to_string())).ok()?).ok()
    }

    fn table(&self) -> parking_lot::MutexGuard<'_, SlotTable> {
        self.table.lock()
    }
}

fn block_of(number: u32) -> Option<u32> {
    let block = number.checked_sub(FIRST_SLOT)? / BLOCK_SLOTS;
    (block < BLOCKS).then_some(block)
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

/// Removes the marks of engines that ended; who claims a slot is read from the claims.
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

impl SlotTable {
    fn next(&mut self) -> Option<u32> {
        let number = self
            .free
            .range(self.last.saturating_add(1)..)
            .next()
            .or_else(|| self.free.first())
            .copied()?;
        self.free.remove(&number);
        self.last = number;
        Some(number)
    }

    fn add(&mut self, block: u32) {
        self.blocks.insert(block);
        let first = FIRST_SLOT + block * BLOCK_SLOTS;
        self.free.extend(first..first + BLOCK_SLOTS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn two_engines_never_share_a_slot() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        let host = dir.path().join("host");
        let first = Slots::open(&host, "one", &a).unwrap();
        let second = Slots::open(&host, "two", &b).unwrap();
        let held: Vec<_> = (0..300)
            .flat_map(|_| {
                [
                    first.take().unwrap().unwrap(),
                    second.take().unwrap().unwrap(),
                ]
            })
            .collect();
        let bases: HashSet<u32> = held.iter().map(Slot::uid_base).collect();
        assert_eq!(bases.len(), held.len());
        assert!(
            bases
                .iter()
                .all(|base| *base >= 0x7000_0000 && base.checked_add(SLOT_UIDS).is_some())
        );
    }

    #[test]
    fn a_restarted_engine_has_its_blocks_again_and_can_retake_a_slot() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        let before = Slots::open(&host, "one", dir.path()).unwrap();
        let number = before.take().unwrap().unwrap().number();
        drop(before);
        let after = Slots::open(&host, "one", dir.path()).unwrap();
        assert!(after.is_free(number));
        let slot = after.retake(number).expect("still ours");
        assert!(!after.is_free(number));
        assert!(after.retake(number).is_none(), "taken twice");
        assert_ne!(after.take().unwrap().unwrap().number(), slot.number());
    }

    #[test]
    fn a_slot_given_back_is_not_the_next_one_handed_out() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(&dir.path().join("host"), "one", dir.path()).unwrap();
        let mut before = slots.take().unwrap().unwrap().number();
        for _ in 0..600 {
            let index = slots.take().unwrap().unwrap().number();
            assert_ne!(index, before);
            before = index;
        }
    }

    #[test]
    fn claims_of_vanished_data_directories_are_free_again() {
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        let gone = dir.path().join("gone");
        let open = |instance: &str, data: &Path| {
            Slots::open_with(&host, instance, data, || Ok(BTreeSet::new())).unwrap()
        };
        let old = open("old", &gone);
        let base = old.take().unwrap().unwrap().uid_base();
        let new = open("new", dir.path());
        // Its data may only be out of sight.
        assert!(new.is_claimed_by("old"));
        assert_ne!(new.take().unwrap().unwrap().uid_base(), base);
        drop(old);
        assert!(!new.is_claimed_by("old"));
        let third = open("third", dir.path());
        assert_eq!(third.take().unwrap().unwrap().uid_base(), base);
        assert!(!alive_file(&host.join(DIRECTORY), "old").exists());
    }

    #[test]
    fn a_slot_is_found_again_by_its_uids_and_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(&dir.path().join("host"), "one", dir.path()).unwrap();
        let slot = slots.take().unwrap().unwrap();
        assert_eq!(number_of_uids(slot.uid_base()), slot.number());
        assert_eq!(number_of_uids(*slot.uids().end()), slot.number());
        assert_eq!(number_of_name(&slot.name()), Some(slot.number()));
        for other in ["sandbox-", "sandbox-x", "system.slice", "28672"] {
            assert_eq!(number_of_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_block_is_kept_for_its_engine_while_processes_have_ids_of_it() {
        const USED: u32 = (FIRST_SLOT + 7) * SLOT_UIDS + 1000;
        let used: InUse = || Ok(BTreeSet::from([0, USED]));
        let dir = tempfile::tempdir().unwrap();
        let host = dir.path().join("host");
        let gone = dir.path().join("gone");
        let old = Slots::open_with(&host, "old", &gone, || Ok(BTreeSet::new())).unwrap();
        let number = old.take().unwrap().unwrap().number();
        let used_number = number_of_uids(USED);
        assert!(old.owns(number) && old.owns(used_number));
        drop(old);
        // Its data is gone, and it does not live: only the processes tell that its ids are used.
        let new = Slots::open_with(&host, "new", dir.path(), used).unwrap();
        let taken = new.take().unwrap().unwrap();
        assert!(!new.owns(number) && new.owns(taken.number()));
        let abandoned = |of: u32| new.with_abandoned(|abandoned| abandoned(of)).unwrap();
        assert!(abandoned(number) && !abandoned(taken.number()));
        // Back with its data, wherever that is now, it has what it had.
        let moved = dir.path().join("moved");
        fs::create_dir(&moved).unwrap();
        let old = Slots::open_with(&host, "old", &moved, used).unwrap();
        assert!(old.retake(number).is_some());
        drop(old);
        assert!(new.is_claimed_by("old"));
        // No claim at all does not make ids free that are used.
        fs::remove_dir_all(&host).unwrap();
        let third = Slots::open_with(&host, "third", dir.path(), used).unwrap();
        assert!(third.take().unwrap().is_some() && !third.owns(used_number));
    }
}
