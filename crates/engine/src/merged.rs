//! The whole file system of a snapshot, its image and its changes made one, as a tar stream.
//!
//! The two are put together by a read-only overlay that is attached nowhere: it is gone with its
//! descriptor, however the engine ends.

use std::fs::File;
use std::future::Future;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

/// What is kept of a failed `tar`'s complaints.
const COMPLAINT_BYTES: u64 = 2000;
/// How long `tar` may take until its next bytes: a directory is read whole before its first file is.
const PACK_STALL_MAX: Duration = Duration::from_secs(300);

/// A directory that shows `volume`'s changes over `image`.
pub fn open(image: &Path, volume: &Path) -> io::Result<OwnedFd> {
    let upper = volume.join("upper");
    if upper.symlink_metadata().is_err() {
        // Nothing was ever changed.
        return Ok(File::open(image)?.into());
    }
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let mut layers = escaped(&upper)?;
    layers.push(':');
    layers.push_str(&escaped(image)?);
    fsconfig_set_string(&context, "lowerdir", layers)?;
    // Directories of the image that were renamed inside point back to where they were.
    fsconfig_set_string(&context, "redirect_dir", "follow")?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// A path as the list of layers wants it.
fn escaped(path: &Path) -> io::Result<String> {
    let text = std::str::from_utf8(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    Ok(text.replace('\\', "\\\\").replace(':', "\\:"))
}

/// `tar` packing a directory; it ends when this is dropped. Sockets are left out, as from any archive.
pub struct Packing {
    child: Child,
    /// Reads what `tar` complains about to its end, so that it never waits for somebody to.
    complaints: Option<JoinHandle<String>>,
}

impl Packing {
    /// The archive comes from the second.
    pub fn begin(root: &OwnedFd) -> io::Result<(Self, ChildStdout)> {
        let mut child = Command::new("tar")
            .args([
                "--create",
                "--format=posix",
                "--numeric-owner",
                "--sparse",
                "--one-file-system",
                "--xattrs",
                "--xattrs-include=*",
                "--sort=name",
                "--warning=no-file-ignored",
                ".",
            ])
            .current_dir(format!("/proc/self/fd/{}", root.as_raw_fd()))
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().expect("standard output is piped");
        let errors = child.stderr.take().expect("standard error is piped");
        let mut packing = Self {
            child,
            complaints: None,
        };
        let reader = thread::Builder::new().name("tar-complaints".into());
        packing.complaints = Some(reader.spawn(move || first_of(errors))?);
        Ok((packing, output))
    }

    /// Waits for the end of `tar`, whose output was read to its own. Blocking.
    pub fn finish(mut self) -> io::Result<()> {
        let status = self.child.wait()?;
        // Status 1 is "some file changed", which in a frozen tree means nothing.
        if matches!(status.code(), Some(0 | 1)) {
            return Ok(());
        }
        let complaints = self.complaints.take().map(JoinHandle::join);
        let complaints = complaints.and_then(Result::ok).unwrap_or_default();
        Err(io::Error::other(format!(
            "tar failed: {}",
            complaints.trim()
        )))
    }
}

impl Drop for Packing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The beginning of what comes; all of it is read.
fn first_of(mut errors: impl Read) -> String {
    let mut kept = Vec::new();
    let _ = (&mut errors).take(COMPLAINT_BYTES).read_to_end(&mut kept);
    let _ = io::copy(&mut errors, &mut io::sink());
    String::from_utf8_lossy(&kept).into_owned()
}

/// A pipe that is read by a blocking thread, and given up when nothing comes for long.
pub struct Flowing<R> {
    pipe: R,
    patience: Duration,
}

impl<R> Flowing<R> {
    pub fn new(pipe: R) -> Self {
        Self {
            pipe,
            patience: PACK_STALL_MAX,
        }
    }
}

impl<R: Read + AsFd> Read for Flowing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let patience = Timespec::try_from(self.patience).map_err(io::Error::other)?;
        let mut watched = [PollFd::new(&self.pipe, PollFlags::IN)];
        match poll(&mut watched, Some(&patience)) {
            Ok(0) => Err(stalled()),
            Ok(_) => self.pipe.read(buffer),
            Err(error) => Err(error.into()),
        }
    }
}

/// The same for a pipe that a task reads.
pub struct FlowingTask<R> {
    pipe: R,
    patience: Duration,
    /// Set while nothing comes: whoever reads may take its time between two reads.
    until: Option<Pin<Box<Sleep>>>,
}

impl<R> FlowingTask<R> {
    pub fn new(pipe: R) -> Self {
        Self {
            pipe,
            patience: PACK_STALL_MAX,
            until: None,
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for FlowingTask<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Poll::Ready(read) = Pin::new(&mut this.pipe).poll_read(context, buffer) {
            this.until = None;
            return Poll::Ready(read);
        }
        let patience = this.patience;
        let until = this
            .until
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        until.as_mut().poll(context).map(|()| Err(stalled()))
    }
}

fn stalled() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "tar came to a standstill")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn a_tree_full_of_sockets_is_packed_without_them() {
        let dir = tempfile::tempdir().unwrap();
        let (image, volume) = (dir.path().join("image"), dir.path().join("volume"));
        std::fs::create_dir(&image).unwrap();
        std::fs::create_dir(&volume).unwrap();
        for number in 0..3000 {
            let path = image.join(format!("a-socket-that-some-guest-listens-on-{number}"));
            mknodat(CWD, &path, FileType::Socket, Mode::RUSR, 0).unwrap();
        }
        std::fs::write(image.join("file"), "content").unwrap();
        let (done, ended) = mpsc::channel();
        let root = open(&image, &volume).unwrap();
        thread::spawn(move || {
            let (packing, output) = Packing::begin(&root).unwrap();
            let mut archive = Vec::new();
            Flowing::new(output).read_to_end(&mut archive).unwrap();
            packing.finish().unwrap();
            done.send(archive).unwrap();
        });
        let archive = ended.recv_timeout(DEADLINE).expect("packing ends");
        let has = |text: &[u8]| archive.windows(text.len()).any(|part| part == text);
        assert!(has(b"./file") && has(b"content"));
        assert!(!has(b"a-socket"));
    }

    #[test]
    fn whatever_tar_complains_of_is_read_to_its_end_and_little_is_kept() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let reader = thread::spawn(move || first_of(theirs));
        for _ in 0..10_000 {
            io::Write::write_all(&mut ours, b"tar: ./some/file: something is wrong\n").unwrap();
        }
        drop(ours);
        let kept = reader.join().unwrap();
        assert!(kept.starts_with("tar: ./some/file"));
        assert_eq!(kept.len() as u64, COMPLAINT_BYTES);
    }

    #[test]
    fn a_tar_that_was_cut_off_does_not_pass_for_one_that_ended() {
        let dir = tempfile::tempdir().unwrap();
        // More than fits into the pipe.
        std::fs::write(dir.path().join("file"), vec![1; 4 << 20]).unwrap();
        let root: OwnedFd = File::open(dir.path()).unwrap().into();
        let (packing, output) = Packing::begin(&root).unwrap();
        drop(output);
        assert!(packing.finish().is_err());
    }

    #[tokio::test]
    async fn a_pipe_in_which_nothing_flows_is_given_up() {
        let (reader, writer) = io::pipe().unwrap();
        let mut flowing = Flowing {
            pipe: reader,
            patience: SHORT,
        };
        let error = flowing.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        io::Write::write_all(&mut &writer, b"late").unwrap();
        assert_eq!(flowing.read(&mut [0; 8]).unwrap(), 4);

        let (mut ours, theirs) = tokio::io::duplex(64);
        let mut flowing = FlowingTask {
            pipe: theirs,
            patience: SHORT,
            until: None,
        };
        let error = flowing.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        ours.write_u8(7).await.unwrap();
        assert_eq!(flowing.read_u8().await.unwrap(), 7);
    }
}
