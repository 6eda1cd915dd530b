//! Secrets: kept sealed, bound to hosts and to one way of use, never shown.

pub use cove_model::secret::{BudgetScope, BudgetUnit, SecretLimit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Body of `POST /v1/secrets`: the first version of a secret, or its next one.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetSecret {
    /// Name, unique in the organisation.
    #[schemars(length(min = 1, max = cove_limits::SECRET_NAME_MAX))]
    pub name: String,
    /// Value: printable ASCII. No call returns it.
    #[schemars(length(min = cove_limits::SECRET_VALUE_MIN, max = cove_limits::SECRET_VALUE_MAX))]
    pub value: String,
    /// Hosts that it may be sent to: `api.example.com`, or `git.example.com:8443`. None for the use
    /// `exposed`.
    #[serde(default)]
    #[schemars(length(max = cove_limits::SECRET_HOSTS_MAX))]
    pub hosts: Vec<String>,
    /// Where in a request it belongs: `bearer`, `basic`, `header:NAME`, `query:NAME`, `form:NAME`, `totp:PLACE:NAME`, `sigv4:REGION/SERVICE` or `exposed`.
    #[serde(rename = "use", default = "bearer")]
    #[schemars(length(min = 1, max = cove_limits::SECRET_USE_MAX))]
    pub usage: String,
    /// Each use needs an approval.
    #[serde(default)]
    pub ask: bool,
    /// What requests that use it may use in all, one limit for each unit and scope.
    #[serde(default)]
    #[schemars(length(max = cove_limits::SECRET_LIMITS_MAX))]
    pub limits: Vec<SecretLimit>,
}

impl std::fmt::Debug for SetSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SetSecret")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn bearer() -> String {
    "bearer".to_owned()
}

/// A secret without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Secret {
    /// Id.
    pub id: String,
    /// Name, unique in the organisation.
    pub name: String,
    /// Version number; increases by one whenever it is set.
    pub version: u64,
    /// Hosts that it may be sent to.
    pub hosts: Vec<String>,
    /// Place in the request: `bearer`, `basic`, `header:NAME`, `query:NAME`, `form:NAME`, `totp:PLACE:NAME`, `sigv4:REGION/SERVICE` or `exposed`.
    #[serde(rename = "use")]
    pub usage: String,
    /// Each use needs an approval.
    #[serde(default)]
    pub ask: bool,
    /// What requests that use it may use in all, and what was used.
    #[serde(default)]
    pub budgets: Vec<SecretBudget>,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time when this version was set.
    pub updated_at: Timestamp,
    /// Time of the last use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
    /// Requests that it was put into.
    pub uses: u64,
    /// Only in the answer of setting it: ids of hosts that could not be reached. The server sends them the change again
    /// until they answer; until then the previous version is in force there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts_pending: Vec<String>,
}

/// Answer of `DELETE /v1/secrets/{secret}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemovedSecret {
    /// Name of the secret.
    pub name: String,
    /// Ids of hosts that could not be reached. The server sends them the change again until they answer; until then
    /// their sandboxes can use the secret.
    #[serde(default)]
    pub hosts_pending: Vec<String>,
}

/// A limit of a secret, and what was used of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretBudget {
    /// What is counted.
    pub of: BudgetUnit,
    /// Who shares it.
    pub per: BudgetScope,
    /// The most that may be used.
    pub max: u64,
    /// What was used, with what is reserved for requests under way. Absent for `sandbox` where no sandbox is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// When `used` begins again at 0; absent where it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renews_at: Option<Timestamp>,
}

/// A sandbox that used a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretUser {
    /// Id of the sandbox.
    pub sandbox: String,
    /// Requests that the secret was put into.
    pub uses: u64,
    /// What it used of the limits that each sandbox has by itself.
    #[serde(default)]
    pub budgets: Vec<SecretBudget>,
    /// Time of the last use.
    pub last_used_at: Timestamp,
}

/// Answer of `POST /v1/secret-keys/rotate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RotatedSecretKeys {
    /// Organisations whose keys are now wrapped by the newest host key.
    pub organisations: u64,
}
