//! Snapshots and forks.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use axum::response::IntoResponse;
use cove_control::{
    ForkRequest, PageRequest, SandboxPatch, SnapshotKind, SnapshotRecord, TakeSnapshot,
};

use super::shapes::{Fork, Forked, NewSnapshot, SnapshotShown, SnapshotsQuery};
use super::{Answer, Caller, Json, Query, Which, settings, with_status};
use crate::refusal::{Kind, Refusal};
use crate::{Dialect, naming};

const NEXT_TOKEN: &str = "x-next-token";
/// Children of one fork, by E2B's contract.
const FORKS_MAX: u32 = 20;

fn shown(row: &SnapshotRecord) -> SnapshotShown {
    SnapshotShown {
        id: row.id.to_string(),
        names: row
            .name
            .iter()
            .map(|name| naming::snapshot_shown(name))
            .collect(),
    }
}

pub async fn take(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Which(id): Which,
    Json(request): Json<NewSnapshot>,
) -> Answer {
    let wish = TakeSnapshot {
        name: request.name.as_deref().map(naming::snapshot_kept),
        memory: request.memory.unwrap_or(true),
        durable: false,
        idempotency_key: None,
    };
    let control = &dialect.front.control;
    let taken = control.take_snapshot(&principal, id.as_str(), wish).await?;
    with_status(StatusCode::CREATED, shown(&taken.snapshot))
}

pub async fn list(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Query(query): Query<SnapshotsQuery>,
) -> Answer {
    let control = &dialect.front.control;
    let sandbox = match query.sandbox.as_deref().map(naming::meant) {
        None => None,
        Some(Some(id)) => Some(id),
        // What is no id has no snapshots.
        Some(None) => return with_status(StatusCode::OK, Vec::<SnapshotShown>::new()),
    };
    let page = PageRequest {
        limit: query.limit.unwrap_or(0),
        cursor: query.next_token,
    };
    let which = sandbox.as_ref().map(|id| id.as_str());
    let name = query.name.as_deref().map(naming::snapshot_kept);
    let wanted = |row: &SnapshotRecord| {
        matches!(row.kind, SnapshotKind::Manual | SnapshotKind::Import)
            && name
                .as_ref()
                .is_none_or(|name| row.name.as_ref() == Some(name))
    };
    let page = control.pick_snapshots(&principal, which, &page, wanted);
    let page = page.await?;
    let rows: Vec<SnapshotShown> = page.items.iter().map(shown).collect();
    let mut response = axum::Json(rows).into_response();
    if let Some(cursor) = page.next_cursor {
        let value = HeaderValue::from_str(&cursor)
            .map_err(|_| Refusal::new(Kind::Internal, "cannot write the token of the next page"))?;
        response.headers_mut().insert(NEXT_TOKEN, value);
    }
    Ok(response)
}

pub async fn fork(
    State(dialect): State<Dialect>,
    Caller(principal): Caller,
    Which(id): Which,
    Json(request): Json<Fork>,
) -> Answer {
    let timeout = settings::seconds(request.timeout)?;
    let count = request.count.unwrap_or(1);
    if !(1..=FORKS_MAX).contains(&count) {
        return Err(Refusal::invalid(format!("count must be between 1 and {FORKS_MAX}")).into());
    }
    let control = &dialect.front.control;
    let wish = ForkRequest {
        count,
        memory: true,
        ..ForkRequest::default()
    };
    let children = control.fork_sandbox(&principal, id.as_str(), wish).await?;
    let mut told = Vec::new();
    for child in children {
        let timed = match child {
            Err(error) => Err(error),
            Ok(child) => {
                let age = control.age(&child);
                let patch = SandboxPatch {
                    lifecycle: Some(settings::prolonged(&child, timeout, age)),
                    ..SandboxPatch::default()
                };
                let which = child.id.as_str();
                control.update_sandbox(&principal, which, patch).await
            }
        };
        told.push(match timed {
            Ok(child) => Forked::Sandbox(Box::new(dialect.opened(&principal, &child)?)),
            Err(error) => {
                let refusal = Refusal::from(error);
                Forked::Error {
                    code: refusal.status(),
                    message: refusal.message,
                }
            }
        });
    }
    with_status(StatusCode::CREATED, told)
}
