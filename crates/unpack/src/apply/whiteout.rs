//! Whiteouts of OCI layers: names that delete what the layers below brought.
//!
//! A layer is unpacked over a copy of the layers below, so a whiteout really deletes. It must
//! spare what its own layer brought, in whatever order the archive lists the two.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::path::EntryPath;
use super::{Target, failed};
use crate::report::{Failure, Warning, show};

pub(super) const PREFIX: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The paths a layer brought, with all their parents. Only hashes are kept, so that a layer of
/// millions of files stays small in memory; their key is random, so collisions cannot be planned.
#[derive(Default)]
pub(super) struct Seen {
    hashes: HashSet<u64>,
    key: RandomState,
}

impl Seen {
    pub fn add(&mut self, path: &EntryPath) {
        self.hashes.insert(self.key.hash_one(path.joined()));
        for prefix in path.parent_prefixes() {
            self.hashes.insert(self.key.hash_one(prefix));
        }
    }

    fn contains(&self, joined: &[u8]) -> bool {
        self.hashes.contains(&self.key.hash_one(joined))
    }
}

impl Target<'_> {
    pub(super) fn whiteout(&mut self, path: &EntryPath) -> Result<(), Failure> {
        let name = path.name().unwrap_or_default();
        // Deleting below a directory that does not exist deletes nothing.
        let parent = match self.open_parent(path.parent()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(error) => return Err(failed("opening", path.parent(), error)),
        };
        self.parent = None;
        let Some(seen) = &self.seen else {
            return Ok(());
        };
        let result = if name == OPAQUE {
            open_directory(parent.as_fd(), b".")
                .and_then(|directory| clear_lower(directory.as_fd(), path.parent(), seen))
        } else if name.starts_with(b".wh..wh.") {
            // Bookkeeping of the storage driver that packed the layer.
            (self.warn)(Warning::WhiteoutIgnored {
                path: show(path.joined()),
            });
            Ok(())
        } else {
            let target = &name[PREFIX.len()..];
            if matches!(target, b"" | b"." | b"..") {
                return Err(Failure::UnsafePath {
                    path: show(path.joined()),
                });
            }
            remove_lower(parent.as_fd(), target, path.parent(), seen)
        };
        result.map_err(|e| failed("removing", path.joined(), e))
    }
}

/// Removes one name, except for what this layer brought.
fn remove_lower(
    parent: BorrowedFd<'_>,
    name: &[u8],
    parent_path: &[u8],
    seen: &Seen,
) -> rustix::io::Result<()> {
    let mut joined = parent_path.to_vec();
    if !joined.is_empty() {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    if !seen.contains(&joined) {
        return remove_all(parent, name);
    }
    match open_directory(parent, name) {
        Ok(directory) => clear_lower(directory.as_fd(), &joined, seen),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(error) => Err(error),
    }
}

fn clear_lower(directory: BorrowedFd<'_>, path: &[u8], seen: &Seen) -> rustix::io::Result<()> {
    for name in names(directory)? {
        remove_lower(directory, &name, path, seen)?;
    }
    Ok(())
}

/// Removes a file or a whole directory, following no link. Fine when nothing is there.
pub(super) fn remove_all(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let directory = open_directory(parent, name)?;
    for name in names(directory.as_fd())? {
        remove_all(directory.as_fd(), &name)?;
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// All names in a directory. Read at once, since deleting while reading may skip names.
fn names(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}
