//! What is known of a sandbox on disk: one JSON file each, beside its volume and never rolled back
//! with it.
//!
//! A record is first written, and flushed, while the sandbox boots; the state after the boot is
//! written without a flush, because a process crash keeps it and a power loss ends the machine
//! anyway. So after a reboot a record that still says `creating` may have been acknowledged, and is
//! kept as stopped; in the same boot of the host it was half made, and is swept.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use cove_isolation::MachineRecord;
use cove_model::{ImageId, Resources, SandboxId, SandboxSpec, State};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    pub id: SandboxId,
    pub state: State,
    pub reason: Option<String>,
    pub spec: SandboxSpec,
    /// Limits in force; `memory_mb` is the spec's, growth is in `grown_mb`.
    pub limits: Resources,
    /// Where elastic memory has grown to in this boot of the sandbox.
    pub grown_mb: Option<u64>,
    pub image: ImageId,
    pub image_env: Vec<(String, String)>,
    pub image_user: Option<String>,
    pub image_workdir: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    pub machine: Option<MachineRecord>,
    /// The boot of the host this was written in.
    pub host_boot: String,
    /// Figures of machines that have ended, so that counters never go back.
    pub past_cpu_usec: u64,
    pub past_oom_kills: u64,
}

#[derive(Debug, Clone)]
pub struct Records {
    dir: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Survives the process.
    Written,
    /// Survives a power loss.
    Flushed,
}

impl Records {
    pub fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    pub fn write(&self, record: &Record, durability: Durability) -> io::Result<()> {
        let draft = self.dir.join(format!("{}.new", record.id));
        let path = self.path(&record.id);
        let mut file = fs::File::create(&draft)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        let flush = durability == Durability::Flushed;
        if flush && path.exists() {
            // What is replaced was acknowledged: the new content must be there before its name is.
            file.sync_data()?;
            fs::rename(&draft, &path)?;
            return self.flush_directory();
        }
        fs::rename(&draft, &path)?;
        if flush {
            // One flush for content and name. Should the power fail before it ends, the name may
            // stand for an empty file, which `load` takes for a record that was never acknowledged.
            file.sync_all()?;
        }
        Ok(())
    }

    pub fn remove(&self, id: &SandboxId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.flush_directory(),
        }
    }

    /// Every record. One that cannot be read stops the engine: it stands for somebody's machine.
    pub fn load(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            match path.extension().and_then(|ext| ext.to_str()) {
                Some("json") => {}
                // A draft that never got its name was never acknowledged.
                Some("new") => {
                    fs::remove_file(&path)?;
                    continue;
                }
                _ => continue,
            }
            let text = fs::read(&path)?;
            if text.is_empty() {
                fs::remove_file(&path)?;
                continue;
            }
            let record = serde_json::from_slice(&text).map_err(|error| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{} is damaged: {error}", path.display()),
                )
            })?;
            records.push(record);
        }
        Ok(records)
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    fn flush_directory(&self) -> io::Result<()> {
        fs::File::open(&self.dir as &Path)?.sync_all()
    }
}
