//! Identity tokens of sandboxes, and the documents by which others check them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Body of `POST /v1/sandboxes/{id}/identity`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateIdentityToken {
    /// Audience of the token, such as `sts.amazonaws.com`: the `aud` claim.
    #[schemars(length(min = 1, max = cove_limits::AUDIENCE_MAX))]
    pub audience: String,
    /// How long the token is valid. Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::IDENTITY_TOKEN_MAX_S))]
    pub expires_s: Option<u64>,
}

/// A signed token that identifies a sandbox: a JWT of OpenID Connect, signed with RS256.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityToken {
    /// The token (a JWT).
    pub token: String,
    /// Time when it expires.
    pub expires_at: Timestamp,
    /// The `iss` claim. Its keys are at `ISSUER/.well-known/jwks.json`.
    pub issuer: String,
    /// The `sub` claim: the SPIFFE id of the sandbox.
    pub subject: String,
    /// Audience of the token.
    pub audience: String,
}

/// Body of `POST /v1/identity/rotate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RotateIdentityKeys {
    /// Sign with the new key now and withdraw all others: for keys that somebody else may have.
    /// Tokens they signed are refused from then on. Default: false; the new key signs after an hour
    /// and tokens stay valid.
    pub at_once: bool,
}

/// Answer of `GET /.well-known/openid-configuration`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenIdConfiguration {
    /// URL of the issuer.
    pub issuer: String,
    /// URL of the public keys.
    pub jwks_uri: String,
    /// Always `id_token`.
    pub response_types_supported: Vec<String>,
    /// Always `public`.
    pub subject_types_supported: Vec<String>,
    /// Signature algorithms.
    pub id_token_signing_alg_values_supported: Vec<String>,
    /// Claims that tokens carry.
    pub claims_supported: Vec<String>,
}

/// Answer of `GET /.well-known/jwks.json`: the public keys that check tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityKeys {
    /// Public keys that sign tokens, or signed them recently.
    pub keys: Vec<IdentityKey>,
}

/// A public key in the format of RFC 7517.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IdentityKey {
    /// Key type.
    pub kty: String,
    /// Always `sig`.
    #[serde(rename = "use")]
    pub usage: String,
    /// Signature algorithm.
    pub alg: String,
    /// Id of the key.
    pub kid: String,
    /// Modulus, base64url.
    pub n: String,
    /// Exponent, base64url.
    pub e: String,
}
