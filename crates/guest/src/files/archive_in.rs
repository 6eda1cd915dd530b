//! Unpacking a tar stream below a directory and nowhere else.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use cove_protocol::message::{ArchiveIn, ErrorCode};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use tar::EntryType;

use super::beneath::{Root, relative};
use super::conn::{Chunk, Conn};
use super::identity::Identity;
use super::{absolute, change, open};
use crate::call::Ended;
use crate::failure::{Doing, Failure, Result};

/// Entries of one archive.
const ENTRIES_MAX: u64 = 5_000_000;
/// Directories whose attributes wait for the end of the archive.
const DIRECTORIES_MAX: usize = 500_000;
/// Permissions everybody may give; set-user-id and its like only come with kept owners.
const PLAIN_MODE: u32 = 0o777;
const FULL_MODE: u32 = 0o7777;
/// Read past the end of the archive at most: writers pad to a multiple of their block size.
const TRAILING_MAX: u64 = 64 * 1024 * 1024;

pub fn serve(
    conn: &mut Conn,
    who: &Identity,
    request: &ArchiveIn,
) -> std::result::Result<(), Ended> {
    let path = absolute(&request.path)?;
    if request.keep_owner && !who.is_root() {
        return Err(Failure::new(
            ErrorCode::PermissionDenied,
            "only root can keep the owners of an archive",
        )
        .into());
    }
    change::make_parents(&path.join("."))?;
    if let Err(error) = std::fs::create_dir(path)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(Failure::io(&request.path, &error).into());
    }
    let mut unpacker = Unpacker {
        root: Root::open(path)?,
        keep_owner: request.keep_owner,
        directories: Vec::new(),
    };
    let mut input = Incoming {
        conn,
        pending: Vec::new(),
        at: 0,
        taken: 0,
        ended: false,
        lost: false,
    };
    let unpacked = unpacker.unpack(&mut input);
    if input.lost {
        return Err(Ended::Lost);
    }
    let entries = unpacked?;
    let taken = input.taken;
    conn.done(taken, entries)
}

/// The bytes of the `Input` frames.
struct Incoming<'a> {
    conn: &'a mut Conn,
    pending: Vec<u8>,
    at: usize,
    taken: u64,
    ended: bool,
    lost: bool,
}

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.pending.len() && !self.ended {
            match self.conn.next() {
                Ok(Chunk::Data(data)) => {
                    self.pending.clear();
                    self.pending.extend_from_slice(data);
                    self.at = 0;
                }
                Ok(Chunk::End) => self.ended = true,
                Err(_) => {
                    self.lost = true;
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
        let count = buffer.len().min(self.pending.len() - self.at);
        buffer[..count].copy_from_slice(&self.pending[self.at..self.at + count]);
        self.at += count;
        self.taken += count as u64;
        Ok(count)
    }
}

/// Tells what is wrong with the archive from what the kernel refuses: only the kernel's errors have
/// a number, all others are the reader's, about bytes that the caller sent.
trait Reading<T> {
    fn reading(self, what: &str) -> Result<T>;
}

impl<T> Reading<T> for io::Result<T> {
    fn reading(self, what: &str) -> Result<T> {
        self.map_err(|error| match error.raw_os_error() {
            Some(_) => Failure::io(what, &error),
            None => Failure::invalid(format!("not a whole tar archive: {what}: {error}")),
        })
    }
}

struct Unpacker {
    root: Root,
    keep_owner: bool,
    directories: Vec<(PathBuf, Attributes)>,
}

#[derive(Clone, Copy)]
struct Attributes {
    mode: u32,
    owner: Option<(u32, u32)>,
    modified: u64,
}

impl Unpacker {
    fn unpack(&mut self, input: &mut Incoming<'_>) -> Result<u64> {
        let mut count = 0;
        {
            let mut archive = tar::Archive::new(&mut *input);
            let entries = archive.entries().reading("the archive")?;
            for entry in entries {
                let mut entry = entry.reading("the archive")?;
                count += 1;
                if count > ENTRIES_MAX {
                    return Err(Failure::new(
                        ErrorCode::Limit,
                        format!("the archive has more than {ENTRIES_MAX} entries"),
                    ));
                }
                self.entry(&mut entry)?;
            }
        }
        for (path, attributes) in std::mem::take(&mut self.directories).iter().rev() {
            let shown = path.display().to_string();
            let directory = self.root.directory(path)?;
            let here = rustix::fs::openat(
                directory,
                ".",
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .doing(&shown)?;
            apply(&here, *attributes).doing(&shown)?;
        }
        io::copy(&mut input.take(TRAILING_MAX), &mut io::sink()).reading("the archive")?;
        if !input.ended {
            return Err(Failure::invalid("the archive goes on after its end"));
        }
        Ok(count)
    }

    fn entry(&mut self, entry: &mut tar::Entry<'_, impl Read>) -> Result<()> {
        let path = relative(&entry.path().reading("the archive")?)?;
        let shown = path.display().to_string();
        let attributes = self.attributes(entry).reading(&shown)?;
        let kind = entry.header().entry_type();
        if kind == EntryType::Directory {
            return self.directory(path, attributes);
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Failure::invalid(
                "the archive has something other than a directory as its root",
            ));
        };
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let directory = self.root.directory(parent)?;
                let file = create(directory, name).doing(&shown)?;
                let mut file = File::from(file);
                io::copy(entry, &mut file).reading(&shown)?;
                apply(&file.into(), attributes).doing(&shown)
            }
            EntryType::Symlink => {
                let target = link_name(entry)?;
                let directory = self.root.directory(parent)?;
                clear(directory, name).doing(&shown)?;
                rustix::fs::symlinkat(&target, directory, name).doing(&shown)?;
                let made = apply_to_link(directory, name, attributes).doing(&shown);
                self.root.changed();
                made
            }
            EntryType::Link => {
                let target = relative(&link_name(entry)?)?;
                self.hard_link(&target, parent, name, &shown)
            }
            EntryType::Fifo => {
                let directory = self.root.directory(parent)?;
                clear(directory, name).doing(&shown)?;
                let mode = Mode::from_raw_mode(attributes.mode);
                rustix::fs::mknodat(directory, name, FileType::Fifo, mode, 0).doing(&shown)?;
                apply_to_link(directory, name, attributes).doing(&shown)
            }
            // Headers that describe what follows; the reader has taken them in already.
            EntryType::XGlobalHeader => Ok(()),
            other => Err(Failure::new(
                ErrorCode::Unsupported,
                format!("{shown} is of a kind ({other:?}) that cannot be unpacked"),
            )),
        }
    }

    fn directory(&mut self, path: PathBuf, attributes: Attributes) -> Result<()> {
        self.root.directory(&path)?;
        if self.directories.len() == DIRECTORIES_MAX {
            return Err(Failure::new(
                ErrorCode::Limit,
                format!("the archive has more than {DIRECTORIES_MAX} directories"),
            ));
        }
        self.directories.push((path, attributes));
        Ok(())
    }

    fn hard_link(&mut self, target: &Path, parent: &Path, name: &OsStr, shown: &str) -> Result<()> {
        let (Some(target_parent), Some(target_name)) = (target.parent(), target.file_name()) else {
            return Err(Failure::invalid(format!("{shown} links to a directory")));
        };
        let source = self.root.directory(target_parent)?;
        let source = source.try_clone().doing(shown)?;
        let directory = self.root.directory(parent)?;
        clear(directory, name).doing(shown)?;
        rustix::fs::linkat(&source, target_name, directory, name, AtFlags::empty()).doing(shown)
    }

    fn attributes(&self, entry: &tar::Entry<'_, impl Read>) -> io::Result<Attributes> {
        let header = entry.header();
        let mask = if self.keep_owner {
            FULL_MODE
        } else {
            PLAIN_MODE
        };
        let id = |id: u64| u32::try_from(id).map_err(|_| io::ErrorKind::InvalidData);
        Ok(Attributes {
            mode: header.mode()? & mask,
            owner: match self.keep_owner {
                true => Some((id(header.uid()?)?, id(header.gid()?)?)),
                false => None,
            },
            modified: header.mtime()?,
        })
    }
}

fn link_name(entry: &tar::Entry<'_, impl Read>) -> Result<PathBuf> {
    entry
        .link_name()
        .reading("the archive")?
        .map(std::borrow::Cow::into_owned)
        .ok_or_else(|| Failure::invalid("the archive has a link without a target"))
}

/// Takes away what is at `name`, never a directory.
fn clear(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A new file in place of whatever has the name: an old one may be a link to somewhere else.
fn create(directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    if open::stat_at(directory, name)?.is_some() {
        clear(directory, name)?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
}

fn apply(file: &OwnedFd, attributes: Attributes) -> rustix::io::Result<()> {
    if let Some((uid, gid)) = attributes.owner {
        rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(attributes.mode))?;
    rustix::fs::futimens(file, &times(attributes))
}

fn apply_to_link(
    directory: &OwnedFd,
    name: &OsStr,
    attributes: Attributes,
) -> rustix::io::Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    if let Some((uid, gid)) = attributes.owner {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(directory, name, uid, gid, flags)?;
    }
    rustix::fs::utimensat(directory, name, &times(attributes), flags)
}

fn times(attributes: Attributes) -> Timestamps {
    let modified = Timespec {
        tv_sec: i64::try_from(attributes.modified).unwrap_or(0),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: modified,
        last_modification: modified,
    }
}
