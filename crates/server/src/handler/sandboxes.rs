//! Sandboxes themselves.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use cove_api::sandbox::{CreateSandbox, ListSandboxes, PatchSandbox, StopSandbox};
use cove_api::{NoQuery, PageQuery};
use cove_control::{ControlError, MountRequest, SandboxFilter, SandboxPatch, Source};
use cove_limits::{IDEMPOTENCY_KEY_MAX, STOP_GRACE_MAX_MS};
use cove_model::NetworkPolicy;

use super::{Answer, nothing, ok, page_request, with_status};
use crate::convert;
use crate::extract::{Caller, Json, JsonOr, Names, Query};
use crate::failure::Failure;
use crate::state::App;

pub async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    headers: HeaderMap,
    Json(body): Json<CreateSandbox>,
) -> Answer {
    let idempotency_key = idempotency_key(&headers)?;
    let source = match body.snapshot.clone() {
        None if body.memory => {
            return Err(Failure::invalid("memory goes with a snapshot"));
        }
        None => Source::Image(body.image.clone()),
        Some(_) if body.image.is_some() => {
            return Err(Failure::invalid("give either an image or a snapshot"));
        }
        Some(snapshot) => Source::Snapshot {
            snapshot,
            memory: body.memory,
        },
    };
    let mut base = app.control.base(&caller.principal, source).await?;
    if let Some(volumes) = &body.volumes {
        let asked = volumes.iter().map(|mount| MountRequest {
            volume: mount.volume.clone(),
            path: mount.path.clone(),
            read_only: mount.read_only,
        });
        let asked = asked.collect();
        base.spec.volumes = app.control.mounts(&caller.principal, asked).await?;
    }
    let spec = body.into_spec_over(base.spec).map_err(ControlError::from)?;
    let request = cove_control::CreateSandbox {
        spec,
        idempotency_key,
        from: base.from,
    };
    let created = app
        .control
        .create_sandbox(&caller.principal, request)
        .await?;
    let mut response = with_status(StatusCode::CREATED, convert::sandbox(created.sandbox))?;
    if created.replayed {
        let value = axum::http::HeaderValue::from_static("true");
        response.headers_mut().insert("idempotent-replayed", value);
    }
    Ok(response)
}

pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let good = |text: &&str| {
        (1..=IDEMPOTENCY_KEY_MAX).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_graphic())
    };
    match value.to_str().ok().filter(good) {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(Failure::invalid(format!(
            "Idempotency-Key must be 1 to {IDEMPOTENCY_KEY_MAX} visible ASCII characters"
        ))),
    }
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListSandboxes>,
) -> Answer {
    let page = page_request(PageQuery {
        limit: query.limit,
        cursor: query.cursor,
    })?;
    let filter = SandboxFilter {
        states: query.state.into_iter().collect(),
        name: query.name,
        labels: labels(query.labels.as_deref())?,
    };
    let found = app
        .control
        .list_sandboxes(&caller.principal, &filter, &page)
        .await?;
    ok(convert::page(found, convert::sandbox))
}

/// `key=value` pairs with commas between.
fn labels(text: Option<&str>) -> Result<BTreeMap<String, String>, Failure> {
    let mut labels = BTreeMap::new();
    for pair in text.into_iter().flat_map(|text| text.split(',')) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Failure::invalid(
                "labels must be key=value pairs with commas between",
            ));
        };
        labels.insert(key.to_owned(), value.to_owned());
    }
    cove_model::spec::check_labels(&labels).map_err(|error| Failure::invalid(error.to_string()))?;
    Ok(labels)
}

pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    ok(convert::sandbox(
        app.control.get_sandbox(&caller.principal, &id).await?,
    ))
}

pub async fn patch(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<PatchSandbox>,
) -> Answer {
    let network = body.network.map(NetworkPolicy::try_from).transpose();
    let network = network.map_err(ControlError::from)?;
    let patch = SandboxPatch {
        name: body.name,
        labels: body.labels,
        lifecycle: body.lifecycle.map(Into::into),
        resources: body.resources.map(Into::into),
        network,
        expected_generation: body.expected_generation,
    };
    ok(convert::sandbox(
        app.control
            .update_sandbox(&caller.principal, &id, patch)
            .await?,
    ))
}

pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    app.control.delete_sandbox(&caller.principal, &id).await?;
    nothing()
}

pub async fn start(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    ok(convert::sandbox(
        app.control.start_sandbox(&caller.principal, &id).await?,
    ))
}

pub async fn stop(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    JsonOr(body): JsonOr<StopSandbox>,
) -> Answer {
    if body.grace_ms.is_some_and(|grace| grace > STOP_GRACE_MAX_MS) {
        return Err(Failure::invalid(format!(
            "grace_ms must be at most {STOP_GRACE_MAX_MS}"
        )));
    }
    let stopped = app
        .control
        .stop_sandbox(&caller.principal, &id, body.grace_ms)
        .await?;
    ok(convert::sandbox(stopped))
}

pub async fn freeze(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    ok(convert::sandbox(
        app.control.freeze_sandbox(&caller.principal, &id).await?,
    ))
}

pub async fn pause(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    ok(convert::sandbox(
        app.control.pause_sandbox(&caller.principal, &id).await?,
    ))
}

pub async fn resume(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    ok(convert::sandbox(
        app.control.resume_sandbox(&caller.principal, &id).await?,
    ))
}

pub async fn metrics(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    ok(convert::metrics(
        app.control.sample_sandbox(&caller.principal, &id).await?,
    ))
}
