//! Moving by copying, where the kernel cannot rename.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cove_protocol::message::ErrorCode;
use rustix::fs::{AtFlags, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid};

use super::write::temporary_name;
use crate::failure::{Doing, Failure, Result};

/// Copies beside the target first, so that the target appears whole, then removes the source.
pub fn move_by_copy(from: &Path, to: &Path, replace: bool) -> Result<()> {
    let directory = to
        .parent()
        .ok_or_else(|| Failure::invalid("cannot move onto the root directory"))?;
    let staging = directory.join(temporary_name());
    let moved = copy_tree(from, &staging).and_then(|()| {
        let flags = if replace {
            RenameFlags::empty()
        } else {
            RenameFlags::NOREPLACE
        };
        let here = rustix::fs::CWD;
        rustix::fs::renameat_with(here, &staging, here, to, flags).doing(&to.display().to_string())
    });
    if moved.is_err() {
        // The first error is the one to tell.
        let _ = remove(&staging);
    }
    moved?;
    remove(from).doing(&from.display().to_string())
}

fn remove(path: &Path) -> io::Result<()> {
    if std::fs::symlink_metadata(path)?.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    }
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let mut pending: Vec<(PathBuf, PathBuf)> = vec![(from.to_owned(), to.to_owned())];
    let mut directories = Vec::new();
    while let Some((from, to)) = pending.pop() {
        let shown = from.display().to_string();
        let metadata = std::fs::symlink_metadata(&from).doing(&shown)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            std::fs::create_dir(&to).doing(&shown)?;
            for entry in std::fs::read_dir(&from).doing(&shown)? {
                let entry = entry.doing(&shown)?;
                pending.push((entry.path(), to.join(entry.file_name())));
            }
            // A directory's own attributes come last: its mode may forbid filling it.
            directories.push((to, metadata));
            continue;
        }
        if kind.is_file() {
            copy_file(&from, &to).doing(&shown)?;
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&from).doing(&shown)?;
            std::os::unix::fs::symlink(target, &to).doing(&shown)?;
        } else if kind.is_fifo() {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, &to, kind, Mode::RUSR | Mode::WUSR, 0)
                .doing(&shown)?;
        } else {
            return Err(Failure::new(
                ErrorCode::Unsupported,
                format!("{shown} is a socket or a device and cannot be copied"),
            ));
        }
        copy_attributes(&to, &metadata).doing(&shown)?;
    }
    for (path, metadata) in directories.iter().rev() {
        copy_attributes(path, metadata).doing(&path.display().to_string())?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(from)?;
    let mut target = File::options().write(true).create_new(true).open(to)?;
    io::copy(&mut source, &mut target)?;
    Ok(())
}

fn copy_attributes(path: &Path, metadata: &Metadata) -> io::Result<()> {
    let here = rustix::fs::CWD;
    let owner = (
        Some(Uid::from_raw(metadata.uid())),
        Some(Gid::from_raw(metadata.gid())),
    );
    match rustix::fs::chownat(here, path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW) {
        // A user who is not root owns what it copied.
        Ok(()) | Err(rustix::io::Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    if !metadata.file_type().is_symlink() {
        std::fs::set_permissions(path, metadata.permissions())?;
    }
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: metadata.atime(),
            tv_nsec: metadata.atime_nsec() as _,
        },
        last_modification: Timespec {
            tv_sec: metadata.mtime(),
            tv_nsec: metadata.mtime_nsec() as _,
        },
    };
    rustix::fs::utimensat(here, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}
