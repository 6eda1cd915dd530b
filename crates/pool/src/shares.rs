//! What of a volume only that volume uses: a walk over its files that asks the filesystem for each
//! extent whether it is shared. Quota counters cannot tell, because they charge whoever wrote first.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

use crate::sys::extents;
use crate::tree::{Position, entries};

/// Bytes of a volume's files by who uses them. Metadata is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shares {
    /// What deleting the volume would free.
    pub exclusive_bytes: u64,
    /// What some other volume, or another file, uses too.
    pub shared_bytes: u64,
    /// False when the walk ran out of time; the figures are then a lower bound.
    pub complete: bool,
}

struct Walk {
    shares: Shares,
    linked: HashSet<(u64, u64)>,
    deadline: Instant,
}

/// Walks everything below `top`, until `deadline`.
pub(crate) fn walk(top: OwnedFd, deadline: Instant) -> Result<Shares, Errno> {
    let mut position = Position::at(top)?;
    let mut walk = Walk {
        shares: Shares {
            complete: true,
            ..Shares::default()
        },
        linked: HashSet::new(),
        deadline,
    };
    let mut pending = vec![walk.level(position.dir())?];
    while let Some(level) = pending.last_mut() {
        if Instant::now() >= deadline {
            walk.shares.complete = false;
            break;
        }
        match level.pop() {
            Some(child) => match position.enter(&child) {
                Ok(()) => pending.push(walk.level(position.dir())?),
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
    Ok(walk.shares)
}

impl Walk {
    fn level(&mut self, dir: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
        let mut directories = Vec::new();
        for (name, kind) in entries(dir)? {
            match kind {
                FileType::Directory => directories.push(name),
                FileType::RegularFile => self.file(dir, &name)?,
                _ => {}
            }
            if Instant::now() >= self.deadline {
                break;
            }
        }
        Ok(directories)
    }

    fn file(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => stat,
            Ok(_) | Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e),
        };
        if stat.st_nlink > 1 && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(dir, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return Ok(()),
            Err(e) => return Err(e),
        };
        if fstat(&file)?.st_ino != stat.st_ino {
            return Ok(());
        }
        let sum = match extents::shares(file.as_fd()) {
            Ok(sum) => sum,
            // Filesystems that cannot tell share nothing that we know of.
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => extents::FileShares {
                exclusive: u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
                shared: 0,
            },
            Err(e) => return Err(e),
        };
        self.shares.exclusive_bytes += sum.exclusive;
        self.shares.shared_bytes += sum.shared;
        Ok(())
    }
}
