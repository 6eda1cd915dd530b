//! Snapshots, forks and rollbacks.

use cove_api::PageQuery;
use cove_api::snapshot::{Fork, Forked, Rollback, Snapshot, TakeSnapshot};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::sandboxes::Brief;
use crate::answer::{self, Outcome, Refusal};
use crate::call::Call;

/// Snapshots in one list.
const LIST_DEFAULT: u32 = 50;

fn brief(snapshot: &Snapshot) -> Value {
    json!({
        "id": snapshot.id,
        "name": snapshot.name,
        "sandbox": snapshot.sandbox,
        "memory": snapshot.memory,
        "created_at": snapshot.created_at,
        "exclusive_bytes": snapshot.exclusive_bytes,
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Take {
    /// Name or id of the sandbox.
    sandbox: String,
    /// A name for the snapshot: lowercase letters, digits and dashes.
    name: Option<String>,
    /// Save running processes and their memory too, not only the disk.
    #[serde(default)]
    memory: bool,
}

pub async fn take(call: Call, take: Take) -> Outcome {
    let asked = TakeSnapshot {
        name: take.name,
        memory: take.memory,
        durable: false,
    };
    let snapshot = call
        .client
        .take_snapshot(&take.sandbox, &asked, None)
        .await?;
    answer::json(brief(&snapshot))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Name or id of a sandbox. Default: of all sandboxes.
    sandbox: Option<String>,
    /// How many to list; default 50.
    limit: Option<u32>,
    /// `next_cursor` of the previous list.
    cursor: Option<String>,
}

pub async fn list(call: Call, list: List) -> Outcome {
    let query = PageQuery {
        limit: Some(list.limit.unwrap_or(LIST_DEFAULT)),
        cursor: list.cursor,
    };
    let page = call
        .client
        .snapshots(list.sandbox.as_deref(), &query)
        .await?;
    let snapshots: Vec<_> = page.items.iter().map(brief).collect();
    answer::json(json!({ "snapshots": snapshots, "next_cursor": page.next_cursor }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkOf {
    /// Name or id of the sandbox to copy. Give either `sandbox` or `snapshot`.
    sandbox: Option<String>,
    /// Name or id of the snapshot to copy.
    snapshot: Option<String>,
    /// How many copies; default 1.
    count: Option<u32>,
    /// Copies continue with the running processes. Default: they boot from the disk.
    #[serde(default)]
    memory: bool,
    /// A name for the copy; several are called name-1, name-2 and so on.
    name: Option<String>,
}

pub async fn fork(call: Call, fork: ForkOf) -> Outcome {
    let asked = Fork {
        count: fork.count,
        memory: fork.memory,
        name: fork.name,
        ..Fork::default()
    };
    let forked = match (&fork.sandbox, &fork.snapshot) {
        (Some(sandbox), None) => call.client.fork_sandbox(sandbox, &asked, None).await?,
        (None, Some(snapshot)) => call.client.fork_snapshot(snapshot, &asked, None).await?,
        _ => return Err(Refusal::new("give either `sandbox` or `snapshot`")),
    };
    let (mut sandboxes, mut errors) = (Vec::new(), Vec::new());
    for one in forked {
        match one {
            Forked::Sandbox(sandbox) => sandboxes.push(Brief::from(*sandbox)),
            Forked::Error(error) => errors.push(error),
        }
    }
    if sandboxes.is_empty()
        && let Some(error) = errors.first()
    {
        return Err(Refusal::new(format!("{} ({})", error.message, error.code)));
    }
    answer::json(json!({ "sandboxes": sandboxes, "errors": errors }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackTo {
    /// Name or id of the sandbox.
    sandbox: String,
    /// Name or id of the snapshot to roll back to.
    snapshot: String,
    /// Restore its running processes too; the snapshot must have memory.
    #[serde(default)]
    memory: bool,
}

pub async fn rollback(call: Call, rollback: RollbackTo) -> Outcome {
    let asked = Rollback {
        snapshot: rollback.snapshot,
        memory: rollback.memory,
    };
    let done = call
        .client
        .rollback_sandbox(&rollback.sandbox, &asked)
        .await?;
    let sandbox = Brief::from(done.sandbox);
    answer::json(json!({ "sandbox": sandbox, "saved": brief(&done.kept) }))
}
