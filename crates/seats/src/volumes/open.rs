//! Finding what processes have open on volumes.
//!
//! A restore opens files by name, with the rights of the sandbox's root, before processes get their own. On a disk of
//! the sandbox's own a name leads where it led. On a volume others may have put a link there meanwhile, which would lead
//! the process to a file that it may not open, or a fifo, at which the restore would wait; and a lock would be held
//! twice. So nothing is captured that has anything of a volume open, by whatever way.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;

use super::Place;

/// Bytes of a file's name that are shown.
const NAME_MAX: usize = 200;
/// How often a socket's directory is resolved anew when something was renamed meanwhile.
const RESOLVE_TRIES: u32 = 100;

/// A process that has something of a volume open, and what.
#[derive(Debug)]
pub struct Holder {
    pub pid: i32,
    /// For whoever reads the error.
    pub what: String,
}

/// The mounts of volumes, as the kernel numbers them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mounts {
    ids: Vec<u64>,
    /// Their filesystems, as a watch names them.
    devices: Vec<u64>,
}

/// The first that is found. Decisive only while every process stands still.
pub fn holder(first: i32, processes: &[i32], places: &[Place]) -> io::Result<Option<Holder>> {
    if places.is_empty() {
        return Ok(None);
    }
    let mountinfo = fs::read_to_string(format!("/proc/{first}/mountinfo"))?;
    let mounts = mounts(&mountinfo, places);
    if mounts.ids.len() < places.len() {
        return Err(io::Error::other("a volume is not mounted any more"));
    }
    for &pid in processes {
        if let Some(what) = held_by(pid, &mounts)? {
            return Ok(Some(Holder { pid, what }));
        }
    }
    let sockets = fs::read_to_string(format!("/proc/{first}/net/unix"))?;
    let root = fs::File::open(format!("/proc/{first}/root"))?;
    for (inode, name) in bound_sockets(&sockets) {
        if is_socket_on(&root.try_clone()?.into(), name, &mounts)? {
            let pid = owner_of(inode, processes).unwrap_or(first);
            let what = format!("the socket {}", shown(Path::new(name)));
            return Ok(Some(Holder { pid, what }));
        }
    }
    Ok(None)
}

fn held_by(pid: i32, mounts: &Mounts) -> io::Result<Option<String>> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let mut links = vec![process.join("exe")];
    links.extend(entries(&process.join("map_files"))?);
    // Threads may have directories and descriptors of their own.
    for task in entries(&process.join("task"))? {
        links.extend([task.join("cwd"), task.join("root")]);
        links.extend(entries(&task.join("fd"))?);
        for info in entries(&task.join("fdinfo"))? {
            let Some(text) = there(fs::read_to_string(&info))? else {
                continue;
            };
            if let Some(what) = reaches(&text, mounts) {
                return Ok(Some(what.to_owned()));
            }
        }
    }
    for link in links {
        if is_on(&link, mounts)? {
            let name = there(fs::read_link(&link))?.unwrap_or_default();
            return Ok(Some(shown(&name)));
        }
    }
    Ok(None)
}

/// What is gone meanwhile holds nothing.
fn there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::SRCH))
}

fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(listed) = there(fs::read_dir(dir))? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in listed {
        if let Some(entry) = there(entry)? {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Whether what a link of the kernel leads to is on one of the mounts. Nothing is opened.
fn is_on(link: &Path, mounts: &Mounts) -> io::Result<bool> {
    let found = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID);
    let Some(found) = there(found.map_err(io::Error::from))? else {
        return Ok(false);
    };
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::Error::other(
            "the kernel does not report the mounts of files",
        ));
    }
    Ok(mounts.ids.contains(&found.stx_mnt_id))
}

/// What a descriptor that is no file itself has of a volume: files on their way to another process, which no list
/// shows, and watches.
fn reaches(fdinfo: &str, mounts: &Mounts) -> Option<&'static str> {
    let is_watch = |line: &str| {
        let device = line.split(' ').find_map(|part| part.strip_prefix("sdev:"));
        let device = device.and_then(|text| u64::from_str_radix(text, 16).ok());
        device.is_some_and(|device| mounts.devices.contains(&device))
    };
    let in_flight = |line: &str| {
        let count = line.strip_prefix("scm_fds:");
        count.is_some_and(|count| count.trim() != "0")
    };
    fdinfo.lines().find_map(|line| {
        if line.starts_with("inotify ") && is_watch(line) {
            Some("a watch of its files (inotify)")
        } else if in_flight(line) {
            Some("descriptors that wait in a socket, and may be of its files")
        } else {
            None
        }
    })
}

/// The sockets with names in the file system: their inodes and names.
fn bound_sockets(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().skip(1).filter_map(|line| {
        let mut rest = line;
        let mut inode = "";
        for _ in 0..7 {
            rest = rest.trim_start();
            let end = rest.find(' ')?;
            (inode, rest) = rest.split_at(end);
        }
        let name = rest.strip_prefix(' ')?;
        (!name.is_empty() && !name.starts_with('@')).then_some((inode, name))
    })
}

/// Where a restore would make the socket again. A name that begins at a directory which nobody knows any more may be
/// there.
fn is_socket_on(root: &OwnedFd, name: &str, mounts: &Mounts) -> io::Result<bool> {
    if !name.starts_with('/') {
        return Ok(true);
    }
    let parent = Path::new(name).parent().unwrap_or(Path::new("/"));
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    for _ in 0..RESOLVE_TRIES {
        match openat2(root, parent, flags, Mode::empty(), how) {
            Err(Errno::AGAIN) => {}
            // The directory is gone: nothing of a volume is at this name.
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
            Ok(found) => {
                use std::os::fd::AsRawFd;
                let link = format!("/proc/self/fd/{}", found.as_raw_fd());
                return is_on(Path::new(&link), mounts);
            }
        }
    }
    Err(io::Error::other("a socket's directory is being renamed"))
}

fn owner_of(inode: &str, processes: &[i32]) -> Option<i32> {
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    processes.iter().copied().find(|pid| {
        let descriptors = entries(Path::new(&format!("/proc/{pid}/fd"))).unwrap_or_default();
        let mut links = descriptors.iter().map(fs::read_link);
        links.any(|link| link.is_ok_and(|link| link == wanted))
    })
}

/// A file's name is a guest's: letters of ASCII alone, everything else escaped, and cut.
fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.escape_default().take(NAME_MAX).collect()
}

/// The mounts at these places. The kernel escapes what could pass for a separator.
fn mounts(mountinfo: &str, places: &[Place]) -> Mounts {
    let escaped = |path: &str| path.replace(' ', "\\040");
    let wanted: Vec<String> = places.iter().map(|place| escaped(&place.found)).collect();
    let mut mounts = Mounts::default();
    for line in mountinfo.lines() {
        let mut fields = line.split(' ');
        let (id, device, at) = (fields.next(), fields.nth(1), fields.nth(1));
        let (Some(id), Some(device), Some(at)) = (id, device, at) else {
            continue;
        };
        if wanted.iter().any(|place| place == at) {
            mounts.ids.extend(id.parse::<u64>());
            mounts.devices.extend(device_number(device));
        }
    }
    mounts
}

/// As the kernel writes it for a watch: the minor number has twenty bits.
fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "22 1 0:20 / /proc rw - proc proc rw\n\
        77 1 0:44 /volumes/x /data rw,nosuid - btrfs /dev/loop0 rw\n\
        78 1 0:44 /volumes/y /a\\040b rw,nosuid - btrfs /dev/loop0 rw\n";

    fn place(path: &str) -> Place {
        Place {
            asked: path.to_owned(),
            found: path.to_owned(),
            read_only: false,
        }
    }

    #[test]
    fn mounts_are_found_by_their_places() {
        let found = mounts(MOUNTINFO, &[place("/data"), place("/a b")]);
        assert_eq!(found.ids, [77, 78]);
        assert_eq!(found.devices, [44, 44]);
        assert_eq!(device_number("8:1"), Some(0x80_0001));
    }

    #[test]
    fn watches_and_descriptors_on_their_way_count() {
        let mounts = mounts(MOUNTINFO, &[place("/data")]);
        let watch =
            "pos:\t0\ninotify wd:1 ino:101 sdev:2c mask:fce ignored_mask:0 fhandle-bytes:8\n";
        assert!(reaches(watch, &mounts).is_some());
        assert_eq!(reaches(&watch.replace("sdev:2c", "sdev:2d"), &mounts), None);
        assert!(reaches("mnt_id:\t9\nscm_fds: 2\n", &mounts).is_some());
        assert_eq!(reaches("mnt_id:\t9\nscm_fds: 0\n", &mounts), None);
        assert_eq!(reaches("pos:\t0\nmnt_id:\t77\n", &mounts), None);
    }

    #[test]
    fn only_sockets_with_names_of_files_are_looked_at() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            ffff9c: 00000002 00000000 00010000 0001 01 12345 /data/a b\n\
            ffff9c: 00000002 00000000 00010000 0001 01 12346 @abstract\n\
            ffff9c: 00000003 00000000 00000000 0001 03 12347\n\
            ffff9c: 00000002 00000000 00010000 0001 01 12348 relative\n";
        let found: Vec<_> = bound_sockets(table).collect();
        assert_eq!(found, [("12345", "/data/a b"), ("12348", "relative")]);
    }

    #[test]
    fn links_of_the_kernel_tell_the_mount() {
        let own = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let proc = mounts(&own, &[place("/proc")]);
        assert!(is_on(Path::new("/proc/self/status"), &proc).expect("it is there"));
        assert!(!is_on(Path::new("/proc/self/exe"), &proc).expect("it is there"));
        assert!(!is_on(Path::new("/proc/self/fd/9999"), &proc).expect("it is gone"));
    }
}
