//! Sandboxes: make, find, end.

use std::collections::BTreeMap;

use cove_api::lifecycle::LifecycleRequest;
use cove_api::sandbox::{
    CreateSandbox, ListSandboxes, Network, NetworkMode, ResourcesRequest, Sandbox,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::answer::{self, Outcome};
use crate::call::Call;

/// Sandboxes in one list.
const LIST_DEFAULT: u32 = 50;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// Name of an image, e.g. `debian` or `code-interpreter`. Default: the server's default image.
    image: Option<String>,
    /// Name or id of a snapshot to start from, instead of an image.
    snapshot: Option<String>,
    /// A name for the sandbox: lowercase letters, digits and dashes.
    name: Option<String>,
    /// What the sandbox may reach: domains, addresses or presets. Default: no network.
    allow: Option<Vec<String>>,
    /// Environment variables for all commands.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Number of CPUs.
    cpu: Option<f64>,
    /// Memory in MiB.
    memory_mb: Option<u64>,
    /// Disk in MiB.
    disk_mb: Option<u64>,
    /// Delete the sandbox after this many idle seconds. Default: never.
    delete_after_s: Option<u64>,
    /// Labels to find the sandbox by.
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// What a model needs to know of a sandbox.
#[derive(Serialize)]
pub struct Brief {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    image: String,
    network: Network,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    created_at: cove_api::Timestamp,
    cpu: f64,
    memory_mb: u64,
    disk_mb: u64,
}

impl From<Sandbox> for Brief {
    fn from(sandbox: Sandbox) -> Self {
        Self {
            id: sandbox.id,
            name: sandbox.name,
            state: sandbox.state.to_string(),
            reason: sandbox.reason,
            image: sandbox.image,
            network: sandbox.network,
            labels: sandbox.labels,
            created_at: sandbox.created_at,
            cpu: sandbox.resources.cpu,
            memory_mb: sandbox.resources.memory_mb,
            disk_mb: sandbox.resources.disk_mb,
        }
    }
}

pub async fn create(call: Call, create: Create) -> Outcome {
    let network = create.allow.map(|allow| Network {
        mode: NetworkMode::Allowlist,
        allow: Some(allow),
        ..Network::default()
    });
    let asked = CreateSandbox {
        image: create.image,
        snapshot: create.snapshot,
        name: create.name,
        network: network.map(Into::into),
        env: create.env,
        resources: Some(ResourcesRequest {
            cpu: create.cpu,
            memory_mb: create.memory_mb,
            disk_mb: create.disk_mb,
            ..ResourcesRequest::default()
        }),
        lifecycle: create.delete_after_s.map(|after| LifecycleRequest {
            delete_after_s: Some(Some(after)),
            ..LifecycleRequest::default()
        }),
        labels: create.labels,
        ..CreateSandbox::default()
    };
    let sandbox = call.client.create_sandbox(&asked, None).await?;
    answer::json(Brief::from(sandbox))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Find {
    /// Name or id of one sandbox. Without it, sandboxes are listed.
    sandbox: Option<String>,
    /// Only with these labels.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// How many to list; default 50.
    limit: Option<u32>,
    /// `next_cursor` of the previous list.
    cursor: Option<String>,
}

pub async fn find(call: Call, find: Find) -> Outcome {
    if let Some(sandbox) = &find.sandbox {
        let sandbox = call.client.sandbox(sandbox).await?;
        return answer::json(Brief::from(sandbox));
    }
    let labels: Vec<_> = find
        .labels
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    let query = ListSandboxes {
        limit: Some(find.limit.unwrap_or(LIST_DEFAULT)),
        cursor: find.cursor,
        labels: Some(labels.join(",")).filter(|labels| !labels.is_empty()),
        ..ListSandboxes::default()
    };
    let page = call.client.list_sandboxes(&query).await?;
    let sandboxes: Vec<_> = page.items.into_iter().map(Brief::from).collect();
    answer::json(json!({ "sandboxes": sandboxes, "next_cursor": page.next_cursor }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Delete {
    /// Name or id of the sandbox.
    sandbox: String,
}

pub async fn delete(call: Call, delete: Delete) -> Outcome {
    call.client.delete_sandbox(&delete.sandbox).await?;
    answer::json(json!({ "deleted": delete.sandbox }))
}
