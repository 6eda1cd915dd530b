//! Images, and which organisation may see which.

use cove_runner::{HostReport, ImageJob, ImageSource, ImageView};

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

impl Control {
    /// Needs `read`. Those everybody may use and those the caller's organisation fetched.
    pub async fn list_images(&self, principal: &Principal) -> Result<Vec<ImageView>, ControlError> {
        let _ = principal;
        todo!()
    }

    /// Needs `read`. By id or name.
    pub async fn get_image(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<ImageView, ControlError> {
        let _ = (principal, which);
        todo!()
    }

    /// Needs `manage`; a path on the host needs an operator. Answers at once with a job to poll.
    pub async fn add_image(
        &self,
        principal: &Principal,
        source: ImageSource,
    ) -> Result<ImageJob, ControlError> {
        let _ = (principal, source);
        todo!()
    }

    /// Needs `read`.
    pub async fn image_job(
        &self,
        principal: &Principal,
        id: &str,
    ) -> Result<ImageJob, ControlError> {
        let _ = (principal, id);
        todo!()
    }

    /// Needs `manage`. An image others may use too stays on the host.
    pub async fn remove_image(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let _ = (principal, which);
        todo!()
    }

    /// Operators only: what the host has, has promised and lacks.
    pub async fn host(&self, principal: &Principal) -> Result<HostReport, ControlError> {
        let _ = principal;
        todo!()
    }
}
