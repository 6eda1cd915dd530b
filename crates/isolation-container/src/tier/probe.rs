//! Whether memory can be captured and restored on this host, found out by doing it: a sandbox with
//! nothing but the guest in it is booted, captured, ended and brought back.

use std::time::Instant;

use cove_isolation::{Afterwards, Boot, Isolation, IsolationError, MachineSpec, Restore, Root};
use cove_model::{NetworkPolicy, Resources, SandboxId};
use cove_pool::Disk;

use cove_seats::blocking;
use cove_seats::probe::{Scratch, end};

use super::ContainerTier;

const PROBE_MEMORY_MB: u64 = 64;

impl ContainerTier {
    /// What captures memory here, or why nothing can. The first caller waits for a real capture and
    /// restore; later ones get its answer for a while.
    pub async fn probe_memory(&self) -> Result<String, String> {
        let tier = self.clone();
        let probe = async move { tier.try_memory().await };
        self.shared.probed.get(probe).await
    }

    async fn try_memory(&self) -> Result<String, IsolationError> {
        let version = self.shared.capturer.program()?.version;
        let dir = self.shared.seats.host.pool_dir.join("memory-probe");
        let scratch = blocking(move || {
            Scratch::make(dir, &["image", "volume", "memory"])
                .map_err(IsolationError::failed("make a scratch directory"))
        })
        .await?;
        let tried = self.capture_and_restore(&scratch).await;
        // Removing it may wait.
        blocking(move || {
            drop(scratch);
            Ok(())
        })
        .await?;
        let (stopped_ms, restored_ms) = tried?;
        Ok(format!(
            "criu {version} captured a sandbox ({stopped_ms} ms at rest) and restored it ({restored_ms} ms)"
        ))
    }

    /// How many milliseconds a sandbox stood still for its capture, and its restore took.
    async fn capture_and_restore(&self, scratch: &Scratch) -> Result<(u64, u128), IsolationError> {
        let boot = || {
            let root = Root {
                image: scratch.0.join("image"),
                disk: Disk::at(scratch.0.join("volume")),
            };
            Boot {
                machine: MachineSpec {
                    id: SandboxId::random(),
                    owner: None,
                    hostname: "probe".into(),
                    limits: Resources {
                        memory_mb: PROBE_MEMORY_MB,
                        ..Resources::default()
                    },
                    no_new_privs: false,
                    accel: None,
                    network: NetworkPolicy::default(),
                    volumes: Vec::new(),
                },
                root: Box::new(move || Ok(root)),
                turn: None,
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
        Ok((stopped_ms, restored_ms))
    }
}
