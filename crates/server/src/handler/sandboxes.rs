//! Sandboxes themselves.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::HeaderMap;
use cove_api::lifecycle::{HolderQuery, LeaseRequest, RenewLeases, RenewedLeases};
use cove_api::sandbox::{CreateSandbox, ListSandboxes, PatchSandbox, StopSandbox};
use cove_api::volume::Mount;
use cove_api::{NoQuery, PageQuery};
use cove_control::{
    Base, ControlError, ErrorCode, MountRequest, SandboxFilter, SandboxPatch, Source,
};
use cove_limits::{IDEMPOTENCY_KEY_MAX, STOP_GRACE_MAX_MS};
use cove_model::NetworkPolicy;

use super::{Answer, made, nothing, ok, page_request};
use crate::convert;
use crate::extract::{Caller, Json, JsonOr, Names, Query};
use crate::failure::Failure;
use crate::state::App;

pub async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    headers: HeaderMap,
    Json(mut body): Json<CreateSandbox>,
) -> Answer {
    let idempotency_key = idempotency_key(&headers)?;
    let source = source(&body)?;
    let asked = as_asked(&body)?;
    let base = match base(&app, &caller, source, &body).await {
        Err(error) if error.code == ErrorCode::NotFound => {
            // A repeat of a create that was carried out when the names still stood for something.
            if let (Some(key), Some(asked)) = (&idempotency_key, &asked) {
                let repeated = app.control.repeated_create(&caller.principal, key, asked);
                if let Some(created) = repeated.await? {
                    return made(convert::sandbox(created.sandbox), true);
                }
            }
            return Err(error.into());
        }
        base => base?,
    };
    let warnings = keys_in(&body.env);
    if let Some(lifecycle) = &mut body.lifecycle {
        let times = app.control.lease_times();
        lifecycle.lease = lifecycle.lease.take().map(|lease| lease.with_times(times));
    }
    let spec = body.into_spec_over(base.spec).map_err(ControlError::from)?;
    let request = cove_control::CreateSandbox {
        spec,
        idempotency_key,
        asked,
        from: base.from,
    };
    let created = app
        .control
        .create_sandbox(&caller.principal, request)
        .await?;
    let mut sandbox = convert::sandbox(created.sandbox);
    sandbox.warnings = warnings;
    made(sandbox, created.replayed)
}

/// Variables whose values look like keys that every process inside can read.
fn keys_in(env: &BTreeMap<String, String>) -> Vec<String> {
    let known = env.iter().filter_map(|(name, value)| {
        let kind = cove_model::secret::known_key(value)?;
        Some(format!(
            "env {name} looks like {kind}, which everything in the sandbox can read; \
             store it with `cove secret set` and give it with `--secret NAME={name}`"
        ))
    });
    known.collect()
}

/// The request as it was written, where it names what may mean something else later.
fn as_asked(body: &CreateSandbox) -> Result<Option<String>, Failure> {
    let names = body.template.is_some() || body.snapshot.is_some() || body.volumes.is_some();
    let written = names.then(|| serde_json::to_string(body)).transpose();
    written.map_err(|error| {
        Failure::new(ErrorCode::Internal, "the request cannot be hashed").because(&error)
    })
}

/// What the request's own settings are put over, with the volumes that it names.
async fn base(
    app: &App,
    caller: &Caller,
    source: Source,
    body: &CreateSandbox,
) -> Result<Base, ControlError> {
    let mut base = app.control.base(&caller.principal, source).await?;
    if let Some(volumes) = &body.volumes {
        let asked = volumes.iter().map(mount_request).collect();
        base.spec.volumes = app.control.mounts(&caller.principal, asked).await?;
    }
    Ok(base)
}

pub fn mount_request(mount: &Mount) -> MountRequest {
    MountRequest {
        volume: mount.volume.clone(),
        path: mount.path.clone(),
        read_only: mount.read_only,
    }
}

/// The one thing that the request names to begin from.
fn source(body: &CreateSandbox) -> Result<Source, Failure> {
    let memory = body.memory;
    match (&body.image, &body.snapshot, &body.template) {
        (None, Some(snapshot), None) => Ok(Source::Snapshot {
            snapshot: snapshot.clone(),
            memory,
        }),
        (None, None, Some(_)) if memory => Err(Failure::invalid(
            "memory is for snapshots; a template defines whether it has memory",
        )),
        (_, None, None) if memory => Err(Failure::invalid("memory needs a snapshot")),
        (None, None, Some(template)) => Ok(Source::Template(template.clone())),
        (image, None, None) => Ok(Source::Image(image.clone())),
        _ => Err(Failure::invalid(
            "give only one of image, snapshot and template",
        )),
    }
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
        oldest_first: false,
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
                "labels must be key=value pairs, separated by commas",
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
        env: None,
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
    Query(query): Query<HolderQuery>,
    Names(id): Names<String>,
) -> Answer {
    let principal = &caller.principal;
    match query.holder {
        None => app.control.delete_sandbox(principal, &id).await?,
        Some(holder) => app.control.delete_held(principal, &id, holder).await?,
    }
    nothing()
}

pub async fn take_lease(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<LeaseRequest>,
) -> Answer {
    let times = app.control.lease_times();
    let taken = app
        .control
        .take_lease(&caller.principal, &id, move |present| match present {
            Some(present) => body.over(Some(&present)),
            None => body.with_times(times).over(None),
        })
        .await?;
    ok(convert::sandbox(taken))
}

pub async fn end_lease(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<HolderQuery>,
    Names(id): Names<String>,
) -> Answer {
    app.control
        .end_lease(&caller.principal, &id, query.holder)
        .await?;
    nothing()
}

pub async fn renew_leases(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<RenewLeases>,
) -> Answer {
    let lost = app
        .control
        .renew_leases(&caller.principal, &body.holder, body.sandboxes)
        .await?;
    ok(RenewedLeases { lost })
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
