//! Volumes, and their files without a sandbox.

use axum::extract::State;
use axum::http::HeaderMap;
use cove_api::file::{
    ChangeMode, ListFiles, MakeDirectory, MoveFile, ReadFile, RemoveFile, StatFile, WriteFile,
};
use cove_api::volume::CreateVolume;
use cove_api::{NoQuery, PageQuery};

use super::place::Place;
use super::sandboxes::idempotency_key;
use super::{Answer, files, made, nothing, ok, page_request, tree};
use crate::convert;
use crate::extract::{Caller, Json, Names, Pieces, Query};
use crate::state::App;

pub async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    headers: HeaderMap,
    Json(body): Json<CreateVolume>,
) -> Answer {
    let request = cove_control::CreateVolume {
        name: body.name,
        size_mb: body.size_mb,
        from: body.from,
        read_only: body.read_only,
        placement: body.placement,
        idempotency_key: idempotency_key(&headers)?,
    };
    let created = app
        .control
        .create_volume(&caller.principal, request)
        .await?;
    made(convert::volume(created.volume), created.replayed)
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Answer {
    let page = page_request(query)?;
    let found = app.control.list_volumes(&caller.principal, &page).await?;
    ok(convert::page(found, convert::volume))
}

pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(volume): Names<String>,
) -> Answer {
    let (found, users) = app.control.get_volume(&caller.principal, &volume).await?;
    let mut shown = convert::volume(found);
    shown.used_by = Some(users.into_iter().map(|user| user.id.into()).collect());
    ok(shown)
}

pub async fn delete(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(volume): Names<String>,
) -> Answer {
    app.control
        .delete_volume(&caller.principal, &volume)
        .await?;
    nothing()
}

pub async fn read_file(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ReadFile>,
    Names(volume): Names<String>,
    headers: HeaderMap,
) -> Answer {
    files::read_at(app, caller, query, Place::Volume(volume), headers).await
}

pub async fn write_file(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<WriteFile>,
    Names(volume): Names<String>,
    pieces: Pieces,
) -> Answer {
    files::write_at(app, caller, query, Place::Volume(volume), pieces).await
}

pub async fn remove_file(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<RemoveFile>,
    Names(volume): Names<String>,
) -> Answer {
    tree::remove_at(app, caller, query, Place::Volume(volume)).await
}

pub async fn list_files(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListFiles>,
    Names(volume): Names<String>,
) -> Answer {
    tree::list_at(app, caller, query, Place::Volume(volume)).await
}

pub async fn stat_file(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<StatFile>,
    Names(volume): Names<String>,
) -> Answer {
    tree::stat_at(app, caller, query, Place::Volume(volume)).await
}

pub async fn make_directory(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(volume): Names<String>,
    Json(body): Json<MakeDirectory>,
) -> Answer {
    tree::mkdir_at(app, caller, body, Place::Volume(volume)).await
}

pub async fn move_file(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(volume): Names<String>,
    Json(body): Json<MoveFile>,
) -> Answer {
    tree::rename_at(app, caller, body, Place::Volume(volume)).await
}

pub async fn change_mode(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(volume): Names<String>,
    Json(body): Json<ChangeMode>,
) -> Answer {
    tree::chmod_at(app, caller, body, Place::Volume(volume)).await
}
