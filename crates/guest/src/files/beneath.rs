//! Directories below a root that a path never leads out of, whatever links are planted on it.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::failure::{Doing, Failure, Result};

const DIRECTORY_MODE: u32 = 0o755;
/// How often a path is resolved anew; each takes microseconds, and few in a row are disturbed.
const RESOLVE_TRIES: u32 = 10_000;

pub struct Root {
    directory: OwnedFd,
    resolve: ResolveFlags,
    /// The directory used last: archives name the files of one directory in a row.
    last: Option<(PathBuf, OwnedFd)>,
}

impl Root {
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let shown = path.display().to_string();
        let directory = rustix::fs::open(path, flags, Mode::empty()).doing(&shown)?;
        // On the real root absolute links lead where they say; below any other directory they
        // lead out and are refused.
        let resolve = match path.parent() {
            None => ResolveFlags::IN_ROOT,
            Some(_) => ResolveFlags::BENEATH,
        };
        Ok(Self {
            directory,
            resolve: resolve | ResolveFlags::NO_MAGICLINKS,
            last: None,
        })
    }

    /// The directory at `path`, made with its parents if missing.
    pub fn directory(&mut self, path: &Path) -> Result<&OwnedFd> {
        let known = self.last.as_ref().is_some_and(|(last, _)| last == path);
        if !known {
            let opened = self.open_or_make(path)?;
            self.last = Some((path.to_owned(), opened));
        }
        let (_, directory) = self.last.as_ref().expect("set above when it was not");
        Ok(directory)
    }

    /// Forgets the directory used last, because its path may now mean another.
    pub fn changed(&mut self) {
        self.last = None;
    }

    fn open_or_make(&self, path: &Path) -> Result<OwnedFd> {
        let shown = path.display().to_string();
        match self.resolve(path) {
            Err(Errno::NOENT) => {}
            Err(Errno::XDEV | Errno::LOOP) => {
                return Err(Failure::new(
                    cove_protocol::message::ErrorCode::PermissionDenied,
                    format!("{shown} points outside the target directory"),
                ));
            }
            found => return found.doing(&shown),
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Failure::invalid(format!("{shown} is not a directory")));
        };
        // As deep as the path has components, which its length bounds.
        let parent = self.open_or_make(parent)?;
        make(&parent, name).doing(&shown)?;
        self.resolve(path).doing(&shown)
    }

    fn resolve(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let mut tries = 0;
        loop {
            match rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), self.resolve) {
                Err(Errno::NOSYS) => return self.resolve_without_links(path),
                // Something was renamed or mounted, anywhere on the host, while a `..` was followed.
                Err(Errno::AGAIN) if tries < RESOLVE_TRIES => tries += 1,
                found => return found,
            }
        }
    }

    /// For kernels without `openat2`: one component at a time, and no link is followed at all.
    fn resolve_without_links(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut directory = rustix::fs::openat(&self.directory, ".", flags, Mode::empty())?;
        for component in path.components() {
            match component {
                Component::Normal(name) => {
                    directory = rustix::fs::openat(&directory, name, flags, Mode::empty())?;
                }
                Component::CurDir => {}
                _ => return Err(Errno::XDEV),
            }
        }
        Ok(directory)
    }
}

fn make(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
        // Another made it meanwhile, or a dangling link is there: opening it again tells.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A path from an archive as one below the root: leading slashes and dots go, and one that climbs
/// is refused.
pub fn relative(path: &Path) -> Result<PathBuf> {
    let mut relative = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => relative.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Failure::invalid(format!(
                    "the archive names {}, which climbs out of the target",
                    path.display()
                )));
            }
        }
    }
    Ok(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_paths_stay_below() {
        let plain = |path: &str| relative(Path::new(path)).map(|path| path.display().to_string());
        assert_eq!(plain("/etc/passwd").unwrap(), "etc/passwd");
        assert_eq!(plain("./a/./b/").unwrap(), "a/b");
        assert!(plain("a/../../b").is_err());
        assert!(plain("..").is_err());
    }

    #[test]
    fn renames_elsewhere_do_not_disturb() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("../a/b", directory.path().join("a/up")).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let (one, other) = (elsewhere.path().join("1"), elsewhere.path().join("2"));
        std::fs::write(&one, "").unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::fs::rename(&one, &other).unwrap();
                    std::fs::rename(&other, &one).unwrap();
                }
            });
            let root = Root::open(directory.path()).unwrap();
            let disturbed = (0..5000).find_map(|_| root.resolve(Path::new("a/up")).err());
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(disturbed, None);
        });
    }

    #[test]
    fn without_openat2_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", directory.path().join("link")).unwrap();
        let root = Root::open(directory.path()).unwrap();
        assert!(root.resolve_without_links(Path::new("real")).is_ok());
        assert!(root.resolve_without_links(Path::new("link")).is_err());
        assert!(root.resolve_without_links(Path::new("..")).is_err());
        assert!(root.resolve(Path::new("link")).is_ok());
        assert!(root.resolve(Path::new("..")).is_err());
    }
}
