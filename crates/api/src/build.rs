//! Builds of templates from Dockerfiles, on the wire.

use std::collections::BTreeMap;

pub use cove_model::BuildState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::sandbox::Network;
use crate::template::TemplateDefaults;

/// Body of `POST /v1/builds`. The build begins when its context was sent with `PUT /v1/builds/{build}/context`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBuild {
    /// Name of the template; it gets a new version.
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: String,
    /// Tags to move to the new version; default: `latest`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = cove_limits::TEMPLATE_TAGS_MAX),
        inner(length(min = 1, max = cove_limits::TEMPLATE_TAG_MAX))
    )]
    pub tags: Vec<String>,
    /// The text of the Dockerfile.
    #[schemars(length(min = 1, max = cove_limits::DOCKERFILE_MAX))]
    pub dockerfile: String,
    /// The text of `.dockerignore`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = cove_limits::DOCKERFILE_MAX))]
    pub ignore: String,
    /// Values for `ARG`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::BUILD_ARGS_MAX))]
    pub args: BTreeMap<String, String>,
    /// Name or number of the stage to build; default: the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub target: Option<String>,
    /// Network policy of the steps; default: `preset:packages`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Run every step again, without the cache.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_cache: bool,
    /// Ask registries for images that are on the host already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pull: bool,
    /// A server to run before the template's memory is captured: sandboxes begin with it running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<BuildStart>,
    /// Defaults of sandboxes made from the template, put over what the Dockerfile says. Sandboxes that run the steps
    /// have its limits.
    #[serde(default, skip_serializing_if = "TemplateDefaults::is_empty")]
    pub defaults: TemplateDefaults,
}

/// A server to run before the template's memory is captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildStart {
    /// Shell command; default: the Dockerfile's `ENTRYPOINT` and `CMD`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::COMMAND_BYTES_MAX))]
    pub command: Option<String>,
    /// Shell command that succeeds once the server is ready. It is repeated until then.
    #[schemars(length(min = 1, max = cove_limits::COMMAND_BYTES_MAX))]
    pub ready: String,
    /// Seconds to wait for it; default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::BUILD_TIME_MAX_S))]
    pub timeout_s: Option<u64>,
}

/// A build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Build {
    /// Id.
    pub id: String,
    /// Name of the template.
    pub name: String,
    /// State.
    pub state: BuildState,
    /// Why it failed, with the step and the end of its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Id of the version that it created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Steps started so far. Only steps that change files count: `RUN`, `COPY`, `ADD` and
    /// `WORKDIR`.
    pub steps: u64,
    /// Steps taken from the cache.
    pub cached: u64,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time when it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

/// Builds, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Builds {
    /// The builds that are still recorded.
    pub items: Vec<Build>,
}

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildStepState {
    /// Running.
    Started,
    /// Its result was in the cache.
    Cached,
    /// It succeeded.
    Done,
    /// It failed, and so did the build.
    Failed,
}

/// One line of a build's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum BuildLogEvent {
    /// A step started or ended.
    Step {
        /// Number of the step, from 1.
        number: u64,
        /// Number of steps, as far as it is known.
        total: u64,
        /// Line of the Dockerfile.
        line: u32,
        /// The instruction.
        text: String,
        /// State.
        state: BuildStepState,
        /// Milliseconds since the step started.
        ms: u64,
    },
    /// Output of a command.
    Output {
        /// `stdout` or `stderr`.
        stream: String,
        /// The text; bytes that are not UTF-8 are replaced.
        text: String,
    },
    /// A note.
    Note {
        /// The text.
        text: String,
    },
    /// The beginning of the log is no longer kept.
    Dropped {
        /// Number of bytes.
        bytes: u64,
    },
    /// The build has ended; the last line.
    End {
        /// The build.
        build: Box<Build>,
    },
}

/// Answer of `DELETE /v1/build-cache`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BuildCacheCleared {
    /// Number of deleted steps.
    pub steps: u64,
}
