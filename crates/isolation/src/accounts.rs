//! User ids of the unprivileged parts of an instance: each part of each instance has one of its own, the
//! same in every life.
//!
//! They come from a range that neither distributions, systemd, the tools behind `/etc/subuid` nor sandboxes
//! (see [`crate::slots`]) hand out. Who has which stands in a directory that all instances of a host share
//! and that a reboot keeps; the owner keeps a copy with its data, and finds its id again should that
//! directory be lost. An id is free again when the data of its owner is gone.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

/// Above what `useradd` and systemd's dynamic users get, below where `/etc/subuid` begins.
const FIRST: u32 = 70_000;
const COUNT: u32 = 20_000;
const DIRECTORY: &str = "accounts";
/// Files that name ids, or ranges of them, that are somebody else's.
const NAMED: [&str; 2] = ["/etc/passwd", "/etc/group"];
const DELEGATED: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Claim {
    data_dir: PathBuf,
    part: String,
}

/// The id of `part` of the instance whose data is in `data_dir`, which is there already. `preferred` is
/// taken when no other instance has it. The caller is root.
pub fn claim(
    shared: &Path,
    data_dir: &Path,
    part: &str,
    preferred: Option<u32>,
) -> io::Result<u32> {
    let directory = shared.join(DIRECTORY);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&directory)?;
    let lock = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(directory.join("lock"))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    let ours = Claim {
        data_dir: data_dir.canonicalize()?,
        part: part.to_owned(),
    };
    remove_dead(&directory)?;
    let kept_file = data_dir.join(format!("{part}.uid"));
    let kept = fs::read_to_string(&kept_file)
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok())
        .filter(|id| is_ours(*id));
    let taken = Taken::read();
    // Spread, so that even without the shared directory two instances hardly meet.
    let mut hasher = DefaultHasher::new();
    (&ours.data_dir, part, std::process::id()).hash(&mut hasher);
    let start = (hasher.finish() % u64::from(COUNT)) as u32;
    let fresh = (0..COUNT)
        .map(|step| FIRST + (start + step) % COUNT)
        .filter(|id| !taken.contains(*id));
    let mut candidates = preferred.into_iter().chain(kept).chain(fresh);
    let id = candidates
        .find(|id| read(&directory, *id).is_none_or(|claim| claim == ours))
        .ok_or_else(|| io::Error::other("every user id of the reserved range is taken"))?;
    // One id for each part: an earlier one is given back.
    for (other, claim) in all(&directory)? {
        if claim == ours && other != id {
            fs::remove_file(directory.join(other.to_string()))?;
        }
    }
    let text = serde_json::to_vec(&ours).map_err(io::Error::other)?;
    write(&directory.join(id.to_string()), &text)?;
    write(&kept_file, format!("{id}\n").as_bytes())?;
    Ok(id)
}

fn is_ours(id: u32) -> bool {
    (FIRST..FIRST + COUNT).contains(&id)
}

fn read(directory: &Path, id: u32) -> Option<Claim> {
    serde_json::from_slice(&fs::read(directory.join(id.to_string())).ok()?).ok()
}

fn all(directory: &Path) -> io::Result<Vec<(u32, Claim)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.parse::<u32>().ok());
        found.extend(id.and_then(|id| Some((id, read(directory, id)?))));
    }
    Ok(found)
}

fn remove_dead(directory: &Path) -> io::Result<()> {
    for (id, claim) in all(directory)? {
        if !claim.data_dir.exists() {
            fs::remove_file(directory.join(id.to_string()))?;
        }
    }
    Ok(())
}

/// In one step, so that nobody ever reads half of it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("new");
    fs::write(&draft, bytes)?;
    fs::rename(&draft, path)
}

/// Ids that the host's own files name.
#[derive(Debug, Default)]
struct Taken {
    single: Vec<u32>,
    ranges: Vec<(u32, u32)>,
}

impl Taken {
    fn read() -> Self {
        let mut taken = Self::default();
        for path in NAMED {
            taken.add_named(&fs::read_to_string(path).unwrap_or_default());
        }
        for path in DELEGATED {
            taken.add_delegated(&fs::read_to_string(path).unwrap_or_default());
        }
        taken
    }

    /// `name:password:id:…`
    fn add_named(&mut self, text: &str) {
        let id = |line: &str| line.split(':').nth(2)?.parse::<u32>().ok();
        self.single.extend(text.lines().filter_map(id));
    }

    /// `name:first:count`
    fn add_delegated(&mut self, text: &str) {
        let range = |line: &str| {
            let mut fields = line.split(':').skip(1);
            let first: u32 = fields.next()?.trim().parse().ok()?;
            let count: u32 = fields.next()?.trim().parse().ok()?;
            Some((first, first.saturating_add(count)))
        };
        self.ranges.extend(text.lines().filter_map(range));
    }

    fn contains(&self, id: u32) -> bool {
        let within = |(first, end): &(u32, u32)| (*first..*end).contains(&id);
        self.single.contains(&id) || self.ranges.iter().any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> (tempfile::TempDir, PathBuf, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let [shared, a, b] = ["shared", "a", "b"].map(|name| dir.path().join(name));
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        (dir, shared, a, b)
    }

    #[test]
    fn every_part_of_every_instance_has_an_id_of_its_own_and_keeps_it() {
        let (_dir, shared, a, b) = world();
        let all = [
            (&a, "control"),
            (&a, "gateway"),
            (&b, "control"),
            (&b, "gateway"),
        ];
        let claimed = || all.map(|(data, part)| claim(&shared, data, part, None).unwrap());
        let first = claimed();
        let mut distinct = first.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(claimed(), first);
        // Also when the shared directory is lost.
        fs::remove_dir_all(&shared).unwrap();
        assert_eq!(claimed(), first);
    }

    #[test]
    fn a_copy_of_an_instance_gets_ids_of_its_own() {
        let (_dir, shared, a, b) = world();
        let id = claim(&shared, &a, "control", None).unwrap();
        fs::copy(a.join("control.uid"), b.join("control.uid")).unwrap();
        assert_ne!(claim(&shared, &b, "control", None).unwrap(), id);
        assert_eq!(claim(&shared, &a, "control", None).unwrap(), id);
    }

    #[test]
    fn a_preferred_account_is_one_instances_alone_until_its_data_is_gone() {
        let (_dir, shared, a, b) = world();
        assert_eq!(claim(&shared, &a, "control", Some(998)).unwrap(), 998);
        let other = claim(&shared, &b, "control", Some(998)).unwrap();
        assert!(is_ours(other));
        fs::remove_dir_all(&a).unwrap();
        assert_eq!(claim(&shared, &b, "control", Some(998)).unwrap(), 998);
        assert!(read(&shared.join(DIRECTORY), other).is_none(), "given back");
    }

    #[test]
    fn ids_that_the_host_knows_are_not_used() {
        let mut taken = Taken::default();
        taken.add_named("root:x:0:0::/root:/bin/sh\nbroken\nsvc:x:70007:70007::/:/bin/false\n");
        taken.add_delegated("user:100000:65536\nodd:70100:10\nbroken:x\n");
        for id in [0, 70_007, 70_100, 70_109, 100_000, 165_535] {
            assert!(taken.contains(id), "{id}");
        }
        for id in [70_000, 70_008, 70_099, 70_110, 165_536] {
            assert!(!taken.contains(id), "{id}");
        }
    }
}
