//! Images from a tarball (plain, gzip or zstd, as `docker export` writes them) or a directory.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cove_parser::ParserError;
use cove_unpack::Content;
use rustix::pipe::PipeFlags;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;

use crate::chain::ChainId;
use crate::error::ImageError;
use crate::image::{Image, OciConfig, Source, host_arch};
use crate::layer::{self, Archive, Filled, blocking};
use crate::progress::{Progress, Report};
use crate::store::{Description, ImageStore, check_name};

const COPY_BUFFER_BYTES: usize = 256 << 10;

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
        let parser = Arc::clone(&self.inner.config.parser);
        let (begun, packed) = tokio::sync::oneshot::channel();
        // One thread for the packer's whole life, because it ends with the thread that started it.
        let packing = tokio::task::spawn_blocking(move || -> Result<(), ParserError> {
            let (output, end) = parser.pack_directory(&directory)?.split();
            // Whoever does not take it closes it, which ends the packer.
            let _ = begun.send(OwnedFd::from(output));
            end.wait()
        });
        let filled = match packed.await {
            Ok(output) => {
                let output = pipe::Receiver::from_owned_fd(output).map_err(ImageError::Input)?;
                self.fill_from(output, &report).await.map(Some)
            }
            Err(_) => Ok(None),
        };
        let packed = packing.await.map_err(ImageError::Task)?;
        // When unpacking failed, the packer's broken pipe is a consequence.
        let filled = filled?;
        match packed {
            Ok(()) => {}
            // A live directory may.
            Err(error @ ParserError::Changed) => report.send(Progress::Warning(error.to_string())),
            Err(error) => return Err(failed(error.to_string())),
        }
        let (filled, digest) = filled.ok_or_else(|| failed("nothing was packed".to_owned()))?;
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
            return Ok(format!("sha256:{}", hex::encode(hash.finalize())));
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
