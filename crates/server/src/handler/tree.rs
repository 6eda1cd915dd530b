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
use super::place::Place;
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
    list_at(app, caller, query, Place::Sandbox(id)).await
}

pub async fn list_at(app: App, caller: Caller, query: ListFiles, place: Place) -> Answer {
    let depth = query.depth.unwrap_or(1);
    let limit = query.limit.unwrap_or(LIST_ENTRIES_MAX);
    if !(1..=LIST_DEPTH_MAX).contains(&depth) || !(1..=LIST_ENTRIES_MAX).contains(&limit) {
        return Err(Failure::invalid(format!(
            "depth must be between 1 and {LIST_DEPTH_MAX}, limit between 1 and {LIST_ENTRIES_MAX}"
        )));
    }
    let path = place.path(query.path)?;
    let access = place.reach(&app, &caller, GuestAction::FileRead).await?;
    let user = access.user(query.user)?;
    let listing = access
        .guest()
        .list(ListDir {
            path,
            user,
            depth,
            limit,
        })
        .await
        .map_err(|error| access.failure(error))?;
    let entries = listing.entries.into_iter();
    let items = entries.map(|file| access.shown(file)).collect();
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
    stat_at(app, caller, query, Place::Sandbox(id)).await
}

pub async fn stat_at(app: App, caller: Caller, query: StatFile, place: Place) -> Answer {
    let path = place.path(query.path)?;
    let access = place.reach(&app, &caller, GuestAction::FileRead).await?;
    let user = access.user(query.user)?;
    let request = PathRequest {
        path,
        user,
        follow: query.follow,
    };
    let found = access.guest().stat(request).await;
    ok(access.shown(found.map_err(|error| access.failure(error))?))
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
    mkdir_at(app, caller, body, Place::Sandbox(id)).await
}

pub async fn mkdir_at(app: App, caller: Caller, body: MakeDirectory, place: Place) -> Answer {
    let path = place.path(body.path)?;
    let mode = mode(body.mode.as_deref())?;
    let access = place.reach(&app, &caller, GuestAction::FileMkdir).await?;
    access.check_inside(&path).await?;
    let user = access.user(body.user)?;
    let request = MakeDir {
        path,
        user,
        mode,
        parents: body.parents,
    };
    let made = access.guest().mkdir(request).await;
    made.map_err(|error| access.failure(error))?;
    nothing()
}

pub async fn rename(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<MoveFile>,
) -> Answer {
    rename_at(app, caller, body, Place::Sandbox(id)).await
}

pub async fn rename_at(app: App, caller: Caller, body: MoveFile, place: Place) -> Answer {
    let (from, to) = (place.path(body.from)?, place.path(body.to)?);
    let access = place.reach(&app, &caller, GuestAction::FileMove).await?;
    for path in [&from, &to] {
        access.check_name_inside(path).await?;
    }
    let user = access.user(body.user)?;
    let request = Move {
        from,
        to,
        user,
        replace: body.replace,
    };
    let moved = access.guest().rename(request).await;
    moved.map_err(|error| access.failure(error))?;
    nothing()
}

pub async fn chmod(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<ChangeMode>,
) -> Answer {
    chmod_at(app, caller, body, Place::Sandbox(id)).await
}

pub async fn chmod_at(app: App, caller: Caller, body: ChangeMode, place: Place) -> Answer {
    if body.mode.is_none() && body.owner.is_none() {
        return Err(Failure::invalid("give a mode, an owner or both"));
    }
    let path = place.path(body.path)?;
    let mode = mode(body.mode.as_deref())?;
    let owner = owner(body.owner)?;
    let access = place
        .reach(&app, &caller, GuestAction::FileAttributes)
        .await?;
    access.check_inside(&path).await?;
    let user = access.user(body.user)?;
    let request = SetAttributes {
        path,
        user,
        mode,
        owner,
    };
    let changed = access.guest().set_attributes(request).await;
    changed.map_err(|error| access.failure(error))?;
    nothing()
}

pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<RemoveFile>,
    Names(id): Names<String>,
) -> Answer {
    remove_at(app, caller, query, Place::Sandbox(id)).await
}

pub async fn remove_at(app: App, caller: Caller, query: RemoveFile, place: Place) -> Answer {
    let path = place.path(query.path)?;
    let access = place.reach(&app, &caller, GuestAction::FileRemove).await?;
    access.check_name_inside(&path).await?;
    let user = access.user(query.user)?;
    let request = Remove {
        path,
        user,
        recursive: query.recursive,
    };
    let removed = access.guest().remove(request).await;
    removed.map_err(|error| access.failure(error))?;
    nothing()
}
