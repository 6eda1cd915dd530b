//! Copying a tree with everything that makes it the same tree: owners, modes, times, extended
//! attributes (file capabilities, ACLs, overlay marks), hard links, device nodes and holes.
//!
//! The source may be changing and hostile; see [`crate::tree`] for what the walk guards against.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
    chownat, copy_file_range, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, ftruncate,
    futimens, ioctl_ficlone, lgetxattr, linkat, llistxattr, lsetxattr, mkdirat, mknodat, openat,
    readlinkat, seek, statat, symlinkat, utimensat,
};
use rustix::io::{Errno, pread, pwrite};

use crate::tree::{Position, entries};

/// The kernel's own limits on the list of names and on one value.
const MAX_XATTR_LIST: usize = 64 << 10;
const MAX_XATTR_VALUE: usize = 64 << 10;

const COPY_BUFFER: usize = 128 << 10;

/// Copies what is below `source` into the empty directory `target`. `stash` is an empty directory on
/// the same filesystem where the first copy of every hard-linked file is linked under its inode
/// number, so that later names find it. The attributes named in `leave_out` are not copied from the
/// top directory.
pub(super) fn copy_tree(
    source: OwnedFd,
    target: OwnedFd,
    stash: BorrowedFd<'_>,
    leave_out: &[&str],
) -> Result<(), Errno> {
    let mut copier = Copier {
        stash,
        reflinks: true,
        names: vec![0; MAX_XATTR_LIST],
        value: vec![0; MAX_XATTR_VALUE],
    };
    let mut from = Position::at(source)?;
    let mut to = Position::at(target)?;
    let mut pending = vec![copier.level(from.dir(), to.dir())?];
    while let Some(level) = pending.last_mut() {
        if let Some(name) = level.pop() {
            match from.enter(&name) {
                Ok(()) => {
                    mkdirat(to.dir(), &name, Mode::RWXU)?;
                    to.enter(&name)?;
                    pending.push(copier.level(from.dir(), to.dir())?);
                }
                // Another filesystem begins here: the mount point is part of the tree, its content not.
                Err(Errno::XDEV) => mkdirat(to.dir(), &name, Mode::RWXU)?,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(e) => return Err(e),
            }
            continue;
        }
        pending.pop();
        let skip = if pending.is_empty() { leave_out } else { &[] };
        copier.finish_directory(from.dir(), to.dir(), skip)?;
        if !pending.is_empty() {
            from.leave()?;
            to.leave()?;
        }
    }
    Ok(())
}

struct Copier<'a> {
    stash: BorrowedFd<'a>,
    /// Cleared at the first refusal, so that each file does not ask again.
    reflinks: bool,
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Copier<'_> {
    /// Copies everything in a directory but its subdirectories, and returns those.
    fn level(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
        let mut directories = Vec::new();
        for (name, kind) in entries(from)? {
            if kind == FileType::Directory {
                directories.push(name);
                continue;
            }
            match self.entry(from, to, &name) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(directories)
    }

    /// Copies one entry. `ENOENT` means that it vanished from the source.
    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<(), Errno> {
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let stashed = (stat.st_nlink > 1).then(|| stat.st_ino.to_string());
        if let Some(key) = &stashed {
            match linkat(self.stash, key.as_str(), to, name, AtFlags::empty()) {
                Ok(()) => return Ok(()),
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(from, to, name)?,
            FileType::Symlink => {
                let link = readlinkat(from, name, Vec::new())?;
                symlinkat(link.as_c_str(), to, name)?;
                self.finish_special(from, to, name, &stat, None)?;
            }
            // It became a directory after the listing; a snapshot may miss what is that new.
            FileType::Directory => return Err(Errno::NOENT),
            kind => {
                let mode = Mode::from_raw_mode(stat.st_mode);
                mknodat(to, name, kind, mode, stat.st_rdev)?;
                self.finish_special(from, to, name, &stat, Some(mode))?;
            }
        }
        if let Some(key) = &stashed {
            linkat(to, name, self.stash, key.as_str(), AtFlags::empty())?;
        }
        Ok(())
    }

    fn file(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = match openat(from, name, read, Mode::empty()) {
            // Replaced by something else since it was looked at.
            Err(Errno::LOOP | Errno::NXIO) => return Err(Errno::NOENT),
            opened => opened?,
        };
        let stat = fstat(&source)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::NOENT);
        }
        let write =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = openat(to, name, write, Mode::RUSR | Mode::WUSR)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > 0 && !self.reflink(&source, &target)? {
            copy_extents(&source, &target, size)?;
        }
        fchown(
            &target,
            Some(Uid::from_raw(stat.st_uid)),
            Some(Gid::from_raw(stat.st_gid)),
        )?;
        self.copy_xattrs(source.as_fd(), target.as_fd(), &[])?;
        fchmod(&target, Mode::from_raw_mode(stat.st_mode))?;
        futimens(&target, &times(&stat))
    }

    fn reflink(&mut self, source: &OwnedFd, target: &OwnedFd) -> Result<bool, Errno> {
        if !self.reflinks {
            return Ok(false);
        }
        match ioctl_ficlone(target, source) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => {
                self.reflinks = false;
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Owner, mode, attributes and times of a directory, after its content: a default ACL would
    /// otherwise reach the copies, and every new entry would move the time.
    fn finish_directory(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        leave_out: &[&str],
    ) -> Result<(), Errno> {
        let stat = fstat(from)?;
        fchown(
            to,
            Some(Uid::from_raw(stat.st_uid)),
            Some(Gid::from_raw(stat.st_gid)),
        )?;
        self.copy_xattrs(from, to, leave_out)?;
        fchmod(to, Mode::from_raw_mode(stat.st_mode))?;
        futimens(to, &times(&stat))
    }

    /// The same for symbolic links, devices, pipes and sockets, which are never opened.
    fn finish_special(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        stat: &Stat,
        mode: Option<Mode>,
    ) -> Result<(), Errno> {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        // Attributes have no "at" calls; the magic link names the open directory, and the last
        // component is not followed.
        let (source, target) = (through_proc(from, name), through_proc(to, name));
        let length = match llistxattr(&source, &mut self.names[..]) {
            Ok(length) => length,
            Err(Errno::NOTSUP) => 0,
            Err(e) => return Err(e),
        };
        for attribute in split_names(&self.names[..length]) {
            let size = lgetxattr(&source, attribute, &mut self.value[..])?;
            lsetxattr(&target, attribute, &self.value[..size], XattrFlags::empty())?;
        }
        if let Some(mode) = mode {
            rustix::fs::chmodat(to, name, mode, AtFlags::empty())?;
        }
        utimensat(to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn copy_xattrs(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        leave_out: &[&str],
    ) -> Result<(), Errno> {
        let length = match flistxattr(from, &mut self.names[..]) {
            Ok(length) => length,
            Err(Errno::NOTSUP) => 0,
            Err(e) => return Err(e),
        };
        for attribute in split_names(&self.names[..length]) {
            if leave_out
                .iter()
                .any(|name| name.as_bytes() == attribute.to_bytes())
            {
                continue;
            }
            match fgetxattr(from, attribute, &mut self.value[..]) {
                Ok(size) => fsetxattr(to, attribute, &self.value[..size], XattrFlags::empty())?,
                // Removed since the listing.
                Err(Errno::NODATA) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

fn split_names(list: &[u8]) -> impl Iterator<Item = &CStr> {
    list.split_inclusive(|b| *b == 0)
        .filter_map(|name| CStr::from_bytes_with_nul(name).ok())
}

fn through_proc(dir: BorrowedFd<'_>, name: &CStr) -> CString {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    CString::new(path).expect("neither part holds a NUL")
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds: i64, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Copies the parts of a file that hold data; the holes stay holes.
fn copy_extents(source: &OwnedFd, target: &OwnedFd, size: u64) -> Result<(), Errno> {
    ftruncate(target, size)?;
    let mut at = 0;
    while at < size {
        let start = match seek(source, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole follows.
            Err(Errno::NXIO) => return Ok(()),
            Err(e) => return Err(e),
        };
        let end = match seek(source, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            Err(Errno::NXIO) => return Ok(()),
            Err(e) => return Err(e),
        };
        copy_range(source, target, start, end)?;
        at = end.max(start + 1);
    }
    Ok(())
}

fn copy_range(source: &OwnedFd, target: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let left = usize::try_from(end - from).unwrap_or(usize::MAX);
        match copy_file_range(source, Some(&mut from), target, Some(&mut to), left) {
            // The file became shorter meanwhile.
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return copy_by_hand(source, target, from, end);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn copy_by_hand(source: &OwnedFd, target: &OwnedFd, start: u64, end: u64) -> Result<(), Errno> {
    let mut buffer = vec![0; COPY_BUFFER];
    let mut at = start;
    while at < end {
        let want = usize::try_from(end - at)
            .unwrap_or(COPY_BUFFER)
            .min(COPY_BUFFER);
        let got = pread(source, &mut buffer[..want], at)?;
        if got == 0 {
            return Ok(());
        }
        let mut written = 0;
        while written < got {
            let n = pwrite(target, &buffer[written..got], at + written as u64)?;
            if n == 0 {
                return Err(Errno::IO);
            }
            written += n;
        }
        at += got as u64;
    }
    Ok(())
}
