//! Taking in a snapshot that some host, ours or another, wrote out.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use cove_image::{Image, ImageHold, OciConfig};
use cove_isolation::Needs;
use cove_model::SnapshotId;
use cove_parser::manifest::Manifest;
use cove_parser::{Parser, ParserError};
use cove_runner_api::{GuestStream, Imported, RunnerError};
use tokio::io::AsyncWriteExt;
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::{from_pool, internal};
use crate::images;
use crate::record::MemoryRecord;
use crate::snapshots::{Claim, SnapshotRecord, staging, volume_of};
use crate::volumes::Draft;

use super::Kind;
use super::read::{ReadError, Reader};

/// Bytes of the root on their way to the unpacker.
const ROOT_BUFFER: usize = 256 << 10;
/// What packed memory may be larger than the memory it says it holds.
const MEMORY_SLACK: u64 = 64 << 20;
/// After so many bytes of memory the room is looked at again: others write meanwhile.
const LOOK_EVERY: u64 = 256 << 20;

fn refused(error: ReadError) -> RunnerError {
    match error {
        ReadError::Io(error) => internal(error),
        error => RunnerError::Invalid {
            message: error.to_string(),
        },
    }
}

/// The file's fault, or ours. What the parser says in its own words is for the operator.
fn unread(what: &str, error: ParserError) -> RunnerError {
    match error {
        ParserError::Damaged { words } => {
            tracing::info!(what, words, "an imported file is damaged");
            refused(ReadError::Damaged(format!("{what} is invalid")))
        }
        ParserError::TooLarge => refused(ReadError::Damaged(format!("{what} is too large"))),
        error => internal(error),
    }
}

impl Engine {
    pub(crate) async fn take_in(
        &self,
        id: SnapshotId,
        file: GuestStream,
    ) -> Result<Imported, RunnerError> {
        let claim = self.inner.snapshots.claim(&id)?;
        let engine = self.clone();
        let task = tokio::spawn(async move { engine.inner.take_in(claim, file).await });
        task.await.map_err(internal)?
    }
}

/// What was read, before anything of it is believed.
struct Arrived {
    manifest: Manifest,
    image: Image,
    image_hold: ImageHold,
    /// The memory section as it came.
    memory: Option<File>,
    refused: Option<String>,
}

impl Inner {
    async fn take_in(
        self: &Arc<Self>,
        claim: Claim,
        file: GuestStream,
    ) -> Result<Imported, RunnerError> {
        let arrived = self.read_in(&claim.id, file).await;
        let arrived = match arrived {
            Ok(arrived) => arrived,
            Err((error, image)) => {
                if let Some(image) = image {
                    self.drop_unnamed_image(&image).await;
                }
                return Err(error);
            }
        };
        let image = arrived.image.id.clone();
        let (inner, id) = (Arc::clone(self), claim.id.clone());
        let made = spawn_blocking(move || inner.settle_in(&id, arrived))
            .await
            .map_err(internal)?;
        match made {
            Ok(imported) => Ok(imported),
            Err(error) => {
                self.drop_unnamed_image(&image).await;
                Err(error)
            }
        }
    }

    /// Reads the whole file: the root into an image, memory aside. With an error comes the image
    /// that was made already.
    async fn read_in(
        self: &Arc<Self>,
        id: &SnapshotId,
        file: GuestStream,
    ) -> Result<Arrived, (RunnerError, Option<cove_model::ImageId>)> {
        let plain = |error| (refused(error), None);
        let mut reader = Reader::begin(file).await.map_err(plain)?;
        if reader.next().await.map_err(plain)? != Kind::Manifest {
            return Err(plain(ReadError::Damaged(
                "it does not begin with its manifest".into(),
            )));
        }
        let bytes = reader.description().await.map_err(plain)?;
        let manifest = self
            .parsed("its manifest", move |parser| parser.read_manifest(&bytes))
            .await
            .map_err(|error| (error, None))?;
        self.check_manifest(&manifest)
            .map_err(|error| (error, None))?;
        if reader.next().await.map_err(plain)? != Kind::Root {
            return Err(plain(ReadError::Damaged(
                "its file system is missing".into(),
            )));
        }
        let image = self
            .read_root(&mut reader, &manifest)
            .await
            .map_err(|error| (error, None))?;
        let late = |error: RunnerError| (error, Some(image.id.clone()));
        let image_hold = self
            .images
            .store
            .hold(&image.id)
            .ok_or_else(|| late(internal("the image went away while it was imported")))?;
        let mut memory = None;
        loop {
            let seal = reader.seal_so_far();
            let kind = reader.next().await.map_err(refused).map_err(late)?;
            match kind {
                Kind::Memory if memory.is_none() && manifest.memory.is_some() => {
                    memory = Some(
                        self.set_aside(id, &mut reader, &manifest)
                            .await
                            .map_err(late)?,
                    );
                }
                Kind::End => {
                    let end = reader.description().await.map_err(refused).map_err(late)?;
                    reader.finish().await.map_err(refused).map_err(late)?;
                    let signature = self
                        .parsed("its end", move |parser| parser.read_signature(&end))
                        .await
                        .map_err(late)?;
                    let refused = self
                        .keys
                        .check(signature.as_ref(), &seal)
                        .err()
                        .map(|error| error.to_string())
                        .filter(|_| memory.is_some());
                    return Ok(Arrived {
                        manifest,
                        image: image.clone(),
                        image_hold,
                        memory: memory.filter(|_| refused.is_none()),
                        refused,
                    });
                }
                _ => {
                    let error = ReadError::Damaged("a section is out of order".into());
                    return Err(late(refused(error)));
                }
            }
        }
    }

    /// Has the parser read a part of the file.
    async fn parsed<T: Send + 'static>(
        &self,
        what: &str,
        read: impl FnOnce(&Parser) -> Result<T, ParserError> + Send + 'static,
    ) -> Result<T, RunnerError> {
        let parser = Arc::clone(&self.parser);
        spawn_blocking(move || read(&parser))
            .await
            .map_err(internal)?
            .map_err(|error| unread(what, error))
    }

    fn check_manifest(&self, manifest: &Manifest) -> Result<(), RunnerError> {
        let invalid = |message: String| RunnerError::Invalid { message };
        manifest
            .spec
            .check()
            .map_err(|error| invalid(format!("the file's settings are invalid: {error}")))?;
        let env: BTreeMap<_, _> = manifest.image.env.iter().cloned().collect();
        cove_model::spec::check_env("image.env", &env)
            .map_err(|error| invalid(format!("the file's settings are invalid: {error}")))?;
        let texts = manifest.image.user.iter().chain(&manifest.image.workdir);
        for text in texts {
            if text.len() > cove_model::spec::PATH_MAX || text.chars().any(char::is_control) {
                return Err(invalid("the file's user or directory is invalid".into()));
            }
        }
        let ours = cove_image::host_arch();
        if manifest.architecture != ours {
            return Err(invalid(format!(
                "the snapshot is of a machine of architecture {}, and this host is {ours}",
                manifest.architecture.chars().take(40).collect::<String>()
            )));
        }
        Ok(())
    }

    /// Hands the root to the confined unpacker as it comes.
    async fn read_root(
        self: &Arc<Self>,
        reader: &mut Reader<GuestStream>,
        manifest: &Manifest,
    ) -> Result<Image, RunnerError> {
        let (mut into, from) = tokio::io::duplex(ROOT_BUFFER);
        let feed = async {
            let mut chunk = Vec::new();
            while reader.chunk(&mut chunk).await.map_err(refused)? {
                if into.write_all(&chunk).await.is_err() {
                    // The other side knows better why it stopped.
                    return Ok(false);
                }
            }
            into.shutdown().await.map_err(internal)?;
            drop(into);
            Ok::<_, RunnerError>(true)
        };
        // A file that breaks off must not pass for one that ended: the image is made whole first,
        // and dropped again by the caller's error.
        let import = self
            .images
            .store
            .import_root(None, image_config(manifest), from, |_| {});
        let (fed, image) = tokio::join!(feed, import);
        match (fed, image) {
            (Ok(true), Ok(image)) => Ok(image),
            (Err(error), Ok(image)) => {
                // Not by force: the same bytes may be another snapshot's image already.
                self.drop_unnamed_image(&image.id).await;
                Err(error)
            }
            (Err(error), Err(_)) => Err(error),
            (Ok(_), Err(error)) => Err(images::failure(error)),
            (Ok(false), Ok(_)) => Err(internal("the unpacker ended before its input did")),
        }
    }

    /// Writes the memory section, packed as it is, into a file without a name.
    async fn set_aside(
        &self,
        id: &SnapshotId,
        reader: &mut Reader<GuestStream>,
        manifest: &Manifest,
    ) -> Result<File, RunnerError> {
        let told = manifest.memory.as_ref().map_or(0, |memory| memory.bytes);
        let most = told.saturating_add(MEMORY_SLACK);
        self.pool.check_room(most).map_err(from_pool)?;
        let file = nameless(self.pool.root()).map_err(internal)?;
        let mut writing = tokio::fs::File::from_std(file);
        let (mut chunk, mut length, mut looked) = (Vec::new(), 0_u64, 0);
        while reader.chunk(&mut chunk).await.map_err(refused)? {
            length += chunk.len() as u64;
            if length > most {
                let what = "it holds more memory than it declares".into();
                return Err(refused(ReadError::Damaged(what)));
            }
            if length - looked >= LOOK_EVERY {
                looked = length;
                self.pool
                    .check_room((most - length).min(LOOK_EVERY))
                    .map_err(from_pool)?;
            }
            writing.write_all(&chunk).await.map_err(internal)?;
        }
        writing.flush().await.map_err(internal)?;
        tracing::debug!(snapshot = %id, length, "memory set aside");
        Ok(writing.into_std().await)
    }

    /// Makes the snapshot of what arrived. Blocking.
    fn settle_in(
        self: &Arc<Self>,
        id: &SnapshotId,
        arrived: Arrived,
    ) -> Result<Imported, RunnerError> {
        let Arrived {
            manifest,
            image,
            image_hold,
            memory,
            refused: refusal,
        } = arrived;
        let draft = Draft::new(&self.pool, staging("draft", id.as_str()));
        self.pool.create(draft.id()).map_err(from_pool)?;
        let mut kept = None;
        if let (Some(packed), Some(told)) = (memory, &manifest.memory) {
            let disk = self.pool.disk(draft.id());
            disk.make_memory().map_err(from_pool)?;
            let most = told.bytes.saturating_add(MEMORY_SLACK);
            self.pool.check_room(most).map_err(from_pool)?;
            self.parser
                .unpack_memory(packed, &disk.memory(), most)
                .map_err(|error| unread("its memory", error))?;
            kept = Some(MemoryRecord {
                bytes: told.bytes,
                needs: Needs {
                    tier: told.tier.clone(),
                    architecture: told.architecture.clone(),
                    cpu_features: told.cpu_features.clone(),
                    kernel: told.kernel.clone(),
                    components: told.components.clone(),
                },
                grown_mb: told.grown_mb,
            });
        }
        let target = volume_of(id);
        let published = Draft::new(&self.pool, target.clone());
        self.pool
            .rename(draft.id(), &target)
            .and_then(|()| self.pool.set_read_only(&target))
            .and_then(|()| self.pool.sync(&target))
            .map_err(from_pool)?;
        draft.keep();
        published.keep();
        let snapshot = self.publish_snapshot(SnapshotRecord {
            id: id.clone(),
            sandbox: manifest.sandbox,
            parent: None,
            image: image.id,
            spec: manifest.spec,
            created_at: manifest.created_at,
            memory: kept,
            stopped_us: 0,
            weight_bytes: 0,
            accounts: Vec::new(),
            template_of: None,
        })?;
        drop(image_hold);
        Ok(Imported {
            snapshot: self.snapshot_view(&snapshot, None),
            memory_refused: refusal,
        })
    }
}

/// A file on the pool that is gone with its descriptor.
fn nameless(dir: &Path) -> io::Result<File> {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::TMPFILE.bits() as i32)
        .open(dir)
}

fn image_config(manifest: &Manifest) -> OciConfig {
    let image = manifest.image.clone();
    OciConfig {
        env: image.env,
        user: image.user,
        workdir: image.workdir,
        entrypoint: image.entrypoint,
        cmd: image.cmd,
    }
}
