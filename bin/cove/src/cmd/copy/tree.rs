//! Directory trees as tar: packed and unpacked on a thread of their own, with a few chunks between
//! it and the connection.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{mpsc, oneshot};

use crate::report::CliError;

/// Chunks that may wait between the two sides, and their size when packing.
const WAITING: usize = 8;
const CHUNK: usize = 256 * 1024;

/// Bytes of all files below, to show how far a copy is.
pub fn size(root: &Path) -> Result<u64, CliError> {
    let failed =
        |path: &Path, source| CliError::io(format!("cannot read {}", path.display()), source);
    let mut total = 0;
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).map_err(|source| failed(&directory, source))? {
            let entry = entry.map_err(|source| failed(&directory, source))?;
            let found = entry
                .metadata()
                .map_err(|source| failed(&entry.path(), source))?;
            if found.is_dir() {
                open.push(entry.path());
            } else {
                total += found.len();
            }
        }
    }
    Ok(total)
}

/// The tree as a tar stream.
pub fn pack(root: PathBuf) -> ChunkReader {
    packed(move |builder| builder.append_dir_all(".", &root))
}

/// One file as a tar stream, under another name.
pub fn pack_file(path: PathBuf, name: String) -> ChunkReader {
    packed(move |builder| builder.append_path_with_name(&path, &name))
}

/// An error of the packing side ends the stream with it.
pub fn packed(
    fill: impl FnOnce(&mut tar::Builder<ChunkWriter>) -> io::Result<()> + Send + 'static,
) -> ChunkReader {
    let (sender, receiver) = mpsc::channel(WAITING);
    let (failed, failure) = oneshot::channel();
    std::thread::spawn(move || {
        let mut builder = tar::Builder::new(ChunkWriter {
            sender,
            buffer: Vec::with_capacity(CHUNK),
        });
        builder.follow_symlinks(false);
        let packed = fill(&mut builder)
            .and_then(|()| builder.into_inner())
            .and_then(|mut writer| writer.flush());
        if let Err(error) = packed {
            failed.send(error).ok();
        }
    });
    ChunkReader {
        receiver,
        failure: Some(failure),
        current: Bytes::new(),
    }
}

pub struct ChunkWriter {
    sender: mpsc::Sender<Bytes>,
    buffer: Vec<u8>,
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK));
        self.sender
            .blocking_send(chunk.into())
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Chunks from another thread, to be read as they come.
pub struct ChunkReader {
    receiver: mpsc::Receiver<Bytes>,
    failure: Option<oneshot::Receiver<io::Error>>,
    current: Bytes,
}

impl ChunkReader {
    pub fn new(receiver: mpsc::Receiver<Bytes>) -> Self {
        Self {
            receiver,
            failure: None,
            current: Bytes::new(),
        }
    }
}

impl AsyncRead for ChunkReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.current.is_empty() {
            match self.receiver.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(chunk)) => self.current = chunk,
                Poll::Ready(None) => {
                    // The thread says why before it lets the channel close.
                    let failed = self
                        .failure
                        .take()
                        .and_then(|mut failure| failure.try_recv().ok());
                    return Poll::Ready(failed.map_or(Ok(()), Err));
                }
            }
        }
        let count = self.current.len().min(buf.remaining());
        buf.put_slice(&self.current[..count]);
        self.current.advance(count);
        Poll::Ready(Ok(()))
    }
}

/// Where chunks of a tar go, and what became of them.
pub fn unpack(target: PathBuf) -> (mpsc::Sender<Bytes>, oneshot::Receiver<Result<(), CliError>>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let (done, told) = oneshot::channel();
    std::thread::spawn(move || {
        let result = unpack_all(
            &target,
            ReceiverReader {
                receiver,
                current: Bytes::new(),
            },
        );
        done.send(result).ok();
    });
    (sender, told)
}

/// Files, directories and links, all below `target`. The archive is untrusted:
/// devices and the like are left out, modes lose their special bits, owners are ours.
fn unpack_all(target: &Path, archive: impl Read) -> Result<(), CliError> {
    let failed = |source| CliError::io(format!("cannot unpack into {}", target.display()), source);
    std::fs::create_dir_all(target).map_err(failed)?;
    let mut archive = tar::Archive::new(archive);
    archive.set_preserve_permissions(false);
    archive.set_preserve_ownerships(false);
    archive.set_overwrite(true);
    let mut skipped = 0;
    for entry in archive.entries().map_err(failed)? {
        let mut entry = entry.map_err(failed)?;
        let kind = entry.header().entry_type();
        let wanted = kind.is_file() || kind.is_dir() || kind.is_symlink() || kind.is_hard_link();
        if !wanted || !entry.unpack_in(target).map_err(failed)? {
            skipped += 1;
        }
    }
    if skipped > 0 {
        eprintln!(
            "cove: {skipped} entries were left out: not files, directories or links, or outside of the target"
        );
    }
    Ok(())
}

struct ReceiverReader {
    receiver: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl Read for ReceiverReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.receiver.blocking_recv() {
                Some(chunk) => self.current = chunk,
                None => return Ok(0),
            }
        }
        let count = self.current.len().min(out.len());
        self.current.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            // Written raw: the library itself refuses to write such names.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o4755);
            if *kind == tar::EntryType::Symlink {
                header.set_link_name(content).unwrap();
                header.set_size(0);
                header.set_cksum();
                builder.append(&header, &[][..]).unwrap();
            } else {
                header.set_size(content.len() as u64);
                header.set_cksum();
                builder.append(&header, content.as_bytes()).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn a_hostile_archive_stays_below_its_target() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let target = place.path().join("target");
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        let link = outside.to_str().unwrap();
        let bytes = archive(&[
            ("../escaped", tar::EntryType::Regular, "x"),
            ("good", tar::EntryType::Regular, "fine"),
            ("way", tar::EntryType::Symlink, link),
            ("way/planted", tar::EntryType::Regular, "x"),
        ]);
        unpack_all(&target, &bytes[..]).ok();
        assert!(!place.path().join("escaped").exists());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        assert_eq!(
            std::fs::read_to_string(target.join("good")).unwrap(),
            "fine"
        );
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(target.join("good"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7000, 0);
    }
}
