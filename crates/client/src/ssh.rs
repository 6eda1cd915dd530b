//! Ways in over SSH.

use async_recursion::async_recursion as boxed;
use cove_api::ssh::{AddSshKey, CreateSshToken, SshAccess, SshHost, SshKey};
use cove_api::{Page, PageQuery};
use http::Method;

use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError, Outgoing, segment, with_query};

impl Client {
    #[boxed]
    pub async fn ssh_host(&self) -> Result<SshHost, ClientError> {
        self.get("/v1/ssh").await
    }

    /// A token that lets its holder log in to this sandbox.
    #[boxed]
    pub async fn ssh_token(
        &self,
        id: &str,
        create: &CreateSshToken,
    ) -> Result<SshAccess, ClientError> {
        self.post(&sandbox_path(id, "/ssh"), create).await
    }

    /// Makes every token of the sandbox worthless.
    #[boxed]
    pub async fn revoke_ssh_tokens(&self, id: &str) -> Result<(), ClientError> {
        let path = sandbox_path(id, "/ssh");
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    #[boxed]
    pub async fn ssh_keys(&self, query: &PageQuery) -> Result<Page<SshKey>, ClientError> {
        self.get(&with_query("/v1/ssh-keys", query)?).await
    }

    #[boxed]
    pub async fn add_ssh_key(&self, add: &AddSshKey) -> Result<SshKey, ClientError> {
        self.post("/v1/ssh-keys", add).await
    }

    #[boxed]
    pub async fn remove_ssh_key(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("/v1/ssh-keys/{}", segment(id));
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }
}
