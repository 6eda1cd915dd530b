//! Labels, intervals and network of a sandbox that exists.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cove_control::{Principal, Sandbox, SandboxPatch};
use cove_dialect::Front;
use cove_model::State as SandboxState;
use serde::Deserialize;
use serde_json::json;

use crate::asking::{Caller, Json, Names};
use crate::convert::{self, Intervals};
use crate::refusal::{Answer, Refusal};
use crate::server_address::ServerAddress;
use crate::wire::{Labels, Network};

pub async fn labels(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Labels>,
) -> Answer {
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    let patch = SandboxPatch {
        labels: Some(convert::relabelled(&sandbox.spec.labels, body.labels)?),
        // Our own labels are read and written back.
        expected_generation: Some(sandbox.generation),
        ..SandboxPatch::default()
    };
    let id = sandbox.id.as_str();
    let changed = front.control.update_sandbox(&caller, id, patch).await?;
    let labels = convert::theirs(changed.spec.labels);
    Ok(axum::Json(json!({ "labels": labels })).into_response())
}

/// Changes one interval.
async fn interval(
    front: Front,
    caller: Principal,
    place: ServerAddress,
    (id, minutes): (String, String),
    set: impl FnOnce(&mut Intervals, i64),
) -> Answer {
    let minutes: i64 = minutes
        .parse()
        .map_err(|_| Refusal::invalid("the interval must be a number of minutes"))?;
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    let mut intervals = Intervals::of(&sandbox);
    set(&mut intervals, minutes);
    let intervals = intervals.check()?;
    let mut labels = sandbox.spec.labels.clone();
    intervals.label(&mut labels);
    let stopped = sandbox.state == SandboxState::Stopped;
    let idle = stopped.then(|| front.control.idle_for(&sandbox));
    let patch = SandboxPatch {
        lifecycle: Some(intervals.policy(&sandbox.spec.lifecycle, idle)),
        labels: Some(labels),
        expected_generation: Some(sandbox.generation),
        ..SandboxPatch::default()
    };
    let id = sandbox.id.as_str();
    let changed = front.control.update_sandbox(&caller, id, patch).await?;
    shown(changed, &place)
}

fn shown(sandbox: Sandbox, place: &ServerAddress) -> Answer {
    Ok(axum::Json(convert::sandbox(sandbox, place.toolbox())).into_response())
}

type Named = Names<(String, String)>;

pub async fn auto_stop(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(names): Named,
    place: ServerAddress,
) -> Answer {
    // Setting one of the two ends the other, as it does at Daytona.
    let set = |intervals: &mut Intervals, minutes| {
        intervals.stop = Some(minutes);
        intervals.pause = intervals.pause.filter(|_| minutes == 0);
    };
    interval(front, caller, place, names, set).await
}

pub async fn auto_pause(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(names): Named,
    place: ServerAddress,
) -> Answer {
    let set = |intervals: &mut Intervals, minutes| {
        intervals.pause = Some(minutes);
        intervals.stop = intervals.stop.filter(|_| minutes == 0);
    };
    interval(front, caller, place, names, set).await
}

pub async fn auto_archive(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(names): Named,
    place: ServerAddress,
) -> Answer {
    let set = |intervals: &mut Intervals, minutes| intervals.archive = Some(minutes);
    interval(front, caller, place, names, set).await
}

pub async fn auto_delete(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(names): Named,
    place: ServerAddress,
) -> Answer {
    let set = |intervals: &mut Intervals, minutes| intervals.delete = Some(minutes);
    interval(front, caller, place, names, set).await
}

pub async fn ttl(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(names): Named,
    place: ServerAddress,
) -> Answer {
    let set = |intervals: &mut Intervals, minutes| intervals.ttl = Some(minutes);
    interval(front, caller, place, names, set).await
}

/// What is absent stays; an empty list is taken away.
pub async fn network(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
    Json(body): Json<Network>,
) -> Answer {
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    let (addresses, names) = convert::lists(&sandbox.spec.network);
    let blocks = body.network_block_all == Some(true);
    let kept = |list: Option<String>| list.filter(|_| !blocks);
    let addresses = body.network_allow_list.or(kept(addresses));
    let names = body.domain_allow_list.or(kept(names));
    let unsaid = body.network_block_all.is_none();
    let still_blocked = unsaid && sandbox.spec.network.mode == cove_model::NetworkMode::None;
    let listed = |list: &Option<String>| list.as_ref().is_some_and(|list| !list.trim().is_empty());
    let block = blocks || (still_blocked && !listed(&addresses) && !listed(&names));
    let policy = convert::network(
        &sandbox.spec.network,
        Some(block),
        addresses.as_deref(),
        names.as_deref(),
    )?;
    let patch = SandboxPatch {
        network: Some(policy),
        ..SandboxPatch::default()
    };
    let id = sandbox.id.as_str();
    let changed = front.control.update_sandbox(&caller, id, patch).await?;
    shown(changed, &place)
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Environment {
    set: Option<BTreeMap<String, String>>,
    unset: Option<Vec<String>>,
    unset_value_prefix: Option<String>,
}

/// Variables of processes that are started from now on.
pub async fn environment(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Environment>,
) -> Answer {
    if body
        .unset_value_prefix
        .is_some_and(|prefix| !prefix.is_empty())
    {
        return Err(Refusal::unsupported(
            "unsetValuePrefix: name the variables in unset",
        ));
    }
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    let mut env = sandbox.spec.env.clone();
    for name in body.unset.unwrap_or_default() {
        env.remove(&name);
    }
    env.extend(body.set.unwrap_or_default());
    let patch = SandboxPatch {
        env: Some(env),
        expected_generation: Some(sandbox.generation),
        ..SandboxPatch::default()
    };
    let id = sandbox.id.as_str();
    let changed = front.control.update_sandbox(&caller, id, patch).await?;
    Ok(axum::Json(changed.spec.env).into_response())
}

/// Counts as a use of the sandbox, as any call does that reaches into it.
pub async fn activity(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    front
        .control
        .guest(&caller, &id, cove_control::GuestAction::Metrics)
        .await?;
    Ok(StatusCode::CREATED.into_response())
}
