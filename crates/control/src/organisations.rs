//! Organisations, the unit of tenancy.

use cove_model::OrgId;
use cove_store::{Organisation, Page, PageRequest, Quota};

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

impl Control {
    /// Operators only.
    pub async fn create_organisation(
        &self,
        principal: &Principal,
        name: &str,
        quota: Option<Quota>,
    ) -> Result<Organisation, ControlError> {
        let _ = (principal, name, quota);
        todo!()
    }

    /// Operators only.
    pub async fn list_organisations(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<Organisation>, ControlError> {
        let _ = (principal, page);
        todo!()
    }

    /// The caller's own (needs `read`), or by id any other (operators only).
    pub async fn organisation(
        &self,
        principal: &Principal,
        id: Option<&OrgId>,
    ) -> Result<Organisation, ControlError> {
        let _ = (principal, id);
        todo!()
    }

    /// Operators only.
    pub async fn set_quota(
        &self,
        principal: &Principal,
        id: &OrgId,
        quota: Quota,
    ) -> Result<Organisation, ControlError> {
        let _ = (principal, id, quota);
        todo!()
    }
}
