//! Opening what callers name without being stopped or led astray by it.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use cove_protocol::message::ErrorCode;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};

use super::identity::Identity;
use crate::failure::{Doing, Failure, Result};

/// Opens a regular file for reading. Pipes, devices and sockets are refused before they block.
pub fn regular(path: &Path, who: &Identity) -> Result<(File, Stat)> {
    let shown = path.display().to_string();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Links of /proc/…/fd would open files of the guest itself.
    let opened = rustix::fs::openat2(
        rustix::fs::CWD,
        path,
        flags,
        Mode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    );
    let file = match opened {
        // An older or a stricter kernel interface: without the extra check.
        Err(rustix::io::Errno::NOSYS) => rustix::fs::open(path, flags, Mode::empty()),
        // A socket, which cannot be opened at all.
        Err(rustix::io::Errno::NXIO) => return Err(special(&shown)),
        opened => opened,
    }
    .doing(&shown)?;
    let stat = rustix::fs::fstat(&file).doing(&shown)?;
    check_regular(&stat, &shown)?;
    refuse_own_memory(&file, who)?;
    Ok((File::from(file), stat))
}

pub fn check_regular(stat: &Stat, shown: &str) -> Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Failure::new(
            ErrorCode::IsADirectory,
            format!("{shown} is a directory"),
        )),
        _ => Err(special(shown)),
    }
}

fn special(shown: &str) -> Failure {
    Failure::invalid(format!(
        "{shown} is not a regular file; run a command to read or write it"
    ))
}

/// The kernel lets every thread of a process at that process's own memory in /proc, whatever
/// rights the thread has left.
pub fn refuse_own_memory(file: impl AsFd, who: &Identity) -> Result<()> {
    if who.is_root() {
        return Ok(());
    }
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
    let own = format!("/proc/{}/", std::process::id());
    if link.is_ok_and(|path| path.starts_with(&own)) {
        return Err(Failure::new(
            ErrorCode::PermissionDenied,
            "the executable of the guest cannot be opened",
        ));
    }
    Ok(())
}

/// The type, size and owner of `name` in `directory`, links not followed; `None` if missing.
pub fn stat_at(directory: &OwnedFd, name: &std::ffi::OsStr) -> rustix::io::Result<Option<Stat>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
