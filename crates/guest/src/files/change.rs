//! Calls that change names and attributes.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use cove_protocol::message::{ErrorCode, MakeDir, Move, Remove, SetAttributes};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::conn::Conn;
use super::identity::Identity;
use super::{absolute, copy};
use crate::call::Ended;
use crate::failure::{Doing, Failure, Result};

const DIRECTORY_MODE: u32 = 0o755;
const MODE_BITS: u32 = 0o7777;

pub fn make_dir(conn: &mut Conn, request: &MakeDir) -> std::result::Result<(), Ended> {
    let path = absolute(&request.path)?;
    let mode = request.mode.map(checked_mode).transpose()?;
    if request.parents {
        make_parents(path)?;
    }
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Ok(()) => {
            // Set apart from making it: the mask of file modes must not take bits away.
            if let Some(mode) = mode {
                std::fs::set_permissions(path, Permissions::from_mode(mode))
                    .doing(&request.path)?;
            }
        }
        Err(error)
            if request.parents && error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
        }
        Err(error) => return Err(Failure::io(&request.path, &error).into()),
    }
    conn.done(0, 0)
}

/// Makes the directories above `path` that are missing.
pub fn make_parents(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) => DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(parent)
            .doing(&parent.display().to_string()),
        None => Ok(()),
    }
}

pub fn checked_mode(mode: u32) -> Result<u32> {
    if mode & !MODE_BITS != 0 {
        return Err(Failure::invalid(format!("{mode:o} is not a file mode")));
    }
    Ok(mode)
}

pub fn rename(conn: &mut Conn, request: &Move) -> std::result::Result<(), Ended> {
    let (from, to) = (absolute(&request.from)?, absolute(&request.to)?);
    let flags = if request.replace {
        RenameFlags::empty()
    } else {
        RenameFlags::NOREPLACE
    };
    let what = format!("{} to {}", request.from, request.to);
    match rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags) {
        Ok(()) => {}
        // Another file system, or a directory that an image layer below still holds.
        Err(Errno::XDEV) => copy::move_by_copy(from, to, request.replace)?,
        Err(errno) => return Err(Failure::io(&what, &errno.into()).into()),
    }
    conn.done(0, 0)
}

pub fn remove(conn: &mut Conn, request: &Remove) -> std::result::Result<(), Ended> {
    let path = absolute(&request.path)?;
    if path.file_name().is_none() {
        return Err(Failure::invalid(format!("{} cannot be removed", request.path)).into());
    }
    let metadata = std::fs::symlink_metadata(path).doing(&request.path)?;
    match (metadata.is_dir(), request.recursive) {
        (false, _) => std::fs::remove_file(path),
        (true, false) => std::fs::remove_dir(path),
        // Goes down by directory descriptors and never through a symlink.
        (true, true) => std::fs::remove_dir_all(path),
    }
    .doing(&request.path)?;
    conn.done(0, 0)
}

/// Acts on what the path leads to, as `chmod` and `chown` do.
pub fn set_attributes(
    conn: &mut Conn,
    who: &Identity,
    request: &SetAttributes,
) -> std::result::Result<(), Ended> {
    let path = absolute(&request.path)?;
    let mode = request.mode.map(checked_mode).transpose()?;
    let owner = match request.owner.as_str() {
        "" => None,
        owner => Some(who.databases.owner(owner)?),
    };
    if mode.is_none() && owner.is_none() {
        return Err(
            Failure::new(ErrorCode::Invalid, "neither a mode nor an owner is given").into(),
        );
    }
    // One descriptor for both, so that they meet the same file.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).doing(&request.path)?;
    if let Some((uid, gid)) = owner {
        rustix::fs::chownat(
            &file,
            "",
            uid.map(rustix::fs::Uid::from_raw),
            gid.map(rustix::fs::Gid::from_raw),
            rustix::fs::AtFlags::EMPTY_PATH,
        )
        .doing(&request.path)?;
    }
    if let Some(mode) = mode {
        // The kernel has no chmod by such a descriptor, but takes its name in /proc.
        use std::os::fd::AsRawFd;
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::set_permissions(name, Permissions::from_mode(mode)).doing(&request.path)?;
    }
    conn.done(0, 0)
}
