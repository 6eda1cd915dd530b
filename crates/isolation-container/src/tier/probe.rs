//! Whether memory can be captured and restored on this host, found out by doing it: a sandbox with
//! nothing but the guest in it is booted, captured, ended and brought back.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_isolation::{
    Afterwards, Boot, Isolation, IsolationError, Machine, MachineSpec, Restore, Root,
};
use cove_model::{NetworkPolicy, Resources, SandboxId};
use cove_pool::Disk;

use super::{ContainerTier, blocking};

/// How long an answer is good for.
const PROBE_AGE: Duration = Duration::from_secs(600);
const PROBE_MEMORY_MB: u64 = 64;

/// What the last probe said, and when.
pub type Probed = tokio::sync::Mutex<Option<(Instant, Result<String, String>)>>;

/// Removes the probe's directory however it ends; one that a killed engine left is removed first.
struct Scratch(PathBuf);

impl Scratch {
    fn make(dir: PathBuf) -> io::Result<Self> {
        match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let scratch = Self(dir);
        for name in ["image", "volume", "memory"] {
            fs::create_dir_all(scratch.0.join(name))?;
        }
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl ContainerTier {
    /// What captures memory here, or why nothing can. The first caller waits for a real capture and
    /// restore; later ones get its answer for a while.
    pub async fn probe_memory(&self) -> Result<String, String> {
        let mut last = self.shared.probed.lock().await;
        if let Some((when, answer)) = &*last
            && when.elapsed() < PROBE_AGE
        {
            return answer.clone();
        }
        let answer = self.try_memory().await.map_err(|error| told(&error));
        *last = Some((Instant::now(), answer.clone()));
        answer
    }

    async fn try_memory(&self) -> Result<String, IsolationError> {
        let version = self.shared.capturer.program()?.version;
        let dir = self.shared.host.pool_dir.join("memory-probe");
        let scratch = Arc::new(
            blocking(move || {
                Scratch::make(dir).map_err(IsolationError::failed("make a scratch directory"))
            })
            .await?,
        );
        let boot = || {
            let root = Root {
                image: scratch.0.join("image"),
                disk: Disk::at(scratch.0.join("volume")),
            };
            Boot {
                machine: MachineSpec {
                    id: SandboxId::random(),
                    hostname: "probe".into(),
                    limits: Resources {
                        memory_mb: PROBE_MEMORY_MB,
                        ..Resources::default()
                    },
                    no_new_privs: false,
                    network: NetworkPolicy::default(),
                    volumes: Vec::new(),
                },
                root: Box::new(move || Ok(root)),
            }
        };
        let memory = scratch.0.join("memory");
        let original = self.boot(boot()).await?;
        let captured = original
            .capture(&memory, Box::new(|| Ok(())), Afterwards::Hold)
            .await;
        end(original.as_ref()).await?;
        let stopped_ms = captured?.stopped_us / 1000;
        let began = Instant::now();
        let copy = self
            .restore(Restore {
                boot: boot(),
                memory,
            })
            .await?;
        let restored_ms = began.elapsed().as_millis();
        end(copy.as_ref()).await?;
        Ok(format!(
            "criu {version} captured a sandbox ({stopped_ms} ms at rest) and restored it ({restored_ms} ms)"
        ))
    }
}

async fn end(machine: &dyn Machine) -> Result<(), IsolationError> {
    machine.kill().await?;
    machine.exited().await;
    machine.dispose().await
}

fn told(error: &IsolationError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
