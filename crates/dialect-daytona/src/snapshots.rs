//! Snapshots and forks. What Daytona calls a snapshot is anything a sandbox can begin from, so images
//! are listed among them.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cove_control::{
    ErrorCode, ForkRequest, ImageView, PageRequest, Principal, SnapshotRecord, TakeSnapshot,
};
use cove_dialect::Front;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::asking::{Caller, Json, Names, Query};
use crate::convert::{self, time_text};
use crate::refusal::{Answer, Refusal};
use crate::server_address::ServerAddress;

/// Snapshots read at once, and in all: Daytona counts them, and pages by number.
const READ_AT_ONCE: u32 = 200;
const ALL_MAX: usize = 10_000;
const PAGE_MAX: usize = 200;
const PAGE_DEFAULT: usize = 100;
const BYTES_PER_GIB: f64 = 1024.0 * 1024.0 * 1024.0;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fork {
    name: Option<String>,
}

/// The child boots from the parent's disk as it is, as Daytona's do.
pub async fn fork(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
    Json(body): Json<Fork>,
) -> Answer {
    let mut request = ForkRequest::default();
    request.children.name = body.name;
    let made = front.control.fork_sandbox(&caller, &id, request).await?;
    let child = made
        .into_iter()
        .next()
        .ok_or_else(|| Refusal::new(500, "INTERNAL", "the fork made no sandbox"))??;
    Ok(axum::Json(convert::sandbox(child, place.toolbox())).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Take {
    name: String,
    #[serde(default)]
    include_memory: Option<bool>,
}

pub async fn take(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    place: ServerAddress,
    Json(body): Json<Take>,
) -> Answer {
    let request = TakeSnapshot {
        name: Some(body.name),
        memory: body.include_memory.unwrap_or(false),
        durable: false,
        idempotency_key: None,
    };
    front.control.take_snapshot(&caller, &id, request).await?;
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    Ok(axum::Json(convert::sandbox(sandbox, place.toolbox())).into_response())
}

fn shown(record: &SnapshotRecord) -> Value {
    let resources = &record.spec.resources;
    let facts = &record.facts;
    let bytes = facts.exclusive_bytes + facts.shared_bytes + facts.memory_bytes;
    let created = time_text(record.created_at);
    let id = record.id.to_string();
    json!({
        "id": id,
        "organizationId": record.org.to_string(),
        "general": false,
        "name": record.name.as_deref().unwrap_or(&id),
        "imageName": record.spec.image,
        "state": "active",
        "size": bytes as f64 / BYTES_PER_GIB,
        "entrypoint": null,
        "cpu": resources.cpu,
        "gpu": 0,
        "mem": resources.memory_mb as f64 / 1024.0,
        "disk": resources.disk_mb as f64 / 1024.0,
        "errorReason": null,
        "createdAt": created,
        "updatedAt": created,
        "lastUsedAt": null,
    })
}

fn image(view: &ImageView) -> Value {
    let resources = cove_model::Resources::default();
    let created = time_text(view.created_at);
    let id = view.id.to_string();
    json!({
        "id": id,
        "general": true,
        "name": view.names.first().unwrap_or(&id),
        "imageName": view.source,
        "state": "active",
        "size": view.size_bytes as f64 / BYTES_PER_GIB,
        "entrypoint": null,
        "cpu": resources.cpu,
        "gpu": 0,
        "mem": resources.memory_mb as f64 / 1024.0,
        "disk": resources.disk_mb as f64 / 1024.0,
        "errorReason": null,
        "createdAt": created,
        "updatedAt": created,
        "lastUsedAt": null,
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Listing {
    page: Option<usize>,
    limit: Option<usize>,
    name: Option<String>,
    source_sandbox_id: Option<String>,
}

pub async fn list(
    State(front): State<Front>,
    Caller(caller): Caller,
    Query(query): Query<Listing>,
) -> Answer {
    let (page, limit) = (query.page.unwrap_or(1), query.limit.unwrap_or(PAGE_DEFAULT));
    if page == 0 || !(1..=PAGE_MAX).contains(&limit) {
        let message = format!("page begins at 1, and limit is between 1 and {PAGE_MAX}");
        return Err(Refusal::invalid(message));
    }
    let source = query.source_sandbox_id.as_deref();
    let mut all: Vec<Value> = Vec::new();
    let mut cursor = None;
    while all.len() < ALL_MAX {
        let request = PageRequest {
            limit: READ_AT_ONCE,
            cursor,
        };
        let found = front
            .control
            .list_snapshots(&caller, source, &request)
            .await?;
        // What was taken without being asked for by name is no template.
        let named = found.items.iter().filter(|record| record.name.is_some());
        all.extend(named.map(shown));
        cursor = found.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if source.is_none() {
        all.extend(front.control.list_images(&caller).await?.iter().map(image));
    }
    if let Some(part) = &query.name {
        all.retain(|item| {
            item["name"]
                .as_str()
                .is_some_and(|name| name.contains(part.as_str()))
        });
    }
    let total = all.len();
    let items: Vec<Value> = all
        .into_iter()
        .skip((page - 1).saturating_mul(limit))
        .take(limit)
        .collect();
    let answer = json!({
        "items": items,
        "total": total,
        "page": page,
        "totalPages": total.div_ceil(limit),
    });
    Ok(axum::Json(answer).into_response())
}

async fn found(front: &Front, caller: &Principal, which: &str) -> Result<Value, Refusal> {
    match front.control.get_snapshot(caller, which).await {
        Ok(record) => Ok(shown(&record)),
        Err(error) if error.code == ErrorCode::NotFound => {
            let images = front.control.list_images(caller).await?;
            let is_it = |view: &&ImageView| {
                view.id.as_str() == which || view.names.iter().any(|name| name == which)
            };
            images
                .iter()
                .find(is_it)
                .map(image)
                .ok_or_else(|| error.into())
        }
        Err(error) => Err(error.into()),
    }
}

pub async fn get(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(which): Names<String>,
) -> Answer {
    Ok(axum::Json(found(&front, &caller, &which).await?).into_response())
}

/// All that are there are active.
pub async fn activate(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(which): Names<String>,
) -> Answer {
    Ok(axum::Json(found(&front, &caller, &which).await?).into_response())
}

pub async fn delete(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(which): Names<String>,
) -> Answer {
    let item = found(&front, &caller, &which).await?;
    if item["general"] == json!(true) {
        return Err(Refusal::unsupported(
            "this is an image, not a snapshot of a sandbox; `cove image rm` removes it",
        ));
    }
    front.control.delete_snapshot(&caller, &which).await?;
    Ok(StatusCode::OK.into_response())
}
