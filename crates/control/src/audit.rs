//! Who did what: a record for every call that changes something, refused ones too.

use cove_store::{AuditRecord, Page, PageRequest};

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

impl Control {
    /// Needs `admin`. Newest first.
    pub async fn audit(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<AuditRecord>, ControlError> {
        let _ = (principal, page);
        todo!()
    }
}
