//! Writing a file: whole and at once where that can be done, in place where it was asked for or
//! nothing else is possible.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use cove_protocol::message::{ErrorCode, WriteFile};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::conn::{Chunk, Conn};
use super::identity::Identity;
use super::root_links::Place;
use super::{absolute, change, open};
use crate::call::Ended;
use crate::failure::{Doing, Failure, Result};

const FILE_MODE: u32 = 0o644;
/// Until it is complete, only its owner sees it.
const TEMPORARY_MODE: u32 = 0o600;

pub fn serve(
    conn: &mut Conn,
    who: &Identity,
    request: &WriteFile,
) -> std::result::Result<(), Ended> {
    let mut target = Target::open(who, request)?;
    let mut written = 0;
    while let Chunk::Data(data) = conn.next()? {
        target.file.write_all(data).doing(&request.path)?;
        written += data.len() as u64;
    }
    target.finish().doing(&request.path)?;
    conn.done(written, 0)
}

/// A name that no other writer of this guest has; creating it still insists on being first.
pub fn temporary_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let now = crate::state::unix_ms();
    format!(".cove-{}-{now:x}-{number:x}.tmp", std::process::id())
}

struct Target {
    file: File,
    directory: OwnedFd,
    name: OsString,
    /// Present while the new file has not taken its place.
    temporary: Option<OsString>,
    mode: Option<u32>,
    owner: (Option<u32>, Option<u32>),
    sync: bool,
    /// Never write into an existing file.
    replace_only: bool,
}

impl Target {
    fn open(who: &Identity, request: &WriteFile) -> Result<Self> {
        let shown = request.path.as_str();
        let path = absolute(shown)?;
        if request.append && request.at.is_some() {
            return Err(Failure::invalid("give either an offset or append"));
        }
        let mode = request.mode.map(change::checked_mode).transpose()?;
        let owner = match request.owner.as_str() {
            "" => (None, None),
            owner => who.databases.owner(owner)?,
        };
        let in_place = request.at.is_some() || request.append;
        if in_place && request.root_links_only {
            return Err(Failure::invalid(
                "with root_links_only a file can only be replaced",
            ));
        }
        let (directory, name) = match request.root_links_only {
            true => {
                let place = Place::find(path, request.parents)?;
                (place.directory, place.name)
            }
            false => {
                if request.parents {
                    change::make_parents(path)?;
                }
                directory_of(path, shown)?
            }
        };
        let name = name.as_os_str();
        let existing = open::stat_at(&directory, name).doing(shown)?;
        if let Some(stat) = &existing {
            open::check_regular(stat, shown)?;
        }
        let mut target = if in_place {
            Self::in_place(directory, name, request.append, shown)?
        } else {
            match Self::atomic(directory, name, existing.as_ref()).doing(shown)? {
                Ok(target) => target,
                // The existing file may have another name, which is not to be written to.
                Err(_) if request.root_links_only => {
                    return Err(Failure::new(
                        ErrorCode::PermissionDenied,
                        format!("{shown} cannot be replaced in its directory"),
                    ));
                }
                Err(directory) => {
                    let target = Self::in_place(directory, name, false, shown)?;
                    target.file.set_len(0).doing(shown)?;
                    target
                }
            }
        };
        open::refuse_own_memory(&target.file, who)?;
        if let Some(at) = request.at {
            target.file.seek(io::SeekFrom::Start(at)).doing(shown)?;
        }
        target.sync = request.sync;
        target.replace_only = request.root_links_only;
        target.mode = mode.or(target.mode);
        if owner != (None, None) {
            target.owner = owner;
        }
        Ok(target)
    }

    fn in_place(directory: OwnedFd, name: &OsStr, append: bool, shown: &str) -> Result<Self> {
        let mut flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        if append {
            flags |= OFlags::APPEND;
        }
        let mode = Mode::from_raw_mode(FILE_MODE);
        let file = rustix::fs::openat(&directory, name, flags, mode).doing(shown)?;
        let stat = rustix::fs::fstat(&file).doing(shown)?;
        open::check_regular(&stat, shown)?;
        Ok(Self {
            file: file.into(),
            directory,
            name: name.to_owned(),
            temporary: None,
            mode: None,
            owner: (None, None),
            sync: false,
            replace_only: false,
        })
    }

    /// A temporary file beside the target. Gives the directory back where only the existing file
    /// itself may be written: its directory is not the user's, or its owner could not be kept.
    fn atomic(
        directory: OwnedFd,
        name: &OsStr,
        existing: Option<&Stat>,
    ) -> rustix::io::Result<std::result::Result<Self, OwnedFd>> {
        if existing.is_some() {
            // A directory one may write to allows replacing files one may not write to.
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            match rustix::fs::openat(&directory, name, flags, Mode::empty()) {
                // A program that runs cannot be written to, but replaced.
                Ok(_) | Err(Errno::TXTBSY) => {}
                Err(errno) => return Err(errno),
            }
        }
        let temporary = OsString::from(temporary_name());
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(TEMPORARY_MODE);
        let file = match rustix::fs::openat(&directory, &temporary, flags, mode) {
            Ok(file) => file,
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) if existing.is_some() => {
                return Ok(Err(directory));
            }
            Err(errno) => return Err(errno),
        };
        let mut target = Self {
            file: file.into(),
            directory,
            name: name.to_owned(),
            temporary: Some(temporary),
            mode: Some(FILE_MODE),
            owner: (None, None),
            sync: false,
            replace_only: false,
        };
        if let Some(stat) = existing {
            target.mode = Some(stat.st_mode & 0o7777);
            match set_owner(&target.file, (Some(stat.st_uid), Some(stat.st_gid))) {
                Ok(()) => target.owner = (Some(stat.st_uid), Some(stat.st_gid)),
                Err(Errno::PERM) => {
                    let directory = target.directory.try_clone();
                    return Ok(Err(directory.map_err(|_| Errno::MFILE)?));
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(Ok(target))
    }

    fn finish(&mut self) -> io::Result<()> {
        set_owner(&self.file, self.owner)?;
        // After the owner: changing that clears the set-user-id bits.
        if let Some(mode) = self.mode {
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        if self.sync {
            self.file.sync_all()?;
        }
        if let Some(temporary) = &self.temporary {
            match rustix::fs::renameat(&self.directory, temporary, &self.directory, &self.name) {
                Ok(()) => self.temporary = None,
                // Something is mounted on the very file; its contents can still be replaced.
                Err(Errno::BUSY) if !self.replace_only => self.copy_over()?,
                Err(errno) => return Err(errno.into()),
            }
            if self.sync {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = rustix::fs::openat(&self.directory, ".", flags, Mode::empty())?;
                rustix::fs::fsync(directory)?;
            }
        }
        Ok(())
    }

    fn copy_over(&mut self) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty())?;
        let mut file = File::from(file);
        self.file.rewind()?;
        file.set_len(0)?;
        io::copy(&mut self.file, &mut file)?;
        if self.sync {
            file.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // Left behind only if the directory was taken away from under us.
            let _ = rustix::fs::unlinkat(&self.directory, temporary, AtFlags::empty());
        }
    }
}

fn set_owner(file: &File, (uid, gid): (Option<u32>, Option<u32>)) -> rustix::io::Result<()> {
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    let stat = rustix::fs::fstat(file)?;
    if uid.is_none_or(|uid| uid == stat.st_uid) && gid.is_none_or(|gid| gid == stat.st_gid) {
        return Ok(());
    }
    rustix::fs::fchown(file, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
}

fn directory_of(path: &Path, shown: &str) -> Result<(OwnedFd, OsString)> {
    let path = follow_link(path)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::new(
            ErrorCode::IsADirectory,
            format!("{shown} is a directory"),
        ));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, Mode::empty()).doing(shown)?;
    Ok((directory, name.to_owned()))
}

/// Where a symlink leads, so that what it points to is replaced and not the link.
fn follow_link(path: &Path) -> Result<PathBuf> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_symlink() => {
            std::fs::canonicalize(path).doing(&path.display().to_string())
        }
        _ => Ok(path.to_owned()),
    }
}
