//! Keys, organisations, usage and the audit trail.

use cove_api::route::NDJSON;
use cove_api::tenancy::{
    AuditChain, AuditLine, AuditRecord, CreateKey, CreateOrg, Key, NewKey, Org, PatchOrg, Usage,
    UsageQuery,
};
use cove_api::{Page, PageQuery};
use http::{Method, header};

use crate::{Client, ClientError, JSON, Lines, Outgoing, segment, with_query};

impl Client {
    pub async fn keys(&self, query: &PageQuery) -> Result<Page<Key>, ClientError> {
        self.get(&with_query("/v1/keys", query)?).await
    }

    pub async fn create_key(&self, create: &CreateKey) -> Result<NewKey, ClientError> {
        self.post("/v1/keys", create).await
    }

    pub async fn revoke_key(&self, id: &str) -> Result<(), ClientError> {
        self.nothing(
            Method::DELETE,
            &format!("/v1/keys/{}", segment(id)),
            Outgoing::empty(),
        )
        .await
    }

    pub async fn orgs(&self, query: &PageQuery) -> Result<Page<Org>, ClientError> {
        self.get(&with_query("/v1/orgs", query)?).await
    }

    pub async fn create_org(&self, create: &CreateOrg) -> Result<Org, ClientError> {
        self.post("/v1/orgs", create).await
    }

    pub async fn patch_org(&self, id: &str, patch: &PatchOrg) -> Result<Org, ClientError> {
        let path = format!("/v1/orgs/{}", segment(id));
        self.json(Method::PATCH, &path, &JSON, Outgoing::json(patch)?)
            .await
    }

    pub async fn usage(&self, query: &UsageQuery) -> Result<Usage, ClientError> {
        self.get(&with_query("/v1/usage", query)?).await
    }

    pub async fn audit(&self, query: &PageQuery) -> Result<Page<AuditRecord>, ClientError> {
        self.get(&with_query("/v1/audit", query)?).await
    }

    /// The whole chain of the caller's organisation, oldest first.
    pub async fn export_audit(&self) -> Result<Lines<AuditLine>, ClientError> {
        let headers = [(header::ACCEPT, NDJSON)];
        Ok(Lines::new(
            self.call(Method::GET, "/v1/audit", &headers, Outgoing::empty())
                .await?,
        ))
    }

    /// Has the server check chains: the caller's own, or a page of all for an operator.
    pub async fn audit_chain(&self, query: &PageQuery) -> Result<Page<AuditChain>, ClientError> {
        self.get(&with_query("/v1/audit/chain", query)?).await
    }
}
