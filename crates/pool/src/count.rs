//! What a volume holds, counted so that nobody can hide anything from it: data of files by their blocks,
//! which include what lies in the metadata, a share of the metadata for every name, and extended
//! attributes, which blocks do not include.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, lgetxattr_query, llistxattr, statat};
use rustix::io::Errno;

use crate::tree::{Position, blocks, entries};

/// What an entry takes in the trees of btrfs: an inode, a reference to it and two items that hold its
/// name, of at most 255 bytes each.
const ENTRY_BYTES: u64 = 1024;
/// Names of extended attributes of one file; the kernel's own limit.
const NAMES_MAX: usize = 64 << 10;

struct Count {
    bytes: u64,
    linked: HashSet<(u64, u64)>,
    names: Vec<u8>,
    deadline: Instant,
}

/// Walks everything below `top`; nothing when the time is up before the end, or when something in it
/// cannot be counted because it has more attributes than the kernel lists.
pub(crate) fn walk(top: OwnedFd, deadline: Instant) -> Result<Option<u64>, Errno> {
    match count(top, deadline) {
        Err(Errno::TOOBIG) => Ok(None),
        counted => counted,
    }
}

fn count(top: OwnedFd, deadline: Instant) -> Result<Option<u64>, Errno> {
    let mut position = Position::at(top)?;
    let mut count = Count {
        bytes: 0,
        linked: HashSet::new(),
        names: vec![0; NAMES_MAX],
        deadline,
    };
    let mut pending = vec![count.level(position.dir())?];
    while let Some(level) = pending.last_mut() {
        if Instant::now() >= deadline {
            return Ok(None);
        }
        match level.pop() {
            Some(child) => match position.enter(&child) {
                Ok(()) => pending.push(count.level(position.dir())?),
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
    Ok(Some(count.bytes))
}

impl Count {
    fn level(&mut self, dir: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
        let mut directories = Vec::new();
        for (name, kind) in entries(dir)? {
            if Instant::now() >= self.deadline {
                break;
            }
            match self.entry(dir, &name) {
                Ok(()) => {}
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(e),
            }
            if kind == FileType::Directory {
                directories.push(name);
            }
        }
        Ok(directories)
    }

    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        self.bytes += ENTRY_BYTES;
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if stat.st_nlink > 1 && !is_directory && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        self.bytes += blocks(&stat) + self.attributes(dir, name)?;
        Ok(())
    }

    /// There is no call that takes a directory and a name; a path through the descriptor ends at the name
    /// and does not follow it.
    fn attributes(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<u64, Errno> {
        let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        let path = CString::new(path).map_err(|_| Errno::INVAL)?;
        let length = match llistxattr(&path, &mut self.names[..]) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => 0,
            Err(e) => return Err(e),
        };
        let mut bytes = 0;
        for attribute in self.names[..length].split_inclusive(|byte| *byte == 0) {
            let attribute = CStr::from_bytes_with_nul(attribute).map_err(|_| Errno::INVAL)?;
            let value = match lgetxattr_query(&path, attribute) {
                Ok(length) => length,
                Err(Errno::NODATA) => 0,
                Err(e) => return Err(e),
            };
            bytes += (attribute.count_bytes() + value) as u64;
        }
        Ok(bytes)
    }
}
