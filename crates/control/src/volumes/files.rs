//! Files of a volume without a sandbox: calls to a guest that has nothing but the volume.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use cove_model::{HostId, VolumeId};
use cove_protocol::client::{Connect, Guest, Stream};
use cove_runner_api::VOLUME_FILES;
use cove_store::{Scope, VolumeRecord};

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::guest::GuestAction;
use crate::principal::Principal;

/// A volume's files, opened for one caller.
pub struct VolumeAccess {
    guest: Guest,
    volume: VolumeRecord,
}

impl VolumeAccess {
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    pub fn volume(&self) -> &VolumeRecord {
        &self.volume
    }

    /// A path of the volume as its guest knows it. It has no `..`, which would lead beside the volume.
    pub fn inside(path: &str) -> Result<String, ControlError> {
        if path.split('/').any(|part| part == "..") {
            return Err(ControlError::invalid("path: must not contain '..'"));
        }
        Ok(format!("{VOLUME_FILES}{path}"))
    }

    /// The opposite, for what the guest says.
    pub fn outside(path: &str) -> &str {
        match path.strip_prefix(VOLUME_FILES) {
            Some("") => "/",
            Some(rest) => rest,
            None => path,
        }
    }
}

/// The name audit records use, for those calls that change something.
fn audited_as(action: GuestAction) -> Option<&'static str> {
    match action {
        GuestAction::FileWrite => Some("volume.file_write"),
        GuestAction::FileRemove => Some("volume.file_remove"),
        GuestAction::FileMove => Some("volume.file_move"),
        GuestAction::FileMkdir => Some("volume.file_mkdir"),
        GuestAction::FileAttributes => Some("volume.file_chmod"),
        _ => None,
    }
}

struct ThroughRunner {
    control: Control,
    host: HostId,
    id: VolumeId,
}

#[async_trait]
impl Connect for ThroughRunner {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let runner = self.control.runner(&self.host).await;
        let told = |error| io::Error::other(ControlError::from(error));
        let stream = runner.map_err(told)?.connect_volume(&self.id).await;
        Ok(Box::new(stream.map_err(told)?))
    }
}

impl Control {
    /// Needs `use`. Calls that change something are audited.
    pub async fn volume_files(
        &self,
        principal: &Principal,
        which: &str,
        action: GuestAction,
    ) -> Result<VolumeAccess, ControlError> {
        let opened = self.open_volume(principal, which).await;
        let Some(name) = audited_as(action) else {
            return opened;
        };
        let opened = opened.and_then(|access| {
            if access.volume.read_only {
                return Err(ControlError::new(
                    ErrorCode::PermissionDenied,
                    format!("the volume '{}' is read-only", access.volume.name),
                ));
            }
            let operation = Operation::new(name, access.volume.id.as_str());
            let intent = Arc::new(self.intend(principal, operation, false)?);
            Ok(VolumeAccess {
                guest: access.guest.observed_by(intent),
                ..access
            })
        });
        opened.inspect_err(|error| {
            self.note_refusal(principal, Operation::new(name, which), error);
        })
    }

    async fn open_volume(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<VolumeAccess, ControlError> {
        principal.require(Scope::Use)?;
        let volume = self.find_volume(principal, which).await?;
        let guest = Guest::new(Arc::new(ThroughRunner {
            control: self.clone(),
            host: volume.host.clone(),
            id: volume.id.clone(),
        }));
        Ok(VolumeAccess { guest, volume })
    }
}
