//! Writing a snapshot out.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cove_model::SnapshotId;
use cove_runner::{GuestStream, RunnerError};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::task::spawn_blocking;

use crate::engine::{Engine, Inner};
use crate::error::internal;
use crate::merged;
use crate::snapshots::{SnapshotHold, memory_dir};

use super::write::Writer;
use super::{Kind, Manifest, is_memory_name};

/// How long a reader may leave the stream untouched.
const STALL_MAX: Duration = Duration::from_secs(120);

impl Engine {
    pub(crate) async fn write_out(&self, id: &SnapshotId) -> Result<GuestStream, RunnerError> {
        let hold = self.inner.snapshots.hold(id).await?;
        let (image, held) = self.inner.hold_image(hold.snapshot.record.image.as_str())?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(internal)?;
        ours.set_write_timeout(Some(STALL_MAX)).map_err(internal)?;
        theirs.set_nonblocking(true).map_err(internal)?;
        let inner = Arc::clone(&self.inner);
        spawn_blocking(move || {
            let _held = held;
            let id = hold.snapshot.record.id.clone();
            // The reader learns of a failure by the missing end.
            match inner.write_snapshot(&hold, &image, io::BufWriter::new(&ours)) {
                Ok(()) => tracing::debug!(snapshot = %id, "exported"),
                Err(error) => tracing::warn!(snapshot = %id, %error, "an export broke off"),
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
        image: &cove_image::Image,
        output: impl Write,
    ) -> io::Result<()> {
        let record = &hold.snapshot.record;
        let volume = self.pool.path(&hold.snapshot.volume());
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
        let root = merged::open(&self.images.store.root(image), &volume)?;
        let (packing, packed) = merged::Packing::begin(&root)?;
        let mut encoder = GzEncoder::new(writer.section(Kind::Root)?, Compression::fast());
        io::copy(&mut merged::Flowing::new(packed), &mut encoder)?;
        packing.finish()?;
        encoder.finish()?.finish()?;
        if record.memory.is_some() {
            let section = writer.section(Kind::Memory)?;
            let mut encoder = GzEncoder::new(section, Compression::fast());
            write_memory(&memory_dir(&volume), &mut encoder)?;
            encoder.finish()?.finish()?;
        }
        writer.finish(&self.keys)?;
        Ok(())
    }
}

fn write_memory(dir: &Path, output: &mut impl Write) -> io::Result<()> {
    let mut names = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<io::Result<Vec<String>>>()?;
    names.sort();
    for name in names {
        if !is_memory_name(&name) {
            return Err(io::Error::other(format!(
                "a memory image holds a file named {name:?}"
            )));
        }
        let file = File::open(dir.join(&name))?;
        let length = file.metadata()?.len();
        let short = u16::try_from(name.len()).expect("checked to be short");
        output.write_all(&short.to_le_bytes())?;
        output.write_all(name.as_bytes())?;
        output.write_all(&length.to_le_bytes())?;
        let copied = io::copy(&mut file.take(length), output)?;
        if copied != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}
