//! Volumes of machines: as mounts, and what captured memory says of them.
//!
//! Memory knows each volume by its number. Beside it lies a file with the mount points, as they were asked for and
//! as they were found; a restore is given volumes for the same ones, in the same order. Nothing that is captured has
//! anything on a volume open (`open`).

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use cove_isolation::{IsolationError, MountedVolume};
use cove_model::volume::{VOLUME_MOUNTS_MAX, check_mount_path, is_at_or_below};
use serde::{Deserialize, Serialize};

use crate::rootfs;

pub mod open;

/// Beside captured memory.
const FILE: &str = "volumes.json";
/// Largest file that is read.
const FILE_MAX: u64 = 64 << 10;

/// Where a volume is in a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub asked: String,
    /// With the links in the machine's tree followed.
    pub found: String,
    pub read_only: bool,
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
    let pairs = volumes.iter().zip(found);
    pairs
        .map(|(volume, found)| Place {
            asked: volume.path.clone(),
            found,
            read_only: volume.read_only,
        })
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
    // The kernel keeps open files as they were opened, and mounts as they were made: what was captured read-only would
    // stay so.
    let shown = |path: &str, read_only: bool| match read_only {
        true => format!("{path} (read-only)"),
        false => path.to_owned(),
    };
    let captured = places.iter();
    let captured: Vec<String> = captured
        .map(|place| shown(&place.asked, place.read_only))
        .collect();
    let given = volumes.iter();
    let given: Vec<String> = given
        .map(|volume| shown(&volume.path, volume.read_only))
        .collect();
    if captured != given {
        let list = |paths: &[String]| match paths.is_empty() {
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
        // Neither less nor more than it was captured with.
        let read_only = |path: &str| MountedVolume {
            read_only: true,
            ..at(path)
        };
        assert!(unfit(&[at("/data"), read_only("/link")]));
        let kept = places(&[read_only("/data")], vec!["/data".into()]);
        keep(&kept, dir.path()).expect("it is written");
        assert!(unfit(&[at("/data")]));
        of_memory(dir.path(), &[read_only("/data")]).expect("the same");
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
