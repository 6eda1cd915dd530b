//! Files of a volume without a sandbox: calls to a guest that has nothing but the volume.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use cove_model::{HostId, OrgId, VolumeId};
use cove_protocol::client::{Connect, Guest, GuestError, Stream};
use cove_protocol::message::{FileType, PathRequest};
use cove_runner_api::VOLUME_FILES;
use cove_store::{Scope, VolumeRecord};

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::guest::GuestAction;
use crate::principal::Principal;

/// Links that one path may lead over, and parts that it may have with them.
const LINKS_MAX: usize = 40;
const PARTS_MAX: usize = 1024;

/// A volume's files, opened for one caller.
pub struct VolumeAccess {
    guest: Guest,
    /// The same guest, for looks that are no call of the caller's and stay out of the audit trail.
    looks: Guest,
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

    /// Refuses to change what is not in the volume: links may lead out of it, into the tree of the guest itself, where
    /// the change would be gone with the guest.
    pub async fn check_inside(&self, path: &str) -> Result<(), ControlError> {
        let mut links = 0;
        let mut reached: Vec<String> = Vec::new();
        let mut ahead: Vec<String> = parts_of(Self::outside(path));
        while let Some(part) = ahead.pop() {
            if part == ".." {
                if reached.pop().is_none() {
                    return Err(leads_out(path));
                }
                continue;
            }
            reached.push(part);
            let request = PathRequest {
                path: format!("{VOLUME_FILES}/{}", reached.join("/")),
                user: String::new(),
                follow: false,
            };
            let found = match self.looks.stat(request).await {
                Ok(found) => found,
                // What is not there is made inside, or refused by the call itself.
                Err(GuestError::Refused { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if found.r#type() != FileType::Symlink {
                continue;
            }
            links += 1;
            let target = &found.symlink_target;
            if target.starts_with('/') || links > LINKS_MAX {
                return Err(leads_out(path));
            }
            reached.pop();
            ahead.extend(parts_of(target));
            if ahead.len() > PARTS_MAX {
                return Err(leads_out(path));
            }
        }
        Ok(())
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

/// Of a path, the first one last.
fn parts_of(path: &str) -> Vec<String> {
    let parts = path.rsplit('/');
    let parts = parts.filter(|part| !part.is_empty() && *part != ".");
    parts.map(str::to_owned).collect()
}

fn leads_out(path: &str) -> ControlError {
    let path = VolumeAccess::outside(path);
    ControlError::invalid(format!("path: links in {path} point outside the volume"))
        .hint("only links with relative targets inside the volume can be written through")
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
    org: OrgId,
    host: HostId,
    id: VolumeId,
}

#[async_trait]
impl Connect for ThroughRunner {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let place = self.control.relayed(&self.host, &self.org);
        let place = place.map_err(io::Error::other)?;
        let runner = self.control.runner(&self.host).await;
        let told = |error| io::Error::other(ControlError::from(error));
        let stream = runner.map_err(told)?.connect_volume(&self.id).await;
        Ok(place.hold(stream.map_err(told)?))
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
        let guest = || {
            Guest::new(Arc::new(ThroughRunner {
                control: self.clone(),
                org: volume.org.clone(),
                host: volume.host.clone(),
                id: volume.id.clone(),
            }))
        };
        Ok(VolumeAccess {
            guest: guest(),
            looks: guest(),
            volume,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_from_the_back_without_empty_ones() {
        assert_eq!(parts_of("/a/./b//c/"), ["c", "b", "a"]);
        assert_eq!(parts_of("../x"), ["x", ".."]);
        assert!(parts_of("/").is_empty());
    }
}
