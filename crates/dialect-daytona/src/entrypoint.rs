//! The program that a snapshot or an image names as its entrypoint. It runs in the background from every start of a
//! sandbox on, as a session that lists do not show.

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::IntoResponse;
use cove_control::{
    CommandLine, CommandRequest, ControlError, GuestAccess, GuestAction, Principal, Sandbox,
    TemplateRecord,
};
use cove_dialect::Front;
use cove_limits::LABEL_BYTES_MAX;
use cove_model::SandboxSpec;
use cove_protocol::identity::{Identity, owner};
use cove_protocol::message::{Process, ProcessKind};
use serde_json::json;

use crate::asking::{Caller, Names};
use crate::logs;
use crate::refusal::{Answer, Refusal};
use crate::sessions::{self, RING_BYTES};
use crate::snapshots::Config;

pub const NAME: &str = "entrypoint";
const LABEL: &str = "daytona:entrypoint";
/// A shell, so that a program which is not there says so where its output is read.
const RUN: [&str; 4] = ["/bin/sh", "-c", "exec \"$@\"", NAME];

/// Notes what a sandbox from this template runs.
pub fn note(spec: &mut SandboxSpec, template: &TemplateRecord) -> Result<(), ControlError> {
    let config = Config::of(template);
    if config.entrypoint.is_empty() {
        return Ok(());
    }
    let argv: Vec<String> = config.entrypoint.into_iter().chain(config.cmd).collect();
    let text = json!(argv).to_string();
    if text.len() > LABEL_BYTES_MAX {
        return Err(ControlError::invalid(format!(
            "ENTRYPOINT and CMD have at most {LABEL_BYTES_MAX} bytes as JSON; put them into a script, or reset them with ENTRYPOINT []"
        )));
    }
    spec.labels.insert(LABEL.into(), text);
    Ok(())
}

async fn found(access: &GuestAccess) -> Result<Option<Process>, Refusal> {
    let all = access.guest().processes().await?;
    let is_it =
        |process: &&Process| Identity::of(process).name_of(owner::DAYTONA_SESSION) == Some(NAME);
    Ok(all.iter().find(is_it).cloned())
}

/// Starts it unless it was started since the sandbox was. A sandbox whose entrypoint cannot be started can still be
/// used, and says that it has no such session.
pub async fn start(front: &Front, caller: &Principal, sandbox: &Sandbox) {
    if let Err(refusal) = try_start(front, caller, sandbox).await {
        let reason = refusal.message();
        tracing::warn!(sandbox = %sandbox.id, reason, "cannot start an entrypoint");
    }
}

async fn try_start(front: &Front, caller: &Principal, sandbox: &Sandbox) -> Result<(), Refusal> {
    let text = sandbox.spec.labels.get(LABEL);
    let argv: Option<Vec<String>> = text.and_then(|text| serde_json::from_str(text).ok());
    let Some(argv) = argv else {
        return Ok(());
    };
    let action = GuestAction::ProcessStart;
    let access = front.control.guest(caller, sandbox.id.as_str(), action);
    let access = access.await?;
    if found(&access).await?.is_some() {
        return Ok(());
    }
    let argv = RUN.map(str::to_owned).into_iter().chain(argv).collect();
    let request = CommandRequest {
        kind: ProcessKind::DialectSession,
        ..CommandRequest::new(
            owner::named(owner::DAYTONA_SESSION, NAME),
            CommandLine::Argv(argv),
        )
    };
    let mut start = access.command(request)?;
    start.ring_bytes = RING_BYTES;
    match access.guest().start(start).await.map_err(Refusal::from) {
        // An image without a shell runs nothing by itself.
        Err(refusal) if refusal.is_missing_program() => Ok(()),
        started => started.map(drop),
    }
}

fn none() -> Refusal {
    let message = "the sandbox has no entrypoint; its snapshot or image names none";
    Refusal::new(404, "NOT_FOUND", message)
}

pub async fn session(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    let access = front.control.guest(&caller, &id, GuestAction::ProcessRead);
    let process = found(&access.await?).await?.ok_or_else(none)?;
    let words = process.argv.get(RUN.len()..).unwrap_or_default();
    let mut command = json!({ "id": "entrypoint_command", "command": words.join(" ") });
    if let Some(exit) = &process.exit {
        command["exitCode"] = json!(exit.code);
    }
    let answer = json!({ "sessionId": NAME, "commands": [command] });
    Ok(axum::Json(answer).into_response())
}

pub async fn output(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    uri: Uri,
    request: Request,
) -> Answer {
    let access = front.control.guest(&caller, &id, GuestAction::ProcessRead);
    let access = access.await?;
    let process = found(&access).await?.ok_or_else(none)?;
    if logs::follows(&uri, &request) {
        return logs::follow(&front, &caller, access, process, request).await;
    }
    sessions::logs(&front, access, process).await
}
