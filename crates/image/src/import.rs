//! Images from a tarball (plain, gzip or zstd, as `docker export` writes them) or a directory.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cove_unpack::Content;
use rustix::pipe::PipeFlags;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::Command;

use crate::chain::{ChainId, hex};
use crate::error::ImageError;
use crate::image::{Image, OciConfig, Source, host_arch};
use crate::layer::{self, Archive, Filled, blocking};
use crate::progress::{Progress, Report};
use crate::store::{Description, ImageStore, check_name};

const COPY_BUFFER_BYTES: usize = 256 << 10;
/// What is kept of a failed `tar`'s complaints.
const MAX_COMPLAINT_BYTES: u64 = 2000;

/// What an archive becomes.
struct Made {
    names: Vec<String>,
    source: Source,
    config: OciConfig,
}

impl Made {
    fn imported(name: &str) -> Self {
        Self {
            names: vec![name.to_owned()],
            source: Source::Import,
            config: OciConfig::default(),
        }
    }
}

impl ImageStore {
    /// Makes an image of a tarball that holds a whole file system. A later import of the same
    /// bytes is the same image.
    pub async fn import_tar(
        &self,
        name: &str,
        reader: impl AsyncRead + Send + Unpin,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        check_name(name)?;
        let report = Report::new(progress);
        let _operation = self.inner.pin(&[]);
        let (filled, digest) = self.fill_from(reader, &report).await?;
        let root = filled.root();
        if blocking(move || Ok(is_saved_image(&root))).await? {
            return Err(ImageError::NotAFileSystem);
        }
        self.finish_import(Made::imported(name), filled, digest, &report)
            .await
    }

    /// Makes an image of a directory's content as it is now. Other file systems mounted below
    /// are left out.
    pub async fn import_dir(
        &self,
        name: &str,
        path: &Path,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        let path = path.to_owned();
        let wanted = path.clone();
        let directory = blocking(move || {
            File::open(&wanted).map_err(|error| ImageError::Pack {
                path: wanted,
                reason: error.to_string(),
            })
        });
        let directory = directory.await?;
        self.import_open_dir(name, directory.into(), path, progress)
            .await
    }

    /// The same of a directory that is open; `path` is what it is called in errors.
    pub async fn import_open_dir(
        &self,
        name: &str,
        directory: OwnedFd,
        path: PathBuf,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        check_name(name)?;
        let report = Report::new(progress);
        let _operation = self.inner.pin(&[]);
        let failed = |reason: String| ImageError::Pack {
            path: path.clone(),
            reason,
        };
        let mut tar = Command::new("tar")
            .args([
                "--create",
                "--format=posix",
                "--numeric-owner",
                "--sparse",
                "--one-file-system",
            ])
            .args(["--xattrs", "--xattrs-include=*", "--sort=name", "."])
            // By its descriptor, which is open until tar runs: nobody can put another in its place.
            .current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let output = tar.stdout.take().expect("standard output was asked for");
        let errors = tar.stderr.take().expect("standard error was asked for");
        let complaints = async {
            let mut text = Vec::new();
            let mut errors = errors.take(MAX_COMPLAINT_BYTES);
            let _ = errors.read_to_end(&mut text).await;
            // The rest is read and dropped, so that tar never waits for it.
            let _ = tokio::io::copy(&mut errors.into_inner(), &mut tokio::io::sink()).await;
            String::from_utf8_lossy(&text).trim().to_owned()
        };
        let (filled, complaints) = tokio::join!(self.fill_from(output, &report), complaints);
        let status = tar
            .wait()
            .await
            .map_err(|error| failed(error.to_string()))?;
        // When unpacking failed, tar's broken pipe is a consequence.
        let (filled, digest) = filled?;
        // Status 1 means that some file changed while it was read, which a live directory may.
        match status.code() {
            Some(0) => {}
            Some(1) => report.send(Progress::Warning(complaints)),
            _ => return Err(failed(complaints)),
        }
        self.finish_import(Made::imported(name), filled, digest, &report)
            .await
    }

    /// Makes an image of a whole file system that this or another host packed from a snapshot. Without
    /// a name it is there for the snapshot alone.
    pub async fn import_root(
        &self,
        name: Option<&str>,
        config: OciConfig,
        reader: impl AsyncRead + Send + Unpin,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        if let Some(name) = name {
            check_name(name)?;
        }
        let report = Report::new(progress);
        let _operation = self.inner.pin(&[]);
        let (filled, digest) = self.fill_from(reader, &report).await?;
        let made = Made {
            names: name.map(str::to_owned).into_iter().collect(),
            source: Source::Snapshot,
            config,
        };
        self.finish_import(made, filled, digest, &report).await
    }

    async fn fill_from(
        &self,
        reader: impl AsyncRead + Send + Unpin,
        report: &Report,
    ) -> Result<(Filled, String), ImageError> {
        let inner = &self.inner;
        let (input, output) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| ImageError::Input(e.into()))?;
        let output = pipe::Sender::from_owned_fd(output).map_err(ImageError::Input)?;
        let archive = Archive {
            input,
            content: Content::Tree,
            hash: false,
            digest: None,
            room_bytes: None,
        };
        let limit = inner.config.limits.total_bytes;
        // Both run to their end: when one fails the other sees the pipe close.
        let (filled, digest) = tokio::join!(
            layer::fill(&inner.pool, &inner.config, None, archive, report),
            feed(reader, output, limit),
        );
        match (filled, digest) {
            // A reader that failed looks like a truncated archive to the other side.
            (_, Err(error)) => Err(error),
            (Err(error), _) => Err(error),
            (Ok(filled), Ok(digest)) => Ok((filled, digest)),
        }
    }

    async fn finish_import(
        &self,
        made: Made,
        filled: Filled,
        digest: String,
        report: &Report,
    ) -> Result<Image, ImageError> {
        let chain = ChainId::over(None, Content::Tree, &digest);
        let _pin = self.inner.pin(std::slice::from_ref(&chain));
        filled.publish(chain.clone()).await?;
        let description = Description {
            names: made.names,
            digest: Some(digest),
            source: made.source,
            config: made.config,
            layers: vec![chain],
            arch: host_arch().to_owned(),
        };
        let image = self.inner.register(description).await?;
        report.send(Progress::Done);
        Ok(image)
    }
}

/// Whether the tree is the inside of an archive of images instead of a file system: it has one of the
/// lists such archives have, and no directory a program could be in. Links are not followed.
fn is_saved_image(root: &Path) -> bool {
    let there = |name: &str| root.join(name).symlink_metadata();
    ["manifest.json", "oci-layout"]
        .iter()
        .any(|name| there(name).is_ok_and(|entry| entry.is_file()))
        && ["bin", "etc", "lib", "usr"]
            .iter()
            .all(|name| there(name).is_err())
}

/// Copies the archive into the pipe and returns its digest. A closed pipe is no error here: the
/// reading side knows better why it stopped.
async fn feed(
    mut reader: impl AsyncRead + Unpin,
    mut output: pipe::Sender,
    limit: u64,
) -> Result<String, ImageError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let mut total = 0;
    loop {
        let count = reader.read(&mut buffer).await.map_err(ImageError::Input)?;
        if count == 0 {
            return Ok(format!("sha256:{}", hex(&hash.finalize())));
        }
        total += count as u64;
        if total > limit {
            return Err(ImageError::ArchiveTooLarge { limit });
        }
        hash.update(&buffer[..count]);
        match output.write_all(&buffer[..count]).await {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
                return Ok(String::new());
            }
            result => result.map_err(ImageError::Input)?,
        }
    }
}
