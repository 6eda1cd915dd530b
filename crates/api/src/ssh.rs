//! SSH: where the gateway is, tokens for one sandbox, and public keys of an organisation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Body of `POST /v1/sandboxes/{id}/ssh`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateSshToken {
    /// How long the token is good; default: an hour. Sessions it opened end with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SSH_TOKEN_MAX_S))]
    pub expires_s: Option<u64>,
    /// How long the token lets its holder log in, when that is less than it is good for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SSH_TOKEN_MAX_S))]
    pub login_s: Option<u64>,
}

/// A way in for one sandbox. The token is the password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SshAccess {
    pub token: String,
    pub expires_at: Timestamp,
    /// The user name to log in with; `USER+` before it chooses the user inside.
    pub user: String,
    pub host: String,
    pub port: u16,
    /// For a terminal.
    pub command: String,
    pub host_key: String,
    pub fingerprint: String,
    /// A line for `known_hosts`.
    pub known_hosts: String,
}

/// Answer of `GET /v1/ssh`: where the gateway is and how to know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SshHost {
    /// Whether this server has a gateway; the rest is absent without one.
    pub available: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// A line for `known_hosts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_hosts: Option<String>,
}

/// Body of `POST /v1/ssh-keys`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddSshKey {
    #[schemars(length(min = 1, max = cove_limits::TITLE_MAX))]
    pub name: String,
    /// The one line of a `.pub` file: ed25519 or ECDSA.
    #[schemars(length(min = 1, max = cove_limits::SSH_PUBLIC_KEY_MAX))]
    pub public_key: String,
    /// Absent: until removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub expires_in_s: Option<u64>,
}

/// A public key whose holder may use the organisation's sandboxes over SSH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SshKey {
    pub id: String,
    pub name: String,
    pub public_key: String,
    pub fingerprint: String,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}
