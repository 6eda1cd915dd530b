//! Processes that were started through Cove.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{self, Outcome};
use crate::call::Call;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// Name or id of the sandbox.
    sandbox: String,
    /// Include finished processes.
    #[serde(default)]
    all: bool,
}

pub async fn list(call: Call, list: List) -> Outcome {
    let page = call.client.processes(&list.sandbox).await?;
    let shown = page
        .items
        .into_iter()
        .filter(|p| list.all || p.exit.is_none());
    let processes = shown.map(|process| {
        json!({
            "process": process.id,
            "pid": process.pid,
            "argv": process.argv,
            "kind": process.kind,
            "started_at": process.started_at,
            "running": process.exit.is_none(),
            "exit_code": process.exit.as_ref().map(|exit| exit.exit_code),
            "stdout_bytes": process.stdout_bytes,
            "stderr_bytes": process.stderr_bytes,
            "cpu_ms": process.cpu_ms,
            "memory_bytes": process.memory_bytes,
        })
    });
    let processes: Vec<_> = processes.collect();
    answer::json(json!({ "processes": processes }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    /// Name or id of the sandbox.
    sandbox: String,
    /// The process, as run or process_list returned it.
    process: String,
    /// The signal's name, e.g. TERM, KILL or INT. Default: TERM.
    signal: Option<String>,
}

pub async fn signal(call: Call, signal: Signal) -> Outcome {
    let name = signal.signal.as_deref().unwrap_or("TERM");
    call.client
        .signal(&signal.sandbox, &signal.process, name)
        .await?;
    answer::json(json!({ "process": signal.process, "signal": name }))
}
