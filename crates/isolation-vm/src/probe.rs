//! Whether KVM boots machines on this host, found out by booting one.

use std::time::Instant;

use cove_isolation::{Boot, IsolationError, MachineSpec, Root};
use cove_model::{Accel, NetworkPolicy, Resources, SandboxId};
use cove_pool::Disk;
use cove_seats::blocking;
use cove_seats::probe::{Scratch, end};

use crate::qemu::MEMORY_LEAST_MB;
use crate::tier::VmTier;

const PROBE_DISK_MB: u64 = 64;

impl VmTier {
    /// Boots a machine with KVM and ends it; what to say of it.
    pub(crate) async fn try_kvm(&self) -> Result<String, IsolationError> {
        let dir = self.seats.host.pool_dir.join("vm-probe");
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
        Ok(format!("a machine booted in {} ms", tried?))
    }

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
                    memory_mb: MEMORY_LEAST_MB,
                    disk_mb: PROBE_DISK_MB,
                    ..Resources::default()
                },
                no_new_privs: false,
                accel: Some(Accel::Kvm),
                network: NetworkPolicy::default(),
                volumes: Vec::new(),
            },
            root: Box::new(move || Ok(root)),
            turn: None,
        };
        let programs = self.programs()?.clone();
        let began = Instant::now();
        let machine = self.launch(boot, programs, self.first(), None).await?;
        let booted_ms = began.elapsed().as_millis();
        end(&machine).await?;
        Ok(booted_ms)
    }
}
