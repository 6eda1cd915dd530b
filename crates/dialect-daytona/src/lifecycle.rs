//! Starting, stopping, pausing, archiving and resizing.

use axum::extract::State;
use axum::response::IntoResponse;
use cove_control::{Principal, Sandbox, SandboxPatch};
use cove_dialect::Front;
use cove_model::{ResourcesPatch, State as SandboxState};

use crate::asking::{Caller, Json, Names, Query};
use crate::convert::{self, ARCHIVED, Intervals};
use crate::entrypoint;
use crate::refusal::{Answer, Refusal};
use crate::server_address::ServerAddress;
use crate::wire::{Force, Resize};

#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Start {
    skip_start: Option<bool>,
}

pub async fn start(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Start>,
    place: ServerAddress,
) -> Answer {
    if query.skip_start == Some(true) {
        return Err(Refusal::unsupported(
            "skipStart: a sandbox that is recovered runs here",
        ));
    }
    let started = front.control.start_sandbox(&caller, &id).await?;
    let settled = settle(&front, &caller, started, None).await?;
    entrypoint::start(&front, &caller, &settled).await;
    Ok(axum::Json(convert::sandbox(settled, place.toolbox())).into_response())
}

pub async fn stop(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(Force { force }): Query<Force>,
    place: ServerAddress,
) -> Answer {
    let grace = force.then_some(0);
    let stopped = front.control.stop_sandbox(&caller, &id, grace).await?;
    if Intervals::of(&stopped).delete == Some(0) {
        // It was made to end with its stop.
        front
            .control
            .delete_sandbox(&caller, stopped.id.as_str())
            .await?;
        let gone = Sandbox {
            state: SandboxState::Gone,
            ..stopped
        };
        return Ok(axum::Json(convert::sandbox(gone, place.toolbox())).into_response());
    }
    let settled = settle(&front, &caller, stopped, Some(false)).await?;
    Ok(axum::Json(convert::sandbox(settled, place.toolbox())).into_response())
}

pub async fn pause(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
) -> Answer {
    let paused = front.control.pause_sandbox(&caller, &id).await?;
    Ok(axum::Json(convert::sandbox(paused, place.toolbox())).into_response())
}

/// A stopped sandbox is on disk and takes nothing else, which is as far away as one gets here. Daytona
/// archives only what is stopped.
pub async fn archive(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
) -> Answer {
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    if sandbox.state != SandboxState::Stopped {
        let message = format!(
            "the sandbox is {}; stop it before it is archived",
            sandbox.state
        );
        return Err(Refusal::new(409, "CONFLICT", message));
    }
    let settled = settle(&front, &caller, sandbox, Some(true)).await?;
    Ok(axum::Json(convert::sandbox(settled, place.toolbox())).into_response())
}

/// Makes true, after a start or a stop, what is counted from it. `archived` is absent for one that runs.
async fn settle(
    front: &Front,
    caller: &Principal,
    sandbox: Sandbox,
    archived: Option<bool>,
) -> Result<Sandbox, Refusal> {
    let mut labels = sandbox.spec.labels.clone();
    match archived {
        Some(true) => labels.insert(ARCHIVED.into(), "1".into()),
        _ => labels.remove(ARCHIVED),
    };
    let idle = archived.map(|_| front.control.idle_for(&sandbox));
    let lifecycle = Intervals::of(&sandbox).policy(&sandbox.spec.lifecycle, idle);
    let patch = SandboxPatch {
        labels: (labels != sandbox.spec.labels).then_some(labels),
        lifecycle: (lifecycle != sandbox.spec.lifecycle).then_some(lifecycle),
        ..SandboxPatch::default()
    };
    if patch.labels.is_none() && patch.lifecycle.is_none() {
        return Ok(sandbox);
    }
    let id = sandbox.id.as_str();
    Ok(front.control.update_sandbox(caller, id, patch).await?)
}

pub async fn resize(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
    Json(body): Json<Resize>,
) -> Answer {
    let patch = SandboxPatch {
        resources: Some(ResourcesPatch {
            cpu: body.cpu.map(f64::from),
            memory_mb: body.memory.map(convert::gib_to_mb),
            disk_mb: body.disk.map(convert::gib_to_mb),
            ..ResourcesPatch::default()
        }),
        ..SandboxPatch::default()
    };
    let resized = front.control.update_sandbox(&caller, &id, patch).await?;
    Ok(axum::Json(convert::sandbox(resized, place.toolbox())).into_response())
}
