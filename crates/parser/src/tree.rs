//! A file tree as a tar stream: owners, modes, times to the nanosecond, links of both kinds, holes of
//! sparse files, extended attributes with file capabilities and access lists.
//!
//! The process's root directory is the tree's. It stands still, or it is a living directory of which what
//! changes in the middle is packed as it was found. Every name is resolved from the
//! directory that holds it, following nothing; only directories and plain files are ever opened.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use crate::order::{Ending, Failed};
use header::{Entry, LinkTarget, Segment, Xattr};

mod header;

/// Bytes written at once.
const BUFFER_BYTES: usize = 256 << 10;
/// Directories below one another. Each is open while its entries are packed, and what unpacks the archive
/// takes far fewer.
const DEPTH_MAX: usize = 900;
/// Data segments kept apart in one sparse file; beyond them holes are written as zeros.
const SEGMENTS_MAX: usize = 64 << 10;
/// Attributes of one file, as the kernel bounds them.
const XATTR_BYTES_MAX: usize = 64 << 10;
const BLOCK: u64 = 512;

/// What tells a file with several names again. Inode numbers alone can be those of two layers.
#[derive(PartialEq, Eq, Hash)]
struct Identity {
    inode: u64,
    changed: (i64, i64),
    size: i64,
}

/// Why an entry is not in the archive.
enum Begun {
    /// It could not be looked at, and nothing of it was written.
    Not(Errno),
    Failed(Failed),
}

impl From<Failed> for Begun {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

struct Packer<W> {
    output: W,
    /// The first name of each file with several.
    linked: HashMap<Identity, Vec<u8>>,
    buffer: Vec<u8>,
    /// Whether others may change the tree; how often it was noticed.
    living: bool,
    changes: u64,
}

/// Packs a tree that others may change meanwhile. Fails in the end, with everything packed, if they did.
pub fn pack_living(root: BorrowedFd<'_>, output: impl Write) -> Result<(), Failed> {
    let output = BufWriter::with_capacity(BUFFER_BYTES, output);
    let (mut output, changes) = Packer::pack(root, true, output)?;
    output.flush()?;
    match changes {
        0 => Ok(()),
        changes => Err(Failed {
            ending: Ending::Changed,
            why: format!("{changes} files changed while they were packed"),
        }),
    }
}

pub fn pack(root: BorrowedFd<'_>, gzip: bool, output: impl Write) -> Result<(), Failed> {
    let output = BufWriter::with_capacity(BUFFER_BYTES, output);
    if !gzip {
        return Packer::pack(root, false, output)?
            .0
            .flush()
            .map_err(Failed::from);
    }
    let (packed, _) = Packer::pack(root, false, GzEncoder::new(output, Compression::fast()))?;
    packed.finish()?.flush()?;
    Ok(())
}

impl<W: Write> Packer<W> {
    fn pack(root: BorrowedFd<'_>, living: bool, output: W) -> Result<(W, u64), Failed> {
        let mut packer = Self {
            output,
            linked: HashMap::new(),
            buffer: vec![0; BUFFER_BYTES],
            living,
            changes: 0,
        };
        let directory = open(root, c".".to_bytes(), OFlags::DIRECTORY)?;
        packer.directory(&directory, b".", 0)?;
        // Two empty blocks end an archive.
        packer.output.write_all(&[0; 2 * BLOCK as usize])?;
        Ok((packer.output, packer.changes))
    }

    /// A directory and everything in it, by name.
    fn directory(&mut self, directory: &OwnedFd, path: &[u8], depth: usize) -> Result<(), Failed> {
        if depth > DEPTH_MAX {
            return Err(Failed::too_large("a directory lies too deep"));
        }
        let stat = rustix::fs::fstat(directory)?;
        let mut name = path.to_vec();
        name.push(b'/');
        let entry = Entry {
            xattrs: xattrs(directory.as_fd())?,
            ..Entry::new(name, tar::EntryType::Directory, &stat)
        };
        header::write(&entry, &mut self.output)?;
        for name in names(directory)? {
            let mut child = path.to_vec();
            child.push(b'/');
            child.extend_from_slice(&name);
            let begun = self.entry(directory.as_fd(), &name, child, depth);
            match begun {
                // Nothing of it is in the archive yet: headers are written once it is open.
                Err(Begun::Not(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) if self.living => {
                    self.changes += 1;
                }
                Err(Begun::Not(errno)) => return Err(errno.into()),
                Err(Begun::Failed(failed)) => return Err(failed),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        path: Vec<u8>,
        depth: usize,
    ) -> Result<(), Begun> {
        let stat =
            rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(Begun::Not)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            let directory = open(parent, name, OFlags::DIRECTORY).map_err(Begun::Not)?;
            return Ok(self.directory(&directory, &path, depth + 1)?);
        }
        if kind == FileType::Socket {
            return Ok(());
        }
        if stat.st_nlink > 1
            && let Some(first) = self.first_name(&stat, &path)
        {
            let entry = Entry {
                link: LinkTarget::Hard(first),
                ..Entry::new(path, tar::EntryType::Link, &stat)
            };
            return Ok(header::write(&entry, &mut self.output).map_err(Failed::from)?);
        }
        let plain = |entry_type| Entry::new(path.clone(), entry_type, &stat);
        let entry = match kind {
            FileType::RegularFile => {
                let file = open(parent, name, OFlags::NONBLOCK).map_err(Begun::Not)?;
                return Ok(self.file(file.into(), path)?);
            }
            FileType::Symlink => {
                let target =
                    rustix::fs::readlinkat(parent, name, Vec::new()).map_err(Begun::Not)?;
                Entry {
                    link: LinkTarget::Symbolic(target.into_bytes()),
                    ..plain(tar::EntryType::Symlink)
                }
            }
            FileType::Fifo => plain(tar::EntryType::Fifo),
            FileType::CharacterDevice => Entry {
                device: Some(stat.st_rdev),
                ..plain(tar::EntryType::Char)
            },
            FileType::BlockDevice => Entry {
                device: Some(stat.st_rdev),
                ..plain(tar::EntryType::Block)
            },
            _ => return Ok(()),
        };
        Ok(header::write(&entry, &mut self.output).map_err(Failed::from)?)
    }

    /// The name under which the file went into the archive before; else this one is kept.
    fn first_name(&mut self, stat: &Stat, path: &[u8]) -> Option<Vec<u8>> {
        let identity = Identity {
            inode: stat.st_ino,
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
            size: stat.st_size,
        };
        if let Some(first) = self.linked.get(&identity) {
            return Some(first.clone());
        }
        self.linked.insert(identity, path.to_vec());
        None
    }

    fn file(&mut self, mut file: File, path: Vec<u8>) -> Result<(), Failed> {
        let stat = &rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Failed::damaged("a file became something else"));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let has_holes = (stat.st_blocks as u64).saturating_mul(BLOCK) < size;
        let segments = match has_holes {
            true => Some(segments(&file, size)?),
            false => None,
        };
        let entry = Entry {
            xattrs: xattrs(file.as_fd())?,
            size,
            segments,
            ..Entry::new(path, tar::EntryType::Regular, stat)
        };
        header::write(&entry, &mut self.output)?;
        let whole = [Segment {
            offset: 0,
            length: size,
        }];
        let mut written = 0;
        for segment in entry.segments.as_deref().unwrap_or(&whole) {
            io::Seek::seek(&mut file, io::SeekFrom::Start(segment.offset))?;
            self.copy(&mut file, segment.length)?;
            written += segment.length;
        }
        let padding = written.next_multiple_of(BLOCK) - written;
        self.output
            .write_all(&[0; BLOCK as usize][..padding as usize])?;
        Ok(())
    }

    fn copy(&mut self, file: &mut File, mut length: u64) -> Result<(), Failed> {
        while length > 0 {
            let want = self
                .buffer
                .len()
                .min(usize::try_from(length).unwrap_or(usize::MAX));
            let count = file.read(&mut self.buffer[..want])?;
            if count == 0 && self.living {
                // Its header has a length, so zeros take the place of what was cut off.
                self.changes += 1;
                io::copy(&mut io::repeat(0).take(length), &mut self.output)?;
                return Ok(());
            }
            if count == 0 {
                return Err(Failed::damaged("a file ends before its size"));
            }
            self.output.write_all(&self.buffer[..count])?;
            length -= count as u64;
        }
        Ok(())
    }
}

fn open(parent: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let always = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags | always, Mode::empty())
}

/// All names in a directory, in order.
pub(crate) fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Failed> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Where a file holds data, the end of the file included so that its length is known.
fn segments(file: &File, size: u64) -> Result<Vec<Segment>, Failed> {
    let mut all: Vec<Segment> = Vec::new();
    let mut at = 0;
    while at < size {
        let from = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(from) => from.min(size),
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let to = match all.len() + 1 < SEGMENTS_MAX {
            true => rustix::fs::seek(file, SeekFrom::Hole(from))?.min(size),
            false => size,
        };
        if to > from {
            all.push(Segment {
                offset: from,
                length: to - from,
            });
        }
        at = to.max(at + 1);
    }
    // As GNU tar ends a map: a last segment of no length at the end of the file.
    if all
        .last()
        .is_none_or(|last| last.offset + last.length < size)
    {
        all.push(Segment {
            offset: size,
            length: 0,
        });
    }
    Ok(all)
}

/// Names and values of all attributes that can be read.
fn xattrs(file: BorrowedFd<'_>) -> Result<Vec<Xattr>, Failed> {
    let mut list = vec![0; XATTR_BYTES_MAX];
    let length = match rustix::fs::flistxattr(file, &mut list) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut all = Vec::new();
    let mut value = vec![0; XATTR_BYTES_MAX];
    for name in list[..length].split(|byte| *byte == 0) {
        if name.is_empty() {
            continue;
        }
        match rustix::fs::fgetxattr(file, name, &mut value) {
            Ok(length) => all.push((name.to_vec(), value[..length].to_vec())),
            // Gone, or shown to others only.
            Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    all.sort_unstable();
    Ok(all)
}
