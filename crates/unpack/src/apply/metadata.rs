//! Owner, mode, times and extended attributes of what was written.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{Target, failed};
use crate::archive::{Entry, Time};
use crate::report::{Failure, Warning, show};

impl Target<'_> {
    /// The order matters: changing the owner clears set-id bits and file capabilities.
    pub(super) fn apply_to_file(
        &mut self,
        fd: BorrowedFd<'_>,
        entry: &Entry,
    ) -> Result<(), Failure> {
        let path = &entry.path;
        let stat = rustix::fs::fstat(fd).map_err(|e| failed("reading", path, e))?;
        let (uid, gid) = (entry.uid as u32, entry.gid as u32);
        let mut mode = stat.st_mode;
        if stat.st_uid != uid || stat.st_gid != gid {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::fchown(fd, Some(uid), Some(gid))
                .map_err(|e| failed("changing the owner", path, e))?;
            mode &= 0o777;
        }
        if mode & 0o7777 != entry.mode {
            rustix::fs::fchmod(fd, Mode::from_raw_mode(entry.mode))
                .map_err(|e| failed("changing the mode", path, e))?;
        }
        for (name, value) in &entry.xattrs {
            let kept = is_kept(name) && {
                match rustix::fs::fsetxattr(fd, &name[..], value, XattrFlags::empty()) {
                    Ok(()) => true,
                    Err(Errno::NOTSUP | Errno::PERM | Errno::INVAL | Errno::RANGE) => false,
                    Err(error) => return Err(failed("setting an attribute", path, error)),
                }
            };
            if !kept {
                let (path, name) = (show(path), show(name));
                (self.warn)(Warning::XattrSkipped { path, name });
            }
        }
        Ok(())
    }
}

/// `trusted.*` and `user.overlay.*` would steer an overlay mounted over the image, and labels of
/// the machine that packed the archive mean nothing here.
fn is_kept(name: &[u8]) -> bool {
    if name.contains(&0) || name.starts_with(b"user.overlay.") {
        return false;
    }
    name.starts_with(b"user.")
        || matches!(
            name,
            b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default"
        )
}

fn stamps(time: Time) -> Timestamps {
    let time = Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

pub(super) fn set_times(fd: BorrowedFd<'_>, time: Time) -> rustix::io::Result<()> {
    rustix::fs::futimens(fd, &stamps(time))
}

pub(super) fn set_link_times(
    parent: BorrowedFd<'_>,
    name: &[u8],
    time: Time,
) -> rustix::io::Result<()> {
    rustix::fs::utimensat(parent, name, &stamps(time), AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn chown_link(
    parent: BorrowedFd<'_>,
    name: &[u8],
    entry: &Entry,
) -> rustix::io::Result<()> {
    rustix::fs::chownat(
        parent,
        name,
        Some(Uid::from_raw(entry.uid as u32)),
        Some(Gid::from_raw(entry.gid as u32)),
        AtFlags::SYMLINK_NOFOLLOW,
    )
}
