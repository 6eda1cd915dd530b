//! Requests about one path.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, symlink as make_symlink};
use std::path::{Path, PathBuf};

use super::attributes::{Attributes, Change};
use super::names::Entry;
use super::wire::{Body, Status};
use super::{Answer, Refusal, done};

const READ: u32 = 1;
const WRITE: u32 = 2;
const APPEND: u32 = 4;
const CREATE: u32 = 8;
const TRUNCATE: u32 = 16;
const EXCLUSIVE: u32 = 32;
const NEW_FILE: u32 = 0o666;
const NEW_DIRECTORY: u32 = 0o777;
/// A pipe without a peer or a terminal must not hold the session up.
const CAREFULLY: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;

pub fn open(body: &mut Body<'_>) -> Result<File, Refusal> {
    let path = body.path()?;
    let flags = body.needed_number()?;
    let change = Change::read(body)?;
    let has = |flag: u32| flags & flag != 0;
    let mut options = OpenOptions::new();
    options
        .read(has(READ))
        .mode(change.mode().unwrap_or(NEW_FILE))
        .custom_flags(CAREFULLY);
    match has(APPEND) {
        true => options.append(true),
        false => options.write(has(WRITE)),
    };
    options.truncate(has(TRUNCATE));
    if has(CREATE) {
        match has(EXCLUSIVE) {
            true => options.create_new(true),
            false => options.create(true),
        };
    }
    Ok(options.open(path)?)
}

/// For writing, and nothing else happens to it.
pub fn open_existing(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(CAREFULLY)
        .open(path)
}

/// As much as there is, up to the length of `data`.
pub fn read_at(file: &File, data: &mut [u8], offset: u64) -> Result<usize, Refusal> {
    let mut have = 0;
    while have < data.len() {
        match file.read_at(&mut data[have..], offset.saturating_add(have as u64)) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if have > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(have)
}

pub fn stat(body: &mut Body<'_>, follow: bool) -> Result<Answer, Refusal> {
    let path = body.path()?;
    let metadata = match follow {
        true => fs::metadata(path)?,
        false => fs::symlink_metadata(path)?,
    };
    Ok(Answer::Attributes((&metadata).into()))
}

pub fn set_stat(body: &mut Body<'_>, follow: bool) -> Result<Answer, Refusal> {
    let path = body.path()?;
    Change::read(body)?.apply(&path, follow)?;
    Ok(done())
}

pub fn remove(body: &mut Body<'_>) -> Result<Answer, Refusal> {
    fs::remove_file(body.path()?)?;
    Ok(done())
}

pub fn make_directory(body: &mut Body<'_>) -> Result<Answer, Refusal> {
    let path = body.path()?;
    let mode = Change::read(body)?.mode().unwrap_or(NEW_DIRECTORY);
    DirBuilder::new().mode(mode).create(path)?;
    Ok(done())
}

pub fn remove_directory(body: &mut Body<'_>) -> Result<Answer, Refusal> {
    fs::remove_dir(body.path()?)?;
    Ok(done())
}

/// Version 3 renames to a name that is free; what replaces is an extension.
pub fn rename(body: &mut Body<'_>) -> Result<Answer, Refusal> {
    let (from, to) = (body.path()?, body.path()?);
    if fs::symlink_metadata(&to).is_ok() {
        return Err(Refusal::Status(Status::Failure, "the new name is taken"));
    }
    fs::rename(from, to)?;
    Ok(done())
}

pub fn read_link(body: &mut Body<'_>) -> Result<Answer, Refusal> {
    let target = fs::read_link(body.path()?)?;
    Ok(one_name(&target))
}

/// OpenSSH sends the target first, against the draft, and so does everybody by now.
pub fn symlink(body: &mut Body<'_>) -> Result<Answer, Refusal> {
    let (target, link) = (body.path()?, body.path()?);
    make_symlink(target, link)?;
    Ok(done())
}

pub fn real_path(body: &mut Body<'_>) -> Result<Answer, Refusal> {
    Ok(one_name(&resolved(&body.path()?)?))
}

/// Without links and dots; the last part need not exist.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let missing = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => error,
        outcome => return outcome,
    };
    let Some(name) = path.file_name() else {
        return Err(missing);
    };
    let above = match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    Ok(fs::canonicalize(above)?.join(name))
}

pub fn one_name(path: &Path) -> Answer {
    let name = path.as_os_str().as_bytes().to_vec();
    Answer::Names(vec![Entry {
        long: name.clone(),
        name,
        attributes: Attributes::default(),
    }])
}
