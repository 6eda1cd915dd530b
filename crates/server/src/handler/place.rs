//! Whose files a call is about: a sandbox's or a volume's. Both are reached through a guest.

use cove_api::file::FileInfo;
use cove_control::{Guest, GuestAccess, GuestAction, GuestError, VolumeAccess};
use cove_protocol::message;

use super::files::{path, path_failure};
use crate::convert;
use crate::extract::Caller;
use crate::failure::Failure;
use crate::state::App;

/// By id or name.
pub enum Place {
    Sandbox(String),
    Volume(String),
}

/// A place, opened for one caller.
pub enum Reached {
    Sandbox(Box<GuestAccess>),
    Volume(Box<VolumeAccess>),
}

impl Place {
    pub async fn reach(
        &self,
        app: &App,
        caller: &Caller,
        action: GuestAction,
    ) -> Result<Reached, Failure> {
        let (control, principal) = (&app.control, &caller.principal);
        Ok(match self {
            Self::Sandbox(id) => {
                Reached::Sandbox(Box::new(control.guest(principal, id, action).await?))
            }
            Self::Volume(id) => {
                Reached::Volume(Box::new(control.volume_files(principal, id, action).await?))
            }
        })
    }

    /// A path that a caller gave, as the guest there knows it.
    pub fn path(&self, text: String) -> Result<String, Failure> {
        let text = path(text)?;
        match self {
            Self::Sandbox(_) => Ok(text),
            Self::Volume(_) => Ok(VolumeAccess::inside(&text)?),
        }
    }
}

impl Reached {
    pub fn guest(&self) -> &Guest {
        match self {
            Self::Sandbox(access) => access.guest(),
            Self::Volume(access) => access.guest(),
        }
    }

    /// Whose rights to act with. A volume has no users: what is not said is root's.
    pub fn user(&self, asked: Option<String>) -> Result<String, Failure> {
        let default = match self {
            Self::Sandbox(access) => access.default_user(),
            Self::Volume(_) => "",
        };
        super::files::user_or(default, asked)
    }

    /// Refuses to change what only links of a volume lead to, and what is not in it.
    pub async fn check_inside(&self, path: &str) -> Result<(), Failure> {
        match self {
            Self::Sandbox(_) => Ok(()),
            Self::Volume(access) => Ok(access.check_inside(path).await?),
        }
    }

    /// The same for a call that is about the name itself and does not follow it.
    pub async fn check_name_inside(&self, path: &str) -> Result<(), Failure> {
        match path.trim_end_matches('/').rsplit_once('/') {
            Some((above, _)) => self.check_inside(above).await,
            None => Ok(()),
        }
    }

    pub fn shown(&self, file: message::FileInfo) -> FileInfo {
        let mut shown = convert::file(file);
        if let Self::Volume(_) = self {
            shown.path = VolumeAccess::outside(&shown.path).to_owned();
            if shown.path == "/" {
                shown.name = "/".to_owned();
            }
        }
        shown
    }

    pub fn failure(&self, error: GuestError) -> Failure {
        self.told(path_failure(error))
    }

    pub fn told(&self, mut failure: Failure) -> Failure {
        if let Self::Volume(_) = self {
            // The guest names paths as it knows them.
            failure.message = VolumeAccess::outside(&failure.message).to_owned();
        }
        failure
    }
}
