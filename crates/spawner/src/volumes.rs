//! Attaching volumes inside a root that belongs to a guest: the tree may hold any links, and none of its
//! processes runs yet.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cove_spawner::message::{Failure, Step};
use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};

const DIRECTORY_MODE: u32 = 0o755;
/// How often a path is resolved anew; each takes microseconds, and few in a row are disturbed.
const RESOLVE_TRIES: u32 = 10_000;
/// Places of the root that the host fills.
const RESERVED: [&str; 4] = ["proc", "sys", "dev", ".cove"];

/// Attaches a detached mount at `path` of `root`, which is attached at `place`. What is missing of the path is
/// made. Links are followed within the root. Answers where that is.
pub fn attach(
    volume: &OwnedFd,
    root: BorrowedFd<'_>,
    place: &str,
    path: &str,
) -> Result<String, Failure> {
    let step = format!("mount a volume at {path}");
    let target = make(root, path).step(&step)?;
    let link = format!("/proc/self/fd/{}", target.as_raw_fd());
    let found = std::fs::read_link(link).step(&step)?;
    let inside = found
        .to_str()
        .and_then(|found| found.strip_prefix(place))
        .filter(|inside| !is_reserved(inside))
        .ok_or_else(|| Failure::new(&step, Errno::PERM))?
        .to_owned();
    move_mount(
        volume.as_fd(),
        "",
        target.as_fd(),
        "",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
    .step(&step)?;
    Ok(inside)
}

/// The root itself, and what lies in the host's places.
fn is_reserved(path: &str) -> bool {
    match path.split('/').find(|part| !part.is_empty()) {
        Some(first) => RESERVED.contains(&first),
        None => true,
    }
}

/// The directory at an absolute path of `root`, made where it is missing. As no mount is crossed, no volume is
/// attached inside another one.
fn make(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let mut reached = 0;
    let mut directory = resolve(root, ".")?;
    let ends = path.match_indices('/').map(|(at, _)| at);
    for end in ends.skip(1).chain([path.len()]) {
        let name = path[reached..end].trim_matches('/');
        let upto = &path[..end];
        directory = match resolve(root, upto) {
            Err(Errno::NOENT) => {
                // A link that leads nowhere is refused as what exists already.
                mkdirat(&directory, name, Mode::from_raw_mode(DIRECTORY_MODE))?;
                resolve(root, upto)?
            }
            found => found?,
        };
        reached = end;
    }
    Ok(directory)
}

fn resolve(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    for _ in 1..RESOLVE_TRIES {
        match openat2(root, path, flags, Mode::empty(), how) {
            // Something was renamed or mounted, anywhere on the host, while a `..` was followed.
            Err(Errno::AGAIN) => {}
            found => return found,
        }
    }
    openat2(root, path, flags, Mode::empty(), how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_and_the_hosts_places_are_reserved() {
        for reserved in ["", "/", "/proc", "/proc/1", "/dev/shm", "/sys", "/.cove/x"] {
            assert!(is_reserved(reserved), "{reserved}");
        }
        for free in ["/data", "/srv/proc", "/devel", "/.covex"] {
            assert!(!is_reserved(free), "{free}");
        }
    }
}
