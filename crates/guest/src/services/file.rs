//! Services on the sandbox's disk: a file for each, named after it, so that removing one needs no room.
//!
//! Root inside can change the files, so they are read with limits. What anybody else can change is not read: it would
//! be run with the rights that it asks for.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use cove_limits::{SERVICE_BYTES_MAX, SERVICE_NAME_MAX, SERVICES_MAX};
use cove_protocol::message::Service;
use prost::Message;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fstat, fsync, mkdirat, open, openat, renameat, unlinkat,
};

use super::calls;
use crate::process::start::ID_MAX;

/// In the directory of what the guest keeps.
const DIRECTORY: &str = "services";
/// No name of a service.
const UNFINISHED: &str = ".new";
/// Says which form the rest has.
const MAGIC: &[u8] = b"cove service 1\n";
const FILE_MAX: usize = SERVICE_BYTES_MAX + 1024;
/// Names looked at, so that a directory full of others ends.
const ENTRIES_MAX: usize = 8 * SERVICES_MAX;
/// Anybody but the owner may write.
const OTHERS_WRITE: u32 = 0o022;

#[derive(Clone, PartialEq, Message)]
struct Kept {
    #[prost(message, optional, tag = "1")]
    service: Option<Service>,
    /// Of its process.
    #[prost(string, tag = "2")]
    id: String,
}

pub fn is_name(name: &str) -> bool {
    (1..=SERVICE_NAME_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Refuses what somebody else than this process's user can change.
fn own(file: impl AsFd, kind: FileType) -> io::Result<u64> {
    let about = fstat(file)?;
    let is_own = about.st_uid == rustix::process::geteuid().as_raw()
        && about.st_mode & OTHERS_WRITE == 0
        && FileType::from_raw_mode(about.st_mode) == kind;
    match is_own {
        true => Ok(u64::try_from(about.st_size).unwrap_or(u64::MAX)),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn directory(kept: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let kept = open(kept, flags, Mode::empty())?;
    own(&kept, FileType::Directory)?;
    let directory = openat(&kept, DIRECTORY, flags, Mode::empty())?;
    own(&directory, FileType::Directory)?;
    Ok(directory)
}

fn make_directory(kept: &Path) -> io::Result<OwnedFd> {
    DirBuilder::new().recursive(true).mode(0o700).create(kept)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = open(kept, flags, Mode::empty())?;
    match mkdirat(&parent, DIRECTORY, Mode::RWXU) {
        Ok(()) => fsync(&parent)?,
        Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    directory(kept)
}

/// A service that is written but does not count yet.
pub struct Staged {
    directory: OwnedFd,
    committed: bool,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.committed {
            let _ = unlinkat(&self.directory, UNFINISHED, AtFlags::empty());
        }
    }
}

pub fn stage(kept: &Path, service: &Service, id: &str) -> io::Result<Staged> {
    let staged = Staged {
        directory: make_directory(kept)?,
        committed: false,
    };
    let _ = unlinkat(&staged.directory, UNFINISHED, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let mut file = File::from(openat(&staged.directory, UNFINISHED, flags, mode)?);
    let contents = Kept {
        service: Some(service.clone()),
        id: id.to_owned(),
    };
    file.write_all(&[MAGIC, &contents.encode_to_vec()].concat())?;
    file.sync_all()?;
    Ok(staged)
}

impl Staged {
    pub fn commit(mut self, name: &str) -> io::Result<()> {
        renameat(&self.directory, UNFINISHED, &self.directory, name)?;
        self.committed = true;
        let on_disk = fsync(&self.directory);
        if on_disk.is_err() {
            // Its caller hears that there is no such service.
            let _ = unlinkat(&self.directory, name, AtFlags::empty());
        }
        Ok(on_disk?)
    }
}

pub fn remove(kept: &Path, name: &str) -> io::Result<()> {
    let directory = match directory(kept) {
        Ok(directory) => directory,
        // Nothing that would be read at the next start.
        Err(_) => return Ok(()),
    };
    match unlinkat(&directory, name, AtFlags::empty()) {
        Ok(()) => Ok(fsync(&directory)?),
        // The same: no file.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::ISDIR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What is there and has its form, with the ids of their processes.
pub fn read(kept: &Path) -> Vec<(Service, String)> {
    let Ok(directory) = directory(kept) else {
        return Vec::new();
    };
    let mut names: Vec<String> = Dir::read_from(&directory)
        .into_iter()
        .flatten()
        .take(ENTRIES_MAX)
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str().ok()?.to_owned()))
        .filter(|name| is_name(name))
        .collect();
    names.sort();
    let found = names.iter().filter_map(|name| load(&directory, name));
    found.take(SERVICES_MAX).collect()
}

fn load(directory: &OwnedFd, name: &str) -> Option<(Service, String)> {
    // No link, and nothing that a reader would wait for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty()).ok()?;
    let length = own(&file, FileType::RegularFile).ok()?;
    if length > FILE_MAX as u64 {
        return None;
    }
    let mut contents = Vec::new();
    let mut file = File::from(file).take(FILE_MAX as u64);
    file.read_to_end(&mut contents).ok()?;
    let kept = Kept::decode(contents.strip_prefix(MAGIC)?).ok()?;
    let service = kept.service.filter(|service| service.name == name)?;
    calls::check(&service).ok()?;
    let fits = (1..=ID_MAX).contains(&kept.id.len());
    fits.then_some((service, kept.id))
}
