//! A tree as a tar stream.

use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cove_protocol::frame::CHUNK;
use cove_protocol::message::ArchiveOut;
use tar::{Builder, EntryType, Header};

use super::absolute;
use super::conn::Conn;
use super::identity::{Identity, Names};
use crate::call::Ended;
use crate::failure::{Doing, Result};

pub fn serve(
    conn: &mut Conn,
    who: &Identity,
    request: &ArchiveOut,
) -> std::result::Result<(), Ended> {
    let path = absolute(&request.path)?;
    let metadata = std::fs::symlink_metadata(path).doing(&request.path)?;
    let outgoing = Outgoing {
        conn,
        buffer: Vec::new(),
        sent: 0,
        lost: false,
    };
    let mut packer = Packer {
        builder: Builder::new(outgoing),
        names: Names::new(who),
        entries: 0,
    };
    let packed = packer.tree(path, &metadata).and_then(|()| {
        packer.builder.finish().doing("the archive")?;
        packer.builder.get_mut().flush().doing("the archive")
    });
    let entries = packer.entries;
    let outgoing = packer.builder.get_mut();
    if outgoing.lost {
        return Err(Ended::Lost);
    }
    packed?;
    let sent = outgoing.sent;
    outgoing.conn.done(sent, entries)
}

/// Collects what the archive writer writes into large frames.
struct Outgoing<'a> {
    conn: &'a mut Conn,
    buffer: Vec<u8>,
    sent: u64,
    lost: bool,
}

impl Write for Outgoing<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.buffer.len() + data.len() > CHUNK {
            self.flush()?;
        }
        let count = data.len().min(CHUNK);
        self.buffer.extend_from_slice(&data[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.lost {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !self.buffer.is_empty() {
            if self.conn.data(&self.buffer).is_err() {
                self.lost = true;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.sent += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }
}

struct Packer<'a> {
    builder: Builder<Outgoing<'a>>,
    names: Names<'a>,
    entries: u64,
}

impl Packer<'_> {
    /// Names in the archive are relative to `root`; a file alone is known by its own name.
    fn tree(&mut self, root: &Path, metadata: &Metadata) -> Result<()> {
        if !metadata.is_dir() {
            let name = root.file_name().map_or_else(PathBuf::new, PathBuf::from);
            return self.entry(root, &name, metadata);
        }
        let mut pending = vec![(root.to_owned(), PathBuf::from("."))];
        while let Some((path, name)) = pending.pop() {
            let shown = path.display().to_string();
            // What vanished while the tree was walked is not part of it.
            let metadata = match std::fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.doing(&shown)?,
            };
            self.entry(&path, &name, &metadata)?;
            if metadata.is_dir() {
                let mut below = Vec::new();
                for entry in std::fs::read_dir(&path).doing(&shown)? {
                    let entry = entry.doing(&shown)?;
                    below.push((entry.path(), name.join(entry.file_name())));
                }
                below.sort();
                pending.extend(below.into_iter().rev());
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &Path, metadata: &Metadata) -> Result<()> {
        let shown = path.display().to_string();
        let kind = metadata.file_type();
        let mut header = self.header(metadata);
        if kind.is_file() {
            // Not a pipe that took its place meanwhile, nor a link.
            let file = File::options()
                .read(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(path)
                .doing(&shown)?;
            header.set_size(metadata.len());
            let contents = Exactly {
                file,
                left: metadata.len(),
            };
            self.builder
                .append_data(&mut header, name, contents)
                .doing(&shown)?;
        } else if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.builder
                .append_data(&mut header, name, io::empty())
                .doing(&shown)?;
        } else if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            let target = std::fs::read_link(path).doing(&shown)?;
            self.builder
                .append_link(&mut header, name, target)
                .doing(&shown)?;
        } else if kind.is_fifo() {
            header.set_entry_type(EntryType::Fifo);
            self.builder
                .append_data(&mut header, name, io::empty())
                .doing(&shown)?;
        } else {
            // Sockets and devices mean nothing in another place, as other archivers hold too.
            return Ok(());
        }
        self.entries += 1;
        Ok(())
    }

    fn header(&mut self, metadata: &Metadata) -> Header {
        let mut header = Header::new_gnu();
        header.set_mode(metadata.mode() & 0o7777);
        header.set_uid(metadata.uid().into());
        header.set_gid(metadata.gid().into());
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        header.set_size(0);
        // Names longer than the field are left out; the numbers say it all.
        let _ = header.set_username(&self.names.user(metadata.uid()));
        let _ = header.set_groupname(&self.names.group(metadata.gid()));
        header
    }
}

/// As many bytes as the header promised, though the file shrinks or grows meanwhile.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..room];
        let mut count = self.file.read(buffer)?;
        if count == 0 {
            buffer.fill(0);
            count = room;
        }
        self.left -= count as u64;
        Ok(count)
    }
}
