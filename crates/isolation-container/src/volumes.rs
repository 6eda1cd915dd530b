//! Volumes of machines: as mounts, and what captured memory says of them.
//!
//! Memory knows each volume by its number. Beside it lies a file with the mount points, as they were asked for and
//! as they were found; a restore is given volumes for the same ones, in the same order.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use cove_isolation::{IsolationError, MountedVolume};
use cove_model::volume::{VOLUME_MOUNTS_MAX, check_mount_path, is_at_or_below};
use serde::{Deserialize, Serialize};

use crate::rootfs;

/// Beside captured memory.
const FILE: &str = "volumes.json";
/// Largest file that is read.
const FILE_MAX: u64 = 64 << 10;
/// Bytes of a file's name that are shown.
const NAME_MAX: usize = 200;

/// Where a volume is in a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub asked: String,
    /// With the links in the machine's tree followed.
    pub found: String,
}

pub fn trees(
    volumes: &[MountedVolume],
    user_ns: BorrowedFd<'_>,
) -> Result<Vec<OwnedFd>, IsolationError> {
    let mount = |volume| rootfs::volume(volume, user_ns);
    volumes.iter().map(mount).collect()
}

pub fn paths(volumes: &[MountedVolume]) -> Vec<String> {
    volumes.iter().map(|volume| volume.path.clone()).collect()
}

pub fn places(volumes: &[MountedVolume], found: Vec<String>) -> Vec<Place> {
    let asked = paths(volumes).into_iter();
    asked
        .zip(found)
        .map(|(asked, found)| Place { asked, found })
        .collect()
}

/// Links may lead several mount points into each other, or to names that no list of mounts can hold.
pub fn check_found(found: &[String]) -> Result<(), IsolationError> {
    let refused =
        |reason: String| IsolationError::failed("mount the volumes")(io::Error::other(reason));
    for (index, path) in found.iter().enumerate() {
        check_mount_path(path).map_err(|error| refused(error.to_string()))?;
        let overlaps = |other: &&String| is_at_or_below(path, other) || is_at_or_below(other, path);
        if let Some(other) = found[..index].iter().find(overlaps) {
            let reason =
                format!("links in the sandbox lead one volume to {other} and one to {path}");
            return Err(refused(reason));
        }
    }
    Ok(())
}

/// Puts the places beside captured memory.
pub fn keep(places: &[Place], memory: &Path) -> io::Result<()> {
    if places.is_empty() {
        return Ok(());
    }
    fs::write(memory.join(FILE), serde_json::to_vec(places)?)
}

/// A process that holds a lock on a file of a volume, and that file.
#[derive(Debug)]
pub struct LockHolder {
    pub pid: i32,
    pub file: String,
}

/// Looked for while every process stands still. A lock belongs to whoever has it: a copy would believe that it had it
/// too, and one that is paused gives it up.
pub fn lock_holder(
    first: i32,
    processes: &[i32],
    places: &[Place],
) -> io::Result<Option<LockHolder>> {
    if places.is_empty() {
        return Ok(None);
    }
    let mounts = mount_ids(
        &fs::read_to_string(format!("/proc/{first}/mountinfo"))?,
        places,
    );
    for &pid in processes {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            let Ok(info) = fs::read_to_string(descriptor.path()) else {
                continue;
            };
            if holds_lock(&info, &mounts) {
                let number = descriptor.file_name().to_string_lossy().into_owned();
                let link = fs::read_link(format!("/proc/{pid}/fd/{number}"));
                let file = link.map(|path| shown(&path)).unwrap_or_default();
                return Ok(Some(LockHolder { pid, file }));
            }
        }
    }
    Ok(None)
}

/// A file's name is a guest's: letters of ASCII alone, everything else escaped, and cut.
fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.escape_default().take(NAME_MAX).collect()
}

/// The ids of the mounts at these places. The kernel escapes what could pass for a separator.
fn mount_ids(mountinfo: &str, places: &[Place]) -> Vec<String> {
    let escaped = |path: &str| path.replace(' ', "\\040");
    let wanted: Vec<String> = places.iter().map(|place| escaped(&place.found)).collect();
    let mounts = mountinfo.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some((fields.next()?, fields.nth(3)?))
    });
    mounts
        .filter(|(_, at)| wanted.iter().any(|place| place == at))
        .map(|(id, _)| id.to_owned())
        .collect()
}

fn holds_lock(info: &str, mounts: &[String]) -> bool {
    let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let is_there = mount.is_some_and(|id| mounts.iter().any(|mount| mount == id.trim()));
    is_there && info.lines().any(|line| line.starts_with("lock:"))
}

/// The places that memory was captured with, when they are those of `volumes`.
pub fn of_memory(memory: &Path, volumes: &[MountedVolume]) -> Result<Vec<Place>, IsolationError> {
    let read = || -> io::Result<Vec<Place>> {
        let path = memory.join(FILE);
        let length = match fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        if length > FILE_MAX {
            return Err(io::Error::other("the list of volumes is too long"));
        }
        let places: Vec<Place> = serde_json::from_slice(&fs::read(path)?)?;
        match places.len() > VOLUME_MOUNTS_MAX {
            true => Err(io::Error::other("there are too many volumes")),
            false => Ok(places),
        }
    };
    let places = read().map_err(IsolationError::failed("read what volumes the memory has"))?;
    let captured: Vec<&str> = places.iter().map(|place| place.asked.as_str()).collect();
    let given: Vec<&str> = volumes.iter().map(|volume| volume.path.as_str()).collect();
    if captured != given {
        let list = |paths: &[&str]| match paths.is_empty() {
            true => "no volumes".to_owned(),
            false => format!("volumes at {}", paths.join(", ")),
        };
        return Err(IsolationError::Unfit(format!(
            "it was captured with {} and is to run with {}",
            list(&captured),
            list(&given)
        )));
    }
    let found: Vec<String> = places.iter().map(|place| place.found.clone()).collect();
    check_found(&found)?;
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str) -> MountedVolume {
        MountedVolume {
            dir: "/nowhere".into(),
            path: path.to_owned(),
            read_only: false,
        }
    }

    #[test]
    fn memory_comes_back_with_the_mount_points_it_was_captured_with() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(of_memory(dir.path(), &[]).expect("none"), []);
        let unfit = |volumes: &[MountedVolume]| {
            matches!(
                of_memory(dir.path(), volumes),
                Err(IsolationError::Unfit(_))
            )
        };
        assert!(unfit(&[at("/data")]));
        let kept = places(
            &[at("/data"), at("/link")],
            vec!["/data".into(), "/srv/x".into()],
        );
        keep(&kept, dir.path()).expect("it is written");
        assert_eq!(
            of_memory(dir.path(), &[at("/data"), at("/link")]).expect("both"),
            kept
        );
        assert!(unfit(&[]));
        assert!(unfit(&[at("/link"), at("/data")]));
        assert!(unfit(&[at("/data")]));
    }

    #[test]
    fn locks_count_on_volumes_only() {
        let info = "22 1 0:20 / /proc rw - proc proc rw\n\
            77 1 0:44 /volumes/x /data rw,nosuid - btrfs /dev/loop0 rw\n\
            78 1 0:44 /volumes/y /a\\040b rw,nosuid - btrfs /dev/loop0 rw\n";
        let place = |path: &str| Place {
            asked: path.to_owned(),
            found: path.to_owned(),
        };
        let mounts = mount_ids(info, &[place("/data"), place("/a b")]);
        assert_eq!(mounts, ["77", "78"]);
        let held = "pos:\t0\nflags:\t0100002\nmnt_id:\t77\nlock:\t1: FLOCK  ADVISORY  WRITE 9 00:2c:5 0 EOF\n";
        assert!(holds_lock(held, &mounts));
        assert!(!holds_lock(&held.replace("77", "22"), &mounts));
        assert!(!holds_lock("pos:\t0\nmnt_id:\t77\n", &mounts));
    }

    #[test]
    fn places_that_links_lead_into_each_other_are_refused() {
        let found = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
            check_found(&paths)
        };
        found(&["/a", "/b/c"]).expect("apart");
        found(&["/x/y", "/x"]).expect_err("one is inside the other");
        found(&["/proc/1"]).expect_err("the host's");
        found(&["/a:b"]).expect_err("no such name");
    }
}
