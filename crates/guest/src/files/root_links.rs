//! Paths on which root reads or writes for a caller, below directories that other users may control. A link there
//! would make root act on a file of the other user's choice, so only links that root alone can have placed are
//! followed: `/var/run`, or the bundle of certificates of an image.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

use cove_protocol::message::ErrorCode;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::open;
use crate::failure::{Doing, Failure, Result};

const DIRECTORY_MODE: u32 = 0o755;
/// As many as the kernel follows.
const LINKS_MAX: u32 = 40;
/// Components that may wait to be walked; links of links could make them many.
const COMPONENTS_MAX: usize = 4096;

/// A name in a directory. What was there when it was found is no link, and no further name of a file that somebody
/// else than root put there.
pub struct Place {
    pub directory: OwnedFd,
    pub name: OsString,
    /// Only root can change what lies in the directory.
    roots: bool,
    shown: String,
}

struct Walk {
    directory: OwnedFd,
    /// Every directory so far can be changed by root alone. Below one that others can change, root's own directories
    /// and links may have been moved, so nothing there counts as root's.
    roots: bool,
    left: VecDeque<OsString>,
    links: u32,
    shown: String,
}

impl Place {
    /// With `make`, directories that are missing are made.
    pub fn find(path: &Path, make: bool) -> Result<Self> {
        let shown = path.display().to_string();
        let directory = open_root().doing(&shown)?;
        let mut walk = Walk {
            roots: is_roots(&rustix::fs::fstat(&directory).doing(&shown)?),
            directory,
            left: VecDeque::new(),
            links: 0,
            shown,
        };
        walk.prepend(path)?;
        while let Some(name) = walk.left.pop_front() {
            let found = open::stat_at(&walk.directory, &name).doing(&walk.shown)?;
            let kind = found.map(|stat| FileType::from_raw_mode(stat.st_mode));
            match (kind, found) {
                (Some(FileType::Symlink), Some(stat)) => walk.follow(&name, &stat)?,
                (_, found) if walk.left.is_empty() => return walk.arrive(name, found.as_ref()),
                (None, _) if make => {
                    let mode = Mode::from_raw_mode(DIRECTORY_MODE);
                    match rustix::fs::mkdirat(&walk.directory, &name, mode) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno).doing(&walk.shown),
                    }
                    walk.enter(&name)?;
                }
                _ => walk.enter(&name)?,
            }
        }
        Err(is_a_directory(&walk.shown))
    }

    /// Opens the regular file that is there.
    pub fn read(self) -> Result<File> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, &self.name, flags, Mode::empty());
        let file = file.doing(&self.shown)?;
        let stat = rustix::fs::fstat(&file).doing(&self.shown)?;
        open::check_regular(&stat, &self.shown)?;
        check_names(&stat, self.roots, &self.shown)?;
        Ok(file.into())
    }
}

impl Walk {
    fn prepend(&mut self, path: &Path) -> Result<()> {
        for component in path.components().rev() {
            match component {
                Component::Normal(name) => self.left.push_front(name.to_owned()),
                Component::ParentDir => self.left.push_front("..".into()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        match self.left.len() {
            0..=COMPONENTS_MAX => Ok(()),
            _ => Err(Failure::invalid(format!("{} is too deep", self.shown))),
        }
    }

    fn enter(&mut self, name: &OsStr) -> Result<()> {
        // The parent of a directory that was moved is anywhere.
        if name == ".." && !self.roots {
            return Err(self.refused(".. is not followed"));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.directory =
            rustix::fs::openat(&self.directory, name, flags, Mode::empty()).doing(&self.shown)?;
        let stat = rustix::fs::fstat(&self.directory).doing(&self.shown)?;
        self.roots &= is_roots(&stat);
        Ok(())
    }

    fn follow(&mut self, name: &OsStr, link: &Stat) -> Result<()> {
        if !self.roots || link.st_uid != 0 {
            return Err(self.refused("a link on it is not followed"));
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP).doing(&self.shown);
        }
        let target =
            rustix::fs::readlinkat(&self.directory, name, Vec::new()).doing(&self.shown)?;
        let target = OsString::from_vec(target.into_bytes());
        let target = Path::new(&target);
        if target.is_absolute() {
            self.directory = open_root().doing(&self.shown)?;
            self.roots = is_roots(&rustix::fs::fstat(&self.directory).doing(&self.shown)?);
        }
        self.prepend(target)
    }

    fn arrive(self, name: OsString, found: Option<&Stat>) -> Result<Place> {
        if name == ".." {
            return Err(is_a_directory(&self.shown));
        }
        if let Some(stat) = found {
            open::check_regular(stat, &self.shown)?;
            check_names(stat, self.roots, &self.shown)?;
        }
        Ok(Place {
            directory: self.directory,
            name,
            roots: self.roots,
            shown: self.shown,
        })
    }

    fn refused(&self, why: &str) -> Failure {
        refused(&self.shown, why)
    }
}

fn refused(shown: &str, why: &str) -> Failure {
    Failure::new(
        ErrorCode::PermissionDenied,
        format!("{shown}: {why}: users other than root can write to a directory of this path"),
    )
}

fn is_a_directory(shown: &str) -> Failure {
    Failure::new(ErrorCode::IsADirectory, format!("{shown} is a directory"))
}

fn open_root() -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/", flags, Mode::empty())
}

/// Nobody else can put names there. A list of further rights shows as rights of the group.
fn is_roots(stat: &Stat) -> bool {
    stat.st_uid == 0 && stat.st_mode & 0o022 == 0
}

/// A further name leads to another file as a link does.
fn check_names(stat: &Stat, roots: bool, shown: &str) -> Result<()> {
    match stat.st_nlink {
        2.. if !roots => Err(refused(shown, "a file with several names is not used")),
        _ => Ok(()),
    }
}
