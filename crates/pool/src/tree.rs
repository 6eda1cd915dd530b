//! Walking directory trees that a hostile guest may have made.
//!
//! Nothing here follows a symbolic link, crosses into another mount or subvolume, recurses, or holds
//! more than one descriptor per tree: a tree may be deeper than the stack and the descriptor table.
//! Going up is opening `..`, checked against the identity noted on the way down.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The unit of `st_blocks`.
const STAT_BLOCK: u64 = 512;

pub(crate) fn open_dir_at(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(parent, name, DIRECTORY, Mode::empty())
}

/// The names in a directory with their types; a filesystem that does not tell types is asked.
pub(crate) fn entries(dir: BorrowedFd<'_>) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut found = Vec::new();
    let mut reader = Dir::read_from(dir)?;
    while let Some(entry) = reader.read() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(e),
            },
            known => known,
        };
        found.push((name.to_owned(), kind));
    }
    Ok(found)
}

/// A position in a tree: one open directory and the identities of those above it.
pub(crate) struct Position {
    dir: OwnedFd,
    above: Vec<(u64, u64)>,
    device: u64,
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Position {
    pub fn at(dir: OwnedFd) -> Result<Position, Errno> {
        let device = fstat(&dir)?.st_dev;
        Ok(Position {
            dir,
            above: Vec::new(),
            device,
        })
    }

    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Enters `name`; `EXDEV` when another filesystem or subvolume begins there.
    pub fn enter(&mut self, name: &CStr) -> Result<(), Errno> {
        let inner = open_dir_at(self.dir.as_fd(), name)?;
        if fstat(&inner)?.st_dev != self.device {
            return Err(Errno::XDEV);
        }
        self.above.push(identity(&fstat(&self.dir)?));
        self.dir = inner;
        Ok(())
    }

    /// Goes back up; `ESTALE` when somebody moved the directory meanwhile.
    pub fn leave(&mut self) -> Result<(), Errno> {
        let outer = open_dir_at(self.dir.as_fd(), c"..")?;
        let expected = self.above.pop().ok_or(Errno::INVAL)?;
        if identity(&fstat(&outer)?) != expected {
            return Err(Errno::STALE);
        }
        self.dir = outer;
        Ok(())
    }
}

/// Removes `name` in `parent` and everything below. Returns false when `stop` said so midway.
pub(crate) fn remove(
    parent: BorrowedFd<'_>,
    name: &CStr,
    stop: &dyn Fn() -> bool,
) -> Result<bool, Errno> {
    let top = match open_dir_at(parent, name) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(true),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            unlinkat(parent, name, AtFlags::empty())?;
            return Ok(true);
        }
        Err(e) => return Err(e),
    };
    if fstat(&top)?.st_dev != fstat(parent)?.st_dev {
        return Err(Errno::XDEV);
    }
    let mut position = Position::at(top)?;
    // For each open level the subdirectories still to remove, the one being removed last.
    let mut pending = vec![clear_files(position.dir(), stop)?];
    while let Some(level) = pending.last_mut() {
        if stop() {
            return Ok(false);
        }
        if let Some(child) = level.last() {
            position.enter(child)?;
            pending.push(clear_files(position.dir(), stop)?);
            continue;
        }
        pending.pop();
        if let Some(outer) = pending.last_mut() {
            position.leave()?;
            let done = outer
                .pop()
                .expect("the level below was entered through this entry");
            unlinkat(position.dir(), &done, AtFlags::REMOVEDIR)?;
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)?;
    Ok(true)
}

/// Unlinks everything but directories and returns those.
fn clear_files(dir: BorrowedFd<'_>, stop: &dyn Fn() -> bool) -> Result<Vec<CString>, Errno> {
    let mut directories = Vec::new();
    for (name, kind) in entries(dir)? {
        if kind == FileType::Directory {
            directories.push(name);
        } else if stop() {
            break;
        } else {
            match unlinkat(dir, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(directories)
}

/// Disk bytes of everything below `top`, hard links once. Entries that vanish on the way are skipped.
pub(crate) fn measure(top: OwnedFd) -> Result<u64, Errno> {
    let mut position = Position::at(top)?;
    let mut linked = HashSet::new();
    let mut bytes = blocks(&fstat(position.dir())?);
    let mut pending = vec![measure_level(position.dir(), &mut bytes, &mut linked)?];
    while let Some(level) = pending.last_mut() {
        match level.pop() {
            Some(child) => match position.enter(&child) {
                Ok(()) => {
                    bytes += blocks(&fstat(position.dir())?);
                    pending.push(measure_level(position.dir(), &mut bytes, &mut linked)?);
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
                Err(e) => return Err(e),
            },
            None => {
                pending.pop();
                if !pending.is_empty() {
                    position.leave()?;
                }
            }
        }
    }
    Ok(bytes)
}

/// A number that changes with any change below `top`: every inode's number, time of last change,
/// size and links, added up, so that the order in which they are met does not matter.
pub(crate) fn fingerprint(top: OwnedFd) -> Result<u64, Errno> {
    let mut position = Position::at(top)?;
    let mut sum = digest(&fstat(position.dir())?);
    let mut pending = vec![fingerprint_level(position.dir(), &mut sum)?];
    while let Some(level) = pending.last_mut() {
        match level.pop() {
            Some(child) => match position.enter(&child) {
                Ok(()) => pending.push(fingerprint_level(position.dir(), &mut sum)?),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
                Err(e) => return Err(e),
            },
            None => {
                pending.pop();
                if !pending.is_empty() {
                    position.leave()?;
                }
            }
        }
    }
    Ok(sum)
}

fn fingerprint_level(dir: BorrowedFd<'_>, sum: &mut u64) -> Result<Vec<CString>, Errno> {
    let mut directories = Vec::new();
    for (name, kind) in entries(dir)? {
        match statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => *sum = sum.wrapping_add(digest(&stat)),
            Err(Errno::NOENT) => continue,
            Err(e) => return Err(e),
        }
        if kind == FileType::Directory {
            directories.push(name);
        }
    }
    Ok(directories)
}

fn digest(stat: &Stat) -> u64 {
    let mut hasher = DefaultHasher::new();
    let changed = (stat.st_ctime, stat.st_ctime_nsec);
    (stat.st_ino, changed, stat.st_size, stat.st_nlink).hash(&mut hasher);
    hasher.finish()
}

fn measure_level(
    dir: BorrowedFd<'_>,
    bytes: &mut u64,
    linked: &mut HashSet<(u64, u64)>,
) -> Result<Vec<CString>, Errno> {
    let mut directories = Vec::new();
    for (name, kind) in entries(dir)? {
        if kind == FileType::Directory {
            directories.push(name);
            continue;
        }
        match statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if stat.st_nlink > 1 && !linked.insert(identity(&stat)) => {}
            Ok(stat) => *bytes += blocks(&stat),
            Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(directories)
}

/// The disk bytes of one entry.
pub(crate) fn blocks(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * STAT_BLOCK
}
