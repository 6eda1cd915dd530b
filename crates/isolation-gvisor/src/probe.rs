//! Whether runsc works on this host, found out by running it: a machine with nothing but the guest in it is
//! booted and ended.

use std::time::Instant;

use cove_isolation::{Boot, IsolationError, MachineSpec, Root};
use cove_model::{NetworkPolicy, Resources, SandboxId};
use cove_pool::Disk;
use cove_seats::blocking;
use cove_seats::probe::{Scratch, end};

use crate::tier::GvisorTier;

const PROBE_MEMORY_MB: u64 = 128;

impl GvisorTier {
    /// What runs sandboxes here, or why nothing can. The first caller waits for a real boot; later ones get its
    /// answer for a while.
    pub async fn probe(&self) -> Result<String, String> {
        let tier = self.clone();
        let probe = async move { tier.try_boot().await };
        self.probed.get(probe).await
    }

    async fn try_boot(&self) -> Result<String, IsolationError> {
        let program = self.program()?.display();
        let dir = self.seats.host.pool_dir.join("gvisor-probe");
        let scratch = blocking(move || {
            Scratch::make(dir, &["image", "volume"])
                .map_err(IsolationError::failed("make a scratch directory"))
        })
        .await?;
        let tried = self.boot_in(&scratch).await;
        // Removing it may wait.
        blocking(move || {
            drop(scratch);
            Ok(())
        })
        .await?;
        let booted_ms = tried?;
        Ok(format!(
            "{program} (systrap) booted a sandbox in {booted_ms} ms"
        ))
    }

    /// Boots a machine and ends it; how many milliseconds the boot took.
    async fn boot_in(&self, scratch: &Scratch) -> Result<u128, IsolationError> {
        let root = Root {
            image: scratch.0.join("image"),
            disk: Disk::at(scratch.0.join("volume")),
        };
        let boot = Boot {
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
        };
        let began = Instant::now();
        let machine = self.start(boot).await?;
        let booted_ms = began.elapsed().as_millis();
        end(&machine).await?;
        Ok(booted_ms)
    }
}
