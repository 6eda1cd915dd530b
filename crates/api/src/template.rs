//! Templates on the wire: named, versioned starting points of sandboxes.

use std::collections::BTreeMap;

use cove_model::SandboxSpec;
use cove_model::spec::SpecError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::lifecycle::Lifecycle;
use crate::sandbox::{CreateSandbox, Network, ResourcesRequest, ResourcesView};
use crate::volume::Mount;

/// Body of `POST /v1/templates`: a new version of a template. What is absent is as it was when the snapshot was taken;
/// network and lifecycle that are absent have the defaults of every sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTemplate {
    /// Name: 1 to 63 lowercase letters, digits or dashes. An existing name gets a new version.
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: String,
    /// Id or name of the snapshot that sandboxes start from. It cannot be deleted while the
    /// template exists.
    #[schemars(length(min = 1, max = cove_limits::REFERENCE_MAX))]
    pub snapshot: String,
    /// Sandboxes continue the snapshot's processes; without, they boot from its disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
    /// Tags to move to the new version; default: `latest`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = cove_limits::TEMPLATE_TAGS_MAX),
        inner(length(min = 1, max = cove_limits::TEMPLATE_TAG_MAX))
    )]
    pub tags: Vec<String>,
    /// Defaults of sandboxes made from it.
    #[serde(default, skip_serializing_if = "TemplateDefaults::is_empty")]
    pub defaults: TemplateDefaults,
}

/// Defaults of sandboxes from the template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TemplateDefaults {
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourcesRequest>,
    /// Variables in addition to those of the snapshot's sandbox.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::ENV_ENTRIES_MAX))]
    pub env: BTreeMap<String, String>,
    /// Network policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Lifecycle rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// User that commands run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
    /// Working directory of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub workdir: Option<String>,
    /// Volumes to mount; sandboxes from the template share them. Volumes of the snapshot's sandbox
    /// are not included.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = cove_limits::VOLUME_MOUNTS_MAX))]
    pub volumes: Vec<Mount>,
}

impl TemplateDefaults {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The settings of sandboxes from the template, over those that the snapshot was taken with. Volumes are the base's.
    pub fn into_spec_over(self, base: SandboxSpec) -> Result<SandboxSpec, SpecError> {
        let asked = CreateSandbox {
            resources: self.resources,
            env: self.env,
            network: self.network.map(Into::into),
            lifecycle: self.lifecycle.map(Into::into),
            user: self.user,
            workdir: self.workdir,
            ..CreateSandbox::default()
        };
        asked.into_spec_over(base)
    }
}

/// One version of a template. Only its tags can change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Template {
    /// Id.
    pub id: String,
    /// Name, unique in the organisation.
    pub name: String,
    /// Version number, from 1 for each name.
    pub version: u64,
    /// Tags of this version.
    pub tags: Vec<String>,
    /// Id of the snapshot that sandboxes start from.
    pub snapshot: String,
    /// Sandboxes continue the snapshot's processes.
    pub memory: bool,
    /// Its snapshot was lost: no sandbox can start from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Isolation tier.
    pub isolation: String,
    /// What executes the instructions of its sandboxes; with isolation `vm` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accel: Option<cove_model::Accel>,
    /// Limits.
    pub resources: ResourcesView,
    /// Environment variables of all commands.
    pub env: BTreeMap<String, String>,
    /// Network policy.
    pub network: Network,
    /// Lifecycle rules.
    pub lifecycle: Lifecycle,
    /// User that commands run as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Working directory of commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Programs cannot gain privileges through setuid.
    pub no_new_privs: bool,
    /// Volumes that all sandboxes from it mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Mount>,
    /// Which hosts sandboxes from it may be on.
    #[serde(default, skip_serializing_if = "cove_model::Placement::is_empty")]
    pub placement: cove_model::Placement,
    /// Other image settings of the Dockerfile; absent if it was not built from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageConfig>,
}

/// Image settings of a Dockerfile. None of these commands runs by itself: see `start` of a build.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImageConfig {
    /// `ENTRYPOINT`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// `CMD`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// `EXPOSE`, as `PORT/PROTOCOL`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<String>,
    /// `LABEL`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `HEALTHCHECK`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<ImageHealthcheck>,
    /// `STOPSIGNAL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// `SHELL`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
    /// `ONBUILD`: instructions for builds that start from this image.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub onbuild: Vec<String>,
}

/// A `HEALTHCHECK`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImageHealthcheck {
    /// The command; empty for `NONE`.
    pub command: Vec<String>,
    /// `interval`, `timeout`, `start-period`, `start-interval` and `retries`, as written.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// Query of `DELETE /v1/templates/{template}`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeleteTemplate {
    /// With a name alone: delete all of its versions. Without, a name with several versions is
    /// refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

/// Query of `GET /v1/templates`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ListTemplates {
    /// Maximum number of items; default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::PAGE_MAX))]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::CURSOR_MAX))]
    pub cursor: Option<String>,
    /// Only versions of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::NAME_MAX))]
    pub name: Option<String>,
}
