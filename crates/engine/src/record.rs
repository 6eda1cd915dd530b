//! What is known of a sandbox on disk: one JSON file each, beside its volume and never rolled back
//! with it.
//!
//! A record is first written, and flushed, while the sandbox boots; the state after the boot is
//! written without a flush, because a process crash keeps it and a power loss ends the machine
//! anyway. So after a reboot a record that still says `creating` may have been acknowledged, and is
//! kept as stopped; in the same boot of the host it was half made, and is swept.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use cove_gateway::host::Audience;
use cove_isolation::{MachineRecord, Needs};
use cove_model::secret::SecretHost;
use cove_model::{ImageId, Resources, SandboxId, SandboxSpec, SnapshotId, State};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

pub use crate::files::Durability;
use crate::files::{Damaged, Files, Loaded};
use crate::inherited::room;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    pub id: SandboxId,
    /// The organisation whose it is; absent in records from before that was reported.
    #[serde(default)]
    pub owner: Option<String>,
    /// Whether that is the operator's own organisation; in records from before that was kept it is not
    /// taken to be.
    #[serde(default)]
    pub home: bool,
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
    /// The same moment in microseconds since the boot `host_boot`.
    #[serde(default)]
    pub started_boot_us: Option<u64>,
    pub machine: Option<MachineRecord>,
    /// The boot of the host this was written in.
    pub host_boot: String,
    /// Figures of machines that have ended, so that counters never go back.
    pub past_cpu_usec: u64,
    pub past_oom_kills: u64,
    #[serde(default)]
    pub past_network_sent_bytes: u64,
    #[serde(default)]
    pub past_network_received_bytes: u64,
    /// The snapshot its state has grown from: the last one taken of it or put in its place.
    #[serde(default)]
    pub parent: Option<SnapshotId>,
    /// Whether its disk began as a snapshot's, so that an empty one must never take its place.
    #[serde(default)]
    pub grown_from_snapshot: bool,
    /// What its disk held when it came from a snapshot; charged to whoever wrote it, and counted
    /// against the limit all the same.
    #[serde(default)]
    pub inherited_bytes: u64,
    /// Whom the kernel charges for it. They may be gone, and others may hold the same bytes.
    #[serde(default)]
    pub accounts: Vec<u64>,
    /// What its disk was at the last snapshot.
    #[serde(default)]
    pub snapshotted: Option<Snapshotted>,
    /// The memory in its volume, while it is paused.
    #[serde(default)]
    pub memory: Option<MemoryRecord>,
    /// What stands for each secret inside, by the secrets' names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub placeholders: BTreeMap<String, String>,
    /// The hosts that they are bound to, or were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_hosts: Vec<SecretHost>,
    /// A rollback that must be finished.
    #[serde(default)]
    pub restoring: Option<Restoring>,
}

impl Record {
    /// For whom presets of its policy are filled in.
    pub fn audience(&self) -> Audience {
        match &self.owner {
            Some(_) if !self.home => Audience::Tenants,
            _ => Audience::Operator,
        }
    }

    /// Bytes of memory that lie in its volume beside its disk.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, |memory| memory.bytes)
    }

    /// What its volume may be charged: what the limit leaves beside what it inherited, and its memory
    /// while that lies there.
    pub fn quota_bytes(&self) -> u64 {
        room(self.limits.disk_mb, self.inherited_bytes) + self.memory_bytes()
    }

    /// What its volume may hold: its disk, and its memory while that lies there.
    pub fn disk_bytes(&self) -> u64 {
        (self.limits.disk_mb << 20) + self.memory_bytes()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshotted {
    pub snapshot: SnapshotId,
    /// The volume's version right after it; another one now means that something was written.
    pub version: u64,
}

/// Captured memory: what it takes to bring it back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryRecord {
    pub bytes: u64,
    pub needs: Needs,
    /// The memory limit in force at the capture, when it had grown; less may not hold it.
    pub grown_mb: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restoring {
    pub to: SnapshotId,
    /// What the sandbox was before; the way back when `to` cannot be started.
    pub kept: SnapshotId,
    pub memory: bool,
    /// Whether it is to run afterwards.
    pub run: bool,
}

#[derive(Debug, Clone)]
pub struct Records {
    files: Files,
}

impl Records {
    pub fn open(dir: PathBuf) -> io::Result<Self> {
        Ok(Self {
            files: Files::open(dir)?,
        })
    }

    pub fn write(&self, record: &Record, durability: Durability) -> io::Result<()> {
        self.files.write(record.id.as_str(), record, durability)
    }

    pub fn remove(&self, id: &SandboxId) -> io::Result<()> {
        self.files.remove(id.as_str())
    }

    pub fn load(&self) -> io::Result<Loaded<Record>> {
        let mut found = self.files.load::<Record>()?;
        let (intact, foreign) = found
            .intact
            .into_iter()
            .partition(|(name, record)| record.id.as_str() == name);
        found.intact = intact;
        found
            .damaged
            .extend(foreign.into_iter().map(|(name, record)| Damaged {
                reason: format!("it is the record of {}", record.id),
                content: record.image.as_str().into(),
                name,
            }));
        Ok(found)
    }
}
