//! The two public documents that verifiers read.

use serde::{Deserialize, Serialize};

use crate::Issuer;

/// Where the keys are, after the issuer's URL.
const JWKS_PATH: &str = "/.well-known/jwks.json";

/// `/.well-known/openid-configuration`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    pub issuer: String,
    pub jwks_uri: String,
    pub response_types_supported: Vec<String>,
    pub subject_types_supported: Vec<String>,
    pub id_token_signing_alg_values_supported: Vec<String>,
    pub claims_supported: Vec<String>,
}

impl Discovery {
    pub fn of(issuer: &Issuer) -> Self {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        Self {
            issuer: issuer.url().to_owned(),
            jwks_uri: format!("{}{JWKS_PATH}", issuer.url()),
            response_types_supported: list(&["id_token"]),
            subject_types_supported: list(&["public"]),
            id_token_signing_alg_values_supported: list(&["RS256"]),
            claims_supported: list(&["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "cove"]),
        }
    }
}

/// `/.well-known/jwks.json`: public keys only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jwks {
    pub keys: Vec<Jwk>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jwk {
    pub kty: String,
    #[serde(rename = "use")]
    pub usage: String,
    pub alg: String,
    pub kid: String,
    pub n: String,
    pub e: String,
}
