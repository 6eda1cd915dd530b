//! Approvals.

use cove_api::Page;
use cove_api::approval::{Approval, DecideApproval};

use crate::{Client, ClientError, Outgoing, segment};

impl Client {
    /// Requests that wait for an approval, and what was decided; the oldest first.
    pub async fn approvals(&self) -> Result<Page<Approval>, ClientError> {
        self.get("/v1/approvals").await
    }

    /// In force when this returns.
    pub async fn decide_approval(
        &self,
        id: &str,
        decide: &DecideApproval,
    ) -> Result<(), ClientError> {
        let path = format!("/v1/approvals/{}", segment(id));
        self.nothing(http::Method::POST, &path, Outgoing::json(decide)?)
            .await
    }
}
