//! Identity tokens and the issuer's keys.

use async_recursion::async_recursion as boxed;
use cove_api::identity::{
    CreateIdentityToken, IdentityKeys, IdentityToken, OpenIdConfiguration, RotateIdentityKeys,
};

use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError};

impl Client {
    /// A token that says which sandbox its holder is.
    #[boxed]
    pub async fn identity_token(
        &self,
        id: &str,
        create: &CreateIdentityToken,
    ) -> Result<IdentityToken, ClientError> {
        self.post(&sandbox_path(id, "/identity"), create).await
    }

    #[boxed]
    pub async fn identity_issuer(&self) -> Result<OpenIdConfiguration, ClientError> {
        self.get("/.well-known/openid-configuration").await
    }

    #[boxed]
    pub async fn identity_keys(&self) -> Result<IdentityKeys, ClientError> {
        self.get("/.well-known/jwks.json").await
    }

    /// Replaces the key that signs.
    #[boxed]
    pub async fn rotate_identity_keys(
        &self,
        rotate: &RotateIdentityKeys,
    ) -> Result<IdentityKeys, ClientError> {
        self.post("/v1/identity/rotate", rotate).await
    }
}
