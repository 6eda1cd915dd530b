//! Writes entries below a root directory that is also the process's own root.
//!
//! Where an entry's parent goes through a symbolic link (`lib/x` where `lib` links to `usr/lib`),
//! the link is followed as if the target directory were the root of the system, because layers
//! of real images rely on it; the kernel does that resolution (openat2, `RESOLVE_IN_ROOT`), so
//! neither `..` nor an absolute link leaves the root. The last component is never followed: what
//! is there is replaced, so no write goes through a link, symbolic or hard.

mod metadata;
mod path;
mod whiteout;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::archive::{Archive, Entry, Kind, Time};
use crate::limits::{Content, UnpackLimits};
use crate::report::{Failure, Warning, show};
pub use path::EntryPath;
use whiteout::Seen;

const COPY_BUFFER_BYTES: usize = 1 << 20;
const MAX_ID: u64 = 65_535;
const NOBODY: u64 = 65_534;
const SET_ID_BITS: u32 = 0o6000;
const PARENT_MODE: u32 = 0o755;
/// How often a path is resolved anew; each takes microseconds, and few in a row are disturbed.
const RESOLVE_TRIES: u32 = 10_000;

pub struct Target<'a> {
    root: OwnedFd,
    limits: UnpackLimits,
    /// The parent directory of the entry before; archives list a directory's files together.
    parent: Option<(Vec<u8>, Rc<OwnedFd>)>,
    /// Times of directories, set at the end because every file made inside changes them.
    directories: Vec<(Vec<u8>, Time)>,
    /// What this layer itself brought, so that its whiteouts only hit what lay below.
    seen: Option<Seen>,
    buffer: Vec<u8>,
    warn: &'a mut dyn FnMut(Warning),
}

impl<'a> Target<'a> {
    pub fn new(
        root: OwnedFd,
        limits: UnpackLimits,
        content: Content,
        warn: &'a mut dyn FnMut(Warning),
    ) -> Self {
        Self {
            root,
            limits,
            parent: None,
            directories: Vec::new(),
            seen: (content == Content::Layer).then(Seen::default),
            buffer: vec![0; COPY_BUFFER_BYTES],
            warn,
        }
    }

    /// Unpacks everything, calling `progress` after each entry.
    pub fn unpack(
        &mut self,
        archive: &mut Archive,
        progress: &mut dyn FnMut(&Archive),
    ) -> Result<(), Failure> {
        while let Some(entry) = archive.next(self.warn)? {
            self.entry(archive, entry)?;
            progress(archive);
        }
        if archive.drain()? {
            (self.warn)(Warning::TrailingData);
        }
        self.finish_directories()
    }

    fn entry(&mut self, archive: &mut Archive, mut entry: Entry) -> Result<(), Failure> {
        let path = EntryPath::parse(&entry.path, &self.limits)?;
        self.bring_into_range(&mut entry);
        let Some(name) = path.name() else {
            return self.root_entry(entry);
        };
        if self.seen.is_some() && name.starts_with(whiteout::PREFIX) {
            return self.whiteout(&path);
        }
        if entry.kind == Kind::Special {
            (self.warn)(Warning::SpecialFileSkipped {
                path: show(&entry.path),
            });
            return Ok(());
        }
        let parent = self.parent(&path)?;
        match entry.kind {
            Kind::File => self.file(archive, &parent, name, &entry)?,
            Kind::Directory => self.directory(&parent, name, &path, &entry)?,
            Kind::Symlink => self.symlink(&parent, name, &entry)?,
            Kind::HardLink => self.hard_link(&parent, name, &path, &entry)?,
            Kind::Special => unreachable!("special files were left out above"),
        }
        if let Some(seen) = &mut self.seen {
            seen.add(&path);
        }
        Ok(())
    }

    /// An owner that does not exist in a sandbox, as programs unpacked on another system leave in images,
    /// becomes nobody. Whoever runs such a file must not become nobody with it.
    fn bring_into_range(&mut self, entry: &mut Entry) {
        for id in [entry.uid, entry.gid] {
            if id > MAX_ID {
                (self.warn)(Warning::OwnerReplaced {
                    path: show(&entry.path),
                    id,
                });
                entry.mode &= !SET_ID_BITS;
            }
        }
        for id in [&mut entry.uid, &mut entry.gid] {
            if *id > MAX_ID {
                *id = NOBODY;
            }
        }
    }

    /// The archive may name the root itself, for its owner, mode and time.
    fn root_entry(&mut self, entry: Entry) -> Result<(), Failure> {
        if entry.kind != Kind::Directory {
            return Err(Failure::UnsafePath {
                path: show(&entry.path),
            });
        }
        let root = open_directory(self.root.as_fd(), b".", &entry.path)?;
        self.apply_to_file(root.as_fd(), &entry)?;
        self.directories.push((b".".to_vec(), entry.mtime));
        Ok(())
    }

    fn file(
        &mut self,
        archive: &mut Archive,
        parent: &OwnedFd,
        name: &[u8],
        entry: &Entry,
    ) -> Result<(), Failure> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        let file = self.replacing(parent, name, entry, "creating", || {
            rustix::fs::openat(parent, name, flags, mode)
        })?;
        match &entry.sparse {
            None => self.copy_segment(archive, &file, 0, entry.size, entry)?,
            Some(map) => {
                for segment in map {
                    self.copy_segment(archive, &file, segment.offset, segment.length, entry)?;
                }
                rustix::fs::ftruncate(&file, entry.size)
                    .map_err(|e| failed("sizing", &entry.path, e))?;
            }
        }
        self.apply_to_file(file.as_fd(), entry)?;
        metadata::set_times(file.as_fd(), entry.mtime).map_err(|e| failed("dating", &entry.path, e))
    }

    fn copy_segment(
        &mut self,
        archive: &mut Archive,
        file: &OwnedFd,
        offset: u64,
        length: u64,
        entry: &Entry,
    ) -> Result<(), Failure> {
        let mut position = offset;
        let end = offset.checked_add(length).ok_or(Failure::Truncated)?;
        while position < end {
            let want = self
                .buffer
                .len()
                .min(usize::try_from(end - position).unwrap_or(usize::MAX));
            let count = archive.read_body(&mut self.buffer[..want])?;
            if count == 0 {
                return Err(Failure::Truncated);
            }
            let mut rest = &self.buffer[..count];
            while !rest.is_empty() {
                let written = rustix::io::pwrite(file, rest, position)
                    .map_err(|e| failed("writing", &entry.path, e))?;
                rest = &rest[written..];
                position += written as u64;
            }
        }
        Ok(())
    }

    fn directory(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        path: &EntryPath,
        entry: &Entry,
    ) -> Result<(), Failure> {
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        match rustix::fs::mkdirat(parent, name, mode) {
            Err(Errno::EXIST) if is_directory(parent, name) => {}
            Err(Errno::EXIST) => {
                self.remove(parent, name, &entry.path)?;
                rustix::fs::mkdirat(parent, name, mode)
                    .map_err(|e| failed("creating", &entry.path, e))?;
            }
            result => result.map_err(|e| failed("creating", &entry.path, e))?,
        }
        let directory = open_directory(parent.as_fd(), name, &entry.path)?;
        self.apply_to_file(directory.as_fd(), entry)?;
        self.directories.push((path.joined().to_vec(), entry.mtime));
        Ok(())
    }

    fn symlink(&mut self, parent: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), Failure> {
        if entry.link.is_empty() || entry.link.contains(&0) {
            return Err(Failure::UnsafeLink {
                path: show(&entry.path),
                target: show(&entry.link),
            });
        }
        self.replacing(parent, name, entry, "linking", || {
            rustix::fs::symlinkat(&entry.link[..], parent, name)
        })?;
        if entry.uid != 0 || entry.gid != 0 {
            metadata::chown_link(parent.as_fd(), name, entry)
                .map_err(|e| failed("changing the owner", &entry.path, e))?;
        }
        for (attribute, _) in &entry.xattrs {
            (self.warn)(Warning::XattrSkipped {
                path: show(&entry.path),
                name: show(attribute),
            });
        }
        metadata::set_link_times(parent.as_fd(), name, entry.mtime)
            .map_err(|e| failed("dating", &entry.path, e))
    }

    fn hard_link(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        path: &EntryPath,
        entry: &Entry,
    ) -> Result<(), Failure> {
        let unsafe_link = || Failure::UnsafeLink {
            path: show(&entry.path),
            target: show(&entry.link),
        };
        let missing = || Failure::LinkTargetMissing {
            path: show(&entry.path),
            target: show(&entry.link),
        };
        let target = EntryPath::parse(&entry.link, &self.limits).map_err(|_| unsafe_link())?;
        let target_name = target.name().ok_or_else(unsafe_link)?;
        if target.joined() == path.joined() {
            return Ok(());
        }
        let target_parent = match self.open_parent(target.parent()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(missing()),
            Err(error) => return Err(failed("opening", &entry.link, error)),
        };
        let stat =
            |fd: &OwnedFd, name: &[u8]| rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW);
        let source = match stat(&target_parent, target_name) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(unsafe_link());
            }
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Err(missing()),
            Err(error) => return Err(failed("reading", &entry.link, error)),
        };
        if let Ok(there) = stat(parent, name)
            && there.st_ino == source.st_ino
        {
            return Ok(());
        }
        // No flag, so a link to a symbolic link is a link to the link itself.
        self.replacing(parent, name, entry, "linking", || {
            rustix::fs::linkat(&target_parent, target_name, parent, name, AtFlags::empty())
        })
    }

    /// Runs `make`, and once more after removing what stood in its way.
    fn replacing<T>(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        entry: &Entry,
        operation: &str,
        make: impl Fn() -> rustix::io::Result<T>,
    ) -> Result<T, Failure> {
        match make() {
            Err(Errno::EXIST) => {
                self.remove(parent, name, &entry.path)?;
                make().map_err(|e| failed(operation, &entry.path, e))
            }
            result => result.map_err(|e| failed(operation, &entry.path, e)),
        }
    }

    fn remove(&mut self, parent: &OwnedFd, name: &[u8], path: &[u8]) -> Result<(), Failure> {
        // The directory kept open may be among what goes.
        self.parent = None;
        whiteout::remove_all(parent.as_fd(), name).map_err(|e| failed("removing", path, e))
    }

    /// The directory an entry goes into, made where missing.
    fn parent(&mut self, path: &EntryPath) -> Result<Rc<OwnedFd>, Failure> {
        if let Some((known, fd)) = &self.parent
            && known == path.parent()
        {
            return Ok(Rc::clone(fd));
        }
        let fd = match self.open_parent(path.parent()) {
            Err(Errno::NOENT) => self.make_parents(path)?,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(not_a_directory(path)),
            result => result.map_err(|e| failed("opening", path.parent(), e))?,
        };
        let fd = Rc::new(fd);
        self.parent = Some((path.parent().to_vec(), Rc::clone(&fd)));
        Ok(fd)
    }

    fn open_parent(&self, joined: &[u8]) -> rustix::io::Result<OwnedFd> {
        let joined = if joined.is_empty() { b"." } else { joined };
        self.open_below(joined, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)
    }

    /// Resolves a path as if the target were the root of the system.
    fn open_below(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let mut tries = 0;
        loop {
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
                // Something was renamed or mounted, anywhere on the host, while a `..` was followed.
                Err(Errno::AGAIN) if tries < RESOLVE_TRIES => tries += 1,
                opened => return opened,
            }
        }
    }

    fn make_parents(&self, path: &EntryPath) -> Result<OwnedFd, Failure> {
        let mut deepest = self
            .open_parent(b"")
            .map_err(|e| failed("opening", b".", e))?;
        for prefix in path.parent_prefixes() {
            deepest = match self.open_parent(prefix) {
                Err(Errno::NOENT) => {
                    let name = prefix.rsplit(|byte| *byte == b'/').next().unwrap_or(prefix);
                    match rustix::fs::mkdirat(&deepest, name, Mode::from_raw_mode(PARENT_MODE)) {
                        // Something is there that cannot be opened: a link that leads nowhere.
                        Err(Errno::EXIST) => return Err(not_a_directory(path)),
                        result => result.map_err(|e| failed("creating", prefix, e))?,
                    }
                    self.open_parent(prefix)
                        .map_err(|e| failed("opening", prefix, e))?
                }
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(not_a_directory(path)),
                result => result.map_err(|e| failed("opening", prefix, e))?,
            };
        }
        Ok(deepest)
    }

    fn finish_directories(&mut self) -> Result<(), Failure> {
        for (path, time) in std::mem::take(&mut self.directories).into_iter().rev() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match self.open_below(&path, flags) {
                Ok(fd) => {
                    metadata::set_times(fd.as_fd(), time).map_err(|e| failed("dating", &path, e))?
                }
                // A later entry may have put something else in its place.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(failed("opening", &path, error)),
            }
        }
        Ok(())
    }
}

fn is_directory(parent: &OwnedFd, name: &[u8]) -> bool {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn open_directory(parent: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<OwnedFd, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|e| failed("opening", path, e))
}

fn not_a_directory(path: &EntryPath) -> Failure {
    Failure::NotADirectory {
        path: show(path.joined()),
    }
}

fn failed(operation: &str, path: &[u8], error: Errno) -> Failure {
    match error {
        Errno::NOSPC | Errno::DQUOT => Failure::DiskFull,
        error => Failure::Io {
            operation: operation.to_owned(),
            path: show(path),
            reason: error.to_string(),
        },
    }
}
