//! Writing a snapshot out.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cove_model::SnapshotId;
use cove_parser::Packing;
use cove_runner_api::{GuestStream, RunnerError};
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::internal;
use crate::merged;
use crate::snapshots::SnapshotHold;

use super::write::{Section, Writer};
use super::{CHUNK_MAX, Kind, Manifest};

/// How long a reader may leave the stream untouched.
const STALL_MAX: Duration = Duration::from_secs(120);

impl Engine {
    pub(crate) async fn write_out(
        &self,
        id: &SnapshotId,
        plain: bool,
    ) -> Result<GuestStream, RunnerError> {
        let hold = self.inner.snapshots.hold(id).await?;
        let (image, held) = self.inner.hold_image(hold.snapshot.record.image.as_str())?;
        let inner = Arc::clone(&self.inner);
        let found = spawn_blocking(move || {
            // Before the stream begins, which could not say why it ends.
            let trees = inner.trees_of(&hold.snapshot, &image);
            trees.map(|trees| (hold, image, trees))
        });
        let (hold, image, trees) = found.await.map_err(internal)??;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(internal)?;
        ours.set_write_timeout(Some(STALL_MAX)).map_err(internal)?;
        theirs.set_nonblocking(true).map_err(internal)?;
        let inner = Arc::clone(&self.inner);
        spawn_blocking(move || {
            let _held = held;
            let id = hold.snapshot.record.id.clone();
            // The reader learns of a failure by the missing end.
            let output = io::BufWriter::new(&ours);
            match inner.write_snapshot(&hold, (&image, trees), plain, output) {
                Ok(()) => tracing::debug!(snapshot = %id, "exported"),
                Err(error) => {
                    tracing::warn!(snapshot = %id, %error, "export of a snapshot aborted")
                }
            }
        });
        tokio::net::UnixStream::from_std(theirs)
            .map(GuestStream::Unix)
            .map_err(internal)
    }
}

impl Inner {
    fn write_snapshot(
        &self,
        hold: &SnapshotHold,
        (image, trees): (&cove_image::Image, Vec<PathBuf>),
        plain: bool,
        output: impl Write,
    ) -> io::Result<()> {
        let record = &hold.snapshot.record;
        let mut writer = Writer::begin(output)?;
        let manifest = Manifest {
            sandbox: record.sandbox.clone(),
            spec: record.spec.clone(),
            created_at: record.created_at,
            architecture: image.arch.clone(),
            image: image.config.clone(),
            image_names: image.names.clone(),
            memory: record.memory.clone(),
        };
        writer.json(Kind::Manifest, &manifest)?;
        let packing = self.parser.pack_tree(trees, !plain);
        copy(
            packing.map_err(io::Error::other)?,
            writer.section(Kind::Root)?,
        )?;
        if record.memory.is_some() {
            let memory = self.pool.disk(&hold.snapshot.volume()).memory();
            let packing = self.parser.pack_memory(&memory);
            copy(
                packing.map_err(io::Error::other)?,
                writer.section(Kind::Memory)?,
            )?;
        }
        writer.finish(&self.keys)?;
        Ok(())
    }
}

/// Fills a section with what a confined program packs; nothing of it is looked at.
fn copy(mut packing: Packing, mut section: Section<'_, impl Write>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_MAX];
    loop {
        match packing.read(&mut buffer, merged::PACK_STALL_MAX)? {
            0 => break,
            count => section.write_all(&buffer[..count])?,
        }
    }
    packing.finish().map_err(io::Error::other)?;
    section.finish()
}
