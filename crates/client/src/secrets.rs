//! Secrets.

use cove_api::secret::{RemovedSecret, RotatedSecretKeys, Secret, SecretUser, SetSecret};
use cove_api::{Page, PageQuery};
use http::Method;

use crate::{Client, ClientError, Outgoing, segment, with_query};

impl Client {
    pub async fn secrets(&self, query: &PageQuery) -> Result<Page<Secret>, ClientError> {
        self.get(&with_query("/v1/secrets", query)?).await
    }

    /// The first version of a secret, or its next one.
    pub async fn set_secret(&self, set: &SetSecret) -> Result<Secret, ClientError> {
        self.post("/v1/secrets", set).await
    }

    pub async fn remove_secret(&self, name: &str) -> Result<RemovedSecret, ClientError> {
        let path = format!("/v1/secrets/{}", segment(name));
        self.json(Method::DELETE, &path, &[], Outgoing::empty())
            .await
    }

    /// Which sandboxes used it, the latest first.
    pub async fn secret_uses(&self, name: &str) -> Result<Page<SecretUser>, ClientError> {
        self.get(&format!("/v1/secrets/{}/uses", segment(name)))
            .await
    }

    /// Wraps all organisations' keys with the newest host key; the operator's alone.
    pub async fn rotate_secret_keys(&self) -> Result<RotatedSecretKeys, ClientError> {
        self.json(
            Method::POST,
            "/v1/secret-keys/rotate",
            &[],
            Outgoing::empty(),
        )
        .await
    }
}
