//! Where a sandbox's first state comes from: an image, or a snapshot with its image.

use std::path::PathBuf;

use cove_image::{Image, ImageHold};
use cove_isolation::BootTurn;
use cove_model::{SandboxSpec, SnapshotId};
use cove_pool::DiskSource;
use cove_runner_api::{FromSnapshot, RunnerError};

use crate::engine::Inner;
use crate::error::from_isolation;
use crate::snapshots::{Snapshot, SnapshotHold};

/// What a create begins from; keeps it from being removed meanwhile.
pub struct Origin {
    pub image: Image,
    _image: ImageHold,
    pub snapshot: Option<SnapshotHold>,
    /// Where the memory to go on with lies.
    memory: Option<PathBuf>,
}

/// How a machine is brought to life.
#[derive(Debug, Clone)]
pub struct Starting {
    pub disk: DiskSource,
    pub memory: Option<PathBuf>,
    /// The memory limit to begin with, when it had grown above the sandbox's own.
    pub grown_mb: Option<u64>,
    /// To boot, if it was taken before.
    pub turn: Option<BootTurn>,
}

impl Starting {
    /// A boot from the disk it has.
    pub fn own() -> Self {
        Self {
            disk: DiskSource::Own,
            memory: None,
            grown_mb: None,
            turn: None,
        }
    }
}

impl Origin {
    /// The snapshot that shows as its parent; the processes that came with an image do not.
    pub fn parent(&self) -> Option<SnapshotId> {
        self.snapshot
            .as_ref()
            .map(|hold| &hold.snapshot.record)
            .filter(|record| record.template_of.is_none())
            .map(|record| record.id.clone())
    }

    pub fn starting(&self) -> Starting {
        let Some(hold) = &self.snapshot else {
            return Starting::own();
        };
        Starting {
            disk: DiskSource::CopyOf(hold.snapshot.volume()),
            memory: self.memory.clone(),
            grown_mb: None,
            turn: None,
        }
    }
}

impl Inner {
    pub(crate) async fn origin(
        &self,
        spec: &SandboxSpec,
        from: Option<FromSnapshot>,
    ) -> Result<Origin, RunnerError> {
        let Some(from) = from else {
            let (image, held) = self.hold_image(&spec.image)?;
            let mut origin = Origin {
                _image: held,
                snapshot: None,
                memory: None,
                image,
            };
            // An image with processes of its own starts them where they were, if this host can.
            if let Some(template) = self.snapshots.template_of(&origin.image.id)
                && let Ok(Some(memory)) = self.memory_of(&template, &spec.isolation)
            {
                origin.snapshot = Some(self.snapshots.hold(&template.record.id).await?);
                origin.memory = Some(memory);
            }
            return Ok(origin);
        };
        let hold = self.snapshots.hold(&from.snapshot).await?;
        let memory = match from.memory {
            false => None,
            true => Some(
                self.memory_of(&hold.snapshot, &spec.isolation)?
                    .ok_or_else(|| RunnerError::Invalid {
                        message: format!(
                            "snapshot {} has no memory; start from its disk instead",
                            from.snapshot
                        ),
                    })?,
            ),
        };
        let (image, held) = self.hold_image(hold.snapshot.record.image.as_str())?;
        Ok(Origin {
            image,
            _image: held,
            snapshot: Some(hold),
            memory,
        })
    }

    /// The directory of a snapshot's memory, provided that it has one and `tier` can restore it here.
    pub(crate) fn memory_of(
        &self,
        snapshot: &Snapshot,
        tier: &str,
    ) -> Result<Option<PathBuf>, RunnerError> {
        let Some(memory) = &snapshot.record.memory else {
            return Ok(None);
        };
        self.tiers.fits(&memory.needs).map_err(from_isolation)?;
        if memory.needs.tier != tier {
            let message = format!(
                "it was captured by the tier '{}', and the sandbox is one of '{tier}'",
                memory.needs.tier
            );
            return Err(RunnerError::Unfit { message });
        }
        Ok(Some(self.pool.disk(&snapshot.volume()).memory()))
    }
}
