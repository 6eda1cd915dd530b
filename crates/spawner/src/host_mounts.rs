//! Lets go of the host's mounts that no child needs. A mount namespace keeps every filesystem in it
//! alive: a parked child with a copy of all of them would hold the pool of a neighbour that is long
//! removed. It also makes every copy small.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use cove_spawner::message::{Failure, Step};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};

/// A new /proc or /sys may only be mounted where a whole one is visible already.
const NEEDED_TREES: [&str; 2] = ["/proc", "/sys"];

/// Where programs, their libraries and devices are; CRIU runs `tar` besides itself.
const PROGRAM_TREES: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/dev"];

/// Moves this process into a mount namespace of its own that has only what leads to `paths`.
pub fn keep_only(paths: &[&str]) -> Result<(), Failure> {
    // SAFETY: affects this process alone, which has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        let errno = Errno::from_raw_os_error(crate::clone::last_errno());
        return Err(Failure::new("unshare the mount namespace", errno));
    }
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .step("make mounts private")?;
    let table = fs::read_to_string("/proc/self/mountinfo").step("read the mount table")?;
    // The latest first: what lies over another mount goes before it.
    for place in table.lines().rev().filter_map(place) {
        if !is_needed(&place, paths) {
            // One that went with the mount it was in is gone already.
            let _ = unmount(&place, UnmountFlags::DETACH);
        }
    }
    Ok(())
}

fn is_needed(place: &Path, paths: &[&str]) -> bool {
    NEEDED_TREES
        .iter()
        .chain(&PROGRAM_TREES)
        .any(|tree| place.starts_with(tree))
        || paths.iter().any(|path| Path::new(path).starts_with(place))
}

/// Where a line of the mount table says the mount is; odd bytes are written in octal there.
fn place(line: &str) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let mut rest = line.split(' ').nth(4)?.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let mut value = 0_u8;
        for _ in 0..3 {
            let digit = rest.next()?.checked_sub(b'0')?;
            value = value.wrapping_mul(8).wrapping_add(digit);
        }
        bytes.push(value);
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_the_kernel_writes_them() {
        let line = "36 35 98:0 /mnt1 /mnt\\040two rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(place(line), Some(PathBuf::from("/mnt two")));
        assert_eq!(place("36 35"), None);
    }

    #[test]
    fn only_what_leads_to_a_path_is_needed() {
        let paths = ["/var/lib/cove/runtime/guest", "/run/cove/staging"];
        for needed in ["/", "/run", "/var/lib", "/proc/sys", "/sys/fs/cgroup/cpu"] {
            assert!(is_needed(Path::new(needed), &paths), "{needed}");
        }
        for other in ["/var/lib/cove/pool", "/runtime", "/home"] {
            assert!(!is_needed(Path::new(other), &paths), "{other}");
        }
    }
}
