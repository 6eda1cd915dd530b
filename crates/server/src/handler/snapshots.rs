//! Snapshots, and what is made of them: forks, rollbacks, timelines, files.

use std::io;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use bytes::{Bytes, BytesMut};
use cove_api::route::BYTES;
use cove_api::snapshot::{
    Fork, Forked, ImportSnapshot, Imported, Rollback, RolledBack, TakeSnapshot,
};
use cove_api::{NoQuery, PageQuery};
use cove_control::{Children, ForkRequest, GuestStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::files::transfer;
use super::sandboxes::idempotency_key;
use super::{Answer, made, nothing, ok, page_request, with_status};
use crate::convert;
use crate::extract::{Caller, Json, JsonOr, Names, Pieces, Query};
use crate::failure::Failure;
use crate::state::App;
use crate::streaming::Counted;

/// Bytes of an export read at once.
const CHUNK: usize = 256 * 1024;

pub async fn take(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    headers: HeaderMap,
    JsonOr(body): JsonOr<TakeSnapshot>,
) -> Answer {
    let request = cove_control::TakeSnapshot {
        name: body.name,
        memory: body.memory,
        durable: body.durable,
        idempotency_key: idempotency_key(&headers)?,
    };
    let taken = app
        .control
        .take_snapshot(&caller.principal, &id, request)
        .await?;
    made(convert::snapshot(taken.snapshot), taken.replayed)
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Answer {
    let page = page_request(query)?;
    let found = app
        .control
        .list_snapshots(&caller.principal, None, &page)
        .await?;
    ok(convert::page(found, convert::snapshot))
}

pub async fn of_sandbox(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
    Names(id): Names<String>,
) -> Answer {
    let page = page_request(query)?;
    let found = app
        .control
        .list_snapshots(&caller.principal, Some(&id), &page)
        .await?;
    ok(convert::page(found, convert::snapshot))
}

pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(snapshot): Names<String>,
) -> Answer {
    ok(convert::snapshot(
        app.control
            .get_snapshot(&caller.principal, &snapshot)
            .await?,
    ))
}

pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(snapshot): Names<String>,
) -> Answer {
    app.control
        .delete_snapshot(&caller.principal, &snapshot)
        .await?;
    nothing()
}

fn fork_request(app: &App, headers: &HeaderMap, body: Fork) -> Result<ForkRequest, Failure> {
    Ok(ForkRequest {
        count: body.count.unwrap_or(1),
        memory: body.memory,
        children: Children {
            name: body.name,
            labels: body.labels,
            lease: body
                .lease
                .map(|lease| lease.with_times(app.control.lease_times()).over(None)),
        },
        idempotency_key: idempotency_key(headers)?,
        by_itself: false,
    })
}

fn children(
    made: Vec<Result<cove_control::Sandbox, cove_control::ControlError>>,
    request_id: &str,
) -> Answer {
    let children: Vec<Forked> = made
        .into_iter()
        .map(|one| match one {
            Ok(sandbox) => Forked::Sandbox(Box::new(convert::sandbox(sandbox))),
            Err(error) => Forked::Error(Failure::from(error).detail(request_id)),
        })
        .collect();
    ok(children)
}

pub async fn fork(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    headers: HeaderMap,
    JsonOr(body): JsonOr<Fork>,
) -> Answer {
    let request = fork_request(&app, &headers, body)?;
    let made = app
        .control
        .fork_sandbox(&caller.principal, &id, request)
        .await?;
    children(made, &caller.request_id)
}

pub async fn fork_snapshot(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(snapshot): Names<String>,
    headers: HeaderMap,
    JsonOr(body): JsonOr<Fork>,
) -> Answer {
    let request = fork_request(&app, &headers, body)?;
    let made = app
        .control
        .fork_snapshot(&caller.principal, &snapshot, request)
        .await?;
    children(made, &caller.request_id)
}

pub async fn rollback(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<Rollback>,
) -> Answer {
    let done = app
        .control
        .rollback_sandbox(&caller.principal, &id, &body.snapshot, body.memory)
        .await?;
    ok(RolledBack {
        sandbox: convert::sandbox(done.sandbox),
        kept: convert::snapshot(done.kept),
    })
}

pub async fn timeline(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    ok(convert::timeline(
        app.control.timeline(&caller.principal, &id).await?,
    ))
}

pub async fn export(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(snapshot): Names<String>,
) -> Answer {
    let (row, stream) = app
        .control
        .export_snapshot(&caller.principal, &snapshot)
        .await?;
    let slot = transfer(&app, &caller)?;
    let state = (stream, Counted::new(&app));
    let chunks = futures_util::stream::unfold(state, |(mut stream, counted)| async move {
        let mut chunk = BytesMut::with_capacity(CHUNK);
        // A file that breaks off here fails its own checksum where it is taken in.
        match stream.read_buf(&mut chunk).await {
            Ok(0) => None,
            Ok(_) => Some((Ok::<Bytes, io::Error>(chunk.freeze()), (stream, counted))),
            Err(error) => Some((Err(error), (stream, counted))),
        }
    });
    let mut response = Body::from_stream(slot.hold(chunks)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(BYTES));
    let name = row.name.as_deref().unwrap_or(row.id.as_str());
    let attachment = format!("attachment; filename=\"{name}.cove\"");
    if let Ok(value) = HeaderValue::try_from(attachment) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

pub async fn import(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ImportSnapshot>,
    mut pieces: Pieces,
) -> Answer {
    let needed = cove_control::Scope::Manage;
    app.control.expect(&caller.principal, needed, None).await?;
    let _slot = transfer(&app, &caller)?;
    let (mut ours, theirs) = UnixStream::pair().map_err(|error| {
        Failure::new(cove_api::ErrorCode::Unavailable, "no room for an upload").because(&error)
    })?;
    let pump = async move {
        while let Some(bytes) = pieces.next().await? {
            // Whoever stopped reading says why.
            if ours.write_all(&bytes).await.is_err() {
                break;
            }
        }
        Ok::<(), Failure>(())
    };
    let import =
        app.control
            .import_snapshot(&caller.principal, query.name, GuestStream::Unix(theirs));
    let (pumped, imported) = tokio::join!(pump, import);
    // An upload that broke off explains whatever was made of its beginning.
    pumped?;
    let imported = imported?;
    with_status(
        StatusCode::CREATED,
        Imported {
            snapshot: convert::snapshot(imported.snapshot),
            memory_refused: imported.memory_refused,
        },
    )
}
