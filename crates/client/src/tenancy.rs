//! Keys, organisations, usage and the audit trail.

use async_recursion::async_recursion as boxed;
use cove_api::route::NDJSON;
use cove_api::tenancy::{
    AuditChain, AuditLine, AuditRecord, CreateKey, CreateOrg, Key, NewKey, Org, PatchOrg, Usage,
    UsageQuery,
};
use cove_api::{Page, PageQuery};
use http::{Method, header};

use crate::{Client, ClientError, JSON, Lines, Outgoing, segment, with_query};

impl Client {
    #[boxed]
    pub async fn keys(&self, query: &PageQuery) -> Result<Page<Key>, ClientError> {
        self.get(&with_query("/v1/keys", query)?).await
    }

    #[boxed]
    pub async fn create_key(&self, create: &CreateKey) -> Result<NewKey, ClientError> {
        self.post("/v1/keys", create).await
    }

    #[boxed]
    pub async fn revoke_key(&self, id: &str) -> Result<(), ClientError> {
        self.nothing(
            Method::DELETE,
            &format!("/v1/keys/{}", segment(id)),
            Outgoing::empty(),
        )
        .await
    }

    #[boxed]
    pub async fn orgs(&self, query: &PageQuery) -> Result<Page<Org>, ClientError> {
        self.get(&with_query("/v1/orgs", query)?).await
    }

    #[boxed]
    pub async fn create_org(&self, create: &CreateOrg) -> Result<Org, ClientError> {
        self.post("/v1/orgs", create).await
    }

    #[boxed]
    pub async fn patch_org(&self, id: &str, patch: &PatchOrg) -> Result<Org, ClientError> {
        let path = format!("/v1/orgs/{}", segment(id));
        self.json(Method::PATCH, &path, &JSON, Outgoing::json(patch)?)
            .await
    }

    #[boxed]
    pub async fn delete_org(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("/v1/orgs/{}", segment(id));
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    #[boxed]
    pub async fn usage(&self, query: &UsageQuery) -> Result<Usage, ClientError> {
        self.get(&with_query("/v1/usage", query)?).await
    }

    #[boxed]
    pub async fn audit(&self, query: &PageQuery) -> Result<Page<AuditRecord>, ClientError> {
        self.get(&with_query("/v1/audit", query)?).await
    }

    /// The whole chain of the caller's organisation, oldest first.
    #[boxed]
    pub async fn export_audit(&self) -> Result<Lines<AuditLine>, ClientError> {
        let headers = [(header::ACCEPT, NDJSON)];
        Ok(Lines::new(
            self.call(Method::GET, "/v1/audit", &headers, Outgoing::empty())
                .await?,
        ))
    }

    /// Has the server check chains: the caller's own, or a page of all for an operator.
    #[boxed]
    pub async fn audit_chain(&self, query: &PageQuery) -> Result<Page<AuditChain>, ClientError> {
        self.get(&with_query("/v1/audit/chain", query)?).await
    }
}
