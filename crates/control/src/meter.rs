//! What was used, exactly, across restarts of everything.

use cove_store::{Page, PageRequest, Period, SandboxUsage, Usage};

use crate::Control;
use crate::error::ControlError;
use crate::principal::Principal;

impl Control {
    /// Needs `read`. Of the whole organisation.
    pub async fn usage(
        &self,
        principal: &Principal,
        period: Period,
    ) -> Result<Usage, ControlError> {
        let _ = (principal, period);
        todo!()
    }

    /// Needs `read`. Also of sandboxes that are gone.
    pub async fn usage_by_sandbox(
        &self,
        principal: &Principal,
        period: Period,
        page: &PageRequest,
    ) -> Result<Page<SandboxUsage>, ControlError> {
        let _ = (principal, period, page);
        todo!()
    }

    /// Needs `read`. Over its whole life so far.
    pub async fn sandbox_usage(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<Usage, ControlError> {
        let _ = (principal, which);
        todo!()
    }
}
