//! SSH: where the gateway is, tokens for one sandbox, and public keys of an organisation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Body of `POST /v1/sandboxes/{id}/ssh`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateSshToken {
    /// How long the token is valid, in seconds; default: an hour. Its sessions end with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SSH_TOKEN_MAX_S))]
    pub expires_s: Option<u64>,
    /// How long the token can be used to log in, in seconds, if that is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SSH_TOKEN_MAX_S))]
    pub login_s: Option<u64>,
}

/// Access to one sandbox over SSH. The token is the password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SshAccess {
    /// The token, to be used as the password.
    pub token: String,
    /// Time when it expires.
    pub expires_at: Timestamp,
    /// User name for the login; the prefix `USER+` selects the user in the sandbox.
    pub user: String,
    /// Host name of the SSH server.
    pub host: String,
    /// Port of the SSH server.
    pub port: u16,
    /// Command line for a terminal.
    pub command: String,
    /// Public host key of the SSH server.
    pub host_key: String,
    /// Fingerprint of the host key.
    pub fingerprint: String,
    /// A line for `known_hosts`.
    pub known_hosts: String,
}

/// Answer of `GET /v1/ssh`: address and host key of the gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SshHost {
    /// Whether this server has a gateway; the rest is absent without one.
    pub available: bool,
    /// Host name of the SSH server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Port of the SSH server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Public host key of the SSH server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    /// Fingerprint of the host key.
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
    /// Name of the key.
    #[schemars(length(min = 1, max = cove_limits::TITLE_MAX))]
    pub name: String,
    /// The one line of a `.pub` file: ed25519 or ECDSA.
    #[schemars(length(min = 1, max = cove_limits::SSH_PUBLIC_KEY_MAX))]
    pub public_key: String,
    /// Seconds until it expires; absent: when it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::SECONDS_MAX))]
    pub expires_in_s: Option<u64>,
}

/// A public key for the organisation's sandboxes over SSH.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SshKey {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// The public key, in the format of OpenSSH.
    pub public_key: String,
    /// Fingerprint of the key.
    pub fingerprint: String,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time when it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}
