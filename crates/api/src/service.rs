//! Services: commands that are kept running, and come back when their sandbox is started.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::process::Exit;

/// What happens when a service ends by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RestartPolicy {
    /// It is not started again before the sandbox is.
    No,
    /// It is started again if it failed: its exit code is not 0, or it could not be started.
    #[default]
    OnFailure,
    /// It is started again.
    Always,
}

/// Body of `POST …/services`. Either `command` or `argv`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StartService {
    /// Name of the service, unique in the sandbox: lowercase letters, digits and dashes.
    #[schemars(length(min = 1, max = cove_limits::SERVICE_NAME_MAX))]
    pub name: String,
    /// Command line for the user's login shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::SERVICE_BYTES_MAX))]
    pub command: Option<String>,
    /// Program and arguments, run without a shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = cove_limits::ARGV_MAX),
        inner(length(max = cove_limits::SERVICE_BYTES_MAX))
    )]
    pub argv: Option<Vec<String>>,
    /// Working directory; default: that of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub cwd: Option<String>,
    /// Environment variables. They are kept on the sandbox's disk; use the sandbox's secrets for values that must
    /// not be there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::ENV_ENTRIES_MAX))]
    pub env: BTreeMap<String, String>,
    /// User name or number, optionally with `:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// When it is started again after its end; default: `on_failure`.
    pub restart: RestartPolicy,
}

/// State of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// Not started yet since the sandbox was.
    Pending,
    /// Its process runs.
    Running,
    /// It ended or could not be started, and is started again after a pause.
    Waiting,
    /// It ended, and its policy does not start it again.
    Ended,
}

/// A service of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Service {
    /// Name of the service.
    pub name: String,
    /// Its command line, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its program and arguments, if it has no command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Working directory, if it is not that of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User, if it is not that of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When it is started again after its end.
    pub restart: RestartPolicy,
    /// State now.
    pub state: ServiceState,
    /// Id of its process, which is the same for all its runs; its output is that of the process.
    pub process: String,
    /// How often it was started again since the sandbox was started.
    pub restarts: u64,
    /// How its last run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<Exit>,
    /// Why it could not be started the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
