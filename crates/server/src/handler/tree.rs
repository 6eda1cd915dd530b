//! The file tree: listing, describing, watching, making, moving, removing.

use axum::extract::State;
use cove_api::NoQuery;
use cove_api::file::{
    ChangeKind, ChangeMode, FileChange, ListFiles, Listing, MakeDirectory, MoveFile, RemoveFile,
    StatFile, WatchFiles,
};
use cove_control::GuestAction;
use cove_dialect::Kind;
use cove_limits::{LIST_DEPTH_MAX, LIST_ENTRIES_MAX};
use cove_protocol::message::{ListDir, MakeDir, Move, PathRequest, Remove, SetAttributes, Watch};

use super::files::{mode, owner, path, path_failure, user};
use super::{Answer, nothing, ok};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query};
use crate::failure::Failure;
use crate::state::App;
use crate::streaming::ndjson;

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListFiles>,
    Names(id): Names<String>,
) -> Answer {
    let depth = query.depth.unwrap_or(1);
    let limit = query.limit.unwrap_or(LIST_ENTRIES_MAX);
    if !(1..=LIST_DEPTH_MAX).contains(&depth) || !(1..=LIST_ENTRIES_MAX).contains(&limit) {
        return Err(Failure::invalid(format!(
            "depth must be between 1 and {LIST_DEPTH_MAX}, limit between 1 and {LIST_ENTRIES_MAX}"
        )));
    }
    let path = path(query.path)?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::FileRead)
        .await?;
    let user = user(&access, query.user)?;
    let listing = access
        .guest()
        .list(ListDir {
            path,
            user,
            depth,
            limit,
        })
        .await
        .map_err(path_failure)?;
    let items = listing.entries.into_iter().map(convert::file).collect();
    ok(Listing {
        items,
        truncated: listing.truncated,
    })
}

pub async fn stat(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<StatFile>,
    Names(id): Names<String>,
) -> Answer {
    let path = path(query.path)?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::FileRead)
        .await?;
    let user = user(&access, query.user)?;
    let request = PathRequest {
        path,
        user,
        follow: query.follow,
    };
    ok(convert::file(
        access.guest().stat(request).await.map_err(path_failure)?,
    ))
}

pub async fn watch(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<WatchFiles>,
    Names(id): Names<String>,
) -> Answer {
    let path = path(query.path)?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::FileWatch)
        .await?;
    let user = user(&access, query.user)?;
    let request = Watch {
        path: path.clone(),
        user,
        recursive: query.recursive,
    };
    let slot = app.front.streams.enter(&caller.principal.org, Kind::Live)?;
    let watcher = access
        .listener()
        .watch(request)
        .await
        .map_err(path_failure)?;
    let ready = FileChange {
        kind: ChangeKind::Ready,
        path,
        from: None,
        directory: true,
    };
    let state = (watcher, access, Some(ready), app.draining.clone());
    let changes = futures_util::stream::unfold(
        state,
        |(mut watcher, access, mut ready, until)| async move {
            if let Some(ready) = ready.take() {
                return Some((ready, (watcher, access, None, until)));
            }
            loop {
                let change = tokio::select! {
                    change = watcher.next() => change,
                    () = until.cancelled() => return None,
                };
                match change {
                    Ok(Some(change)) => {
                        if let Some(change) = convert::change(change) {
                            return Some((change, (watcher, access, None, until)));
                        }
                    }
                    Ok(None) | Err(_) => return None,
                }
            }
        },
    );
    Ok(ndjson(&app, slot.hold(changes)))
}

pub async fn mkdir(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<MakeDirectory>,
) -> Answer {
    let path = path(body.path)?;
    let mode = mode(body.mode.as_deref())?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::FileMkdir)
        .await?;
    let user = user(&access, body.user)?;
    let request = MakeDir {
        path,
        user,
        mode,
        parents: body.parents,
    };
    access.guest().mkdir(request).await.map_err(path_failure)?;
    nothing()
}

pub async fn rename(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<MoveFile>,
) -> Answer {
    let (from, to) = (path(body.from)?, path(body.to)?);
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::FileMove)
        .await?;
    let user = user(&access, body.user)?;
    let request = Move {
        from,
        to,
        user,
        replace: body.replace,
    };
    access.guest().rename(request).await.map_err(path_failure)?;
    nothing()
}

pub async fn chmod(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<ChangeMode>,
) -> Answer {
    if body.mode.is_none() && body.owner.is_none() {
        return Err(Failure::invalid("give a mode, an owner or both"));
    }
    let path = path(body.path)?;
    let mode = mode(body.mode.as_deref())?;
    let owner = owner(body.owner)?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::FileAttributes)
        .await?;
    let user = user(&access, body.user)?;
    let request = SetAttributes {
        path,
        user,
        mode,
        owner,
    };
    access
        .guest()
        .set_attributes(request)
        .await
        .map_err(path_failure)?;
    nothing()
}

pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<RemoveFile>,
    Names(id): Names<String>,
) -> Answer {
    let path = path(query.path)?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::FileRemove)
        .await?;
    let user = user(&access, query.user)?;
    let request = Remove {
        path,
        user,
        recursive: query.recursive,
    };
    access.guest().remove(request).await.map_err(path_failure)?;
    nothing()
}
