//! Daytona's HTTP interface over the control plane, for programs written with its official SDKs.
//!
//! Requests are translated into calls of [`cove_control::Control`] and its answers back; there is no
//! second lifecycle and no second way to run a command. What Daytona keeps in a daemon inside the
//! sandbox (sessions, terminals) are processes of the guest here, found again by their tags, so nothing
//! of it is lost with the server. What cannot be expressed is refused in Daytona's own form
//! (module `refusal`); the SDKs turn that into their exceptions.
#![forbid(unsafe_code)]

mod asking;
mod build_logs;
mod convert;
mod entrypoint;
mod events;
mod exec;
mod file_links;
mod files;
mod git;
mod home;
mod images;
mod info;
mod interpreter;
mod lifecycle;
mod logs;
mod previews;
mod refusal;
mod refused;
mod sandboxes;
mod search;
mod server_address;
mod sessions;
mod settings;
mod snapshots;
mod ssh_access;
mod streams;
mod terminals;
mod toolbox;
mod tree;
mod volumes;
mod wire;

use axum::http::Uri;
use axum::middleware::from_fn;
use axum::routing::{get, post, put};
use axum::{Extension, Router};
use cove_dialect::Front;

use refusal::Refusal;

/// Where the server mounts this.
pub const MOUNT: &str = "/daytona";
/// Below the mount: what Daytona's daemon inside a sandbox answers, by sandbox.
const TOOLBOX: &str = "/toolbox/{sandbox}";

/// Everything this dialect answers, below [`MOUNT`].
pub fn router(front: Front) -> Router {
    let api = Router::new()
        .route("/config", get(server_address::config))
        .route("/socket.io/", get(events::listen))
        .route("/sandbox", post(sandboxes::create).get(sandboxes::list))
        .route(
            "/sandbox/{sandbox}",
            get(sandboxes::get).delete(sandboxes::delete),
        )
        .route(
            "/sandbox/{sandbox}/toolbox-proxy-url",
            get(server_address::toolbox),
        )
        .route("/sandbox/{sandbox}/start", post(lifecycle::start))
        .route("/sandbox/{sandbox}/recover", post(lifecycle::start))
        .route("/sandbox/{sandbox}/stop", post(lifecycle::stop))
        .route("/sandbox/{sandbox}/pause", post(lifecycle::pause))
        .route("/sandbox/{sandbox}/archive", post(lifecycle::archive))
        .route("/sandbox/{sandbox}/resize", post(lifecycle::resize))
        .route("/sandbox/{sandbox}/labels", put(settings::labels))
        .route(
            "/sandbox/{sandbox}/autostop/{minutes}",
            post(settings::auto_stop),
        )
        .route(
            "/sandbox/{sandbox}/autopause/{minutes}",
            post(settings::auto_pause),
        )
        .route(
            "/sandbox/{sandbox}/autoarchive/{minutes}",
            post(settings::auto_archive),
        )
        .route(
            "/sandbox/{sandbox}/autodelete/{minutes}",
            post(settings::auto_delete),
        )
        .route("/sandbox/{sandbox}/ttl/{minutes}", post(settings::ttl))
        .route(
            "/sandbox/{sandbox}/network-settings",
            post(settings::network),
        )
        .route("/sandbox/{sandbox}/last-activity", post(settings::activity))
        .route("/sandbox/{sandbox}/fork", post(snapshots::fork))
        .route("/sandbox/{sandbox}/snapshot", post(snapshots::take))
        .route(
            "/sandbox/{sandbox}/ports/{port}/preview-url",
            get(previews::link),
        )
        .route(
            "/sandbox/{sandbox}/ports/{port}/signed-preview-url",
            get(previews::signed),
        )
        .route(
            "/sandbox/{sandbox}/ports/{port}/signed-preview-url/{token}/expire",
            post(previews::expire),
        )
        .route(
            "/sandbox/{sandbox}/public/{public}",
            post(previews::publish),
        )
        .route("/snapshots", get(snapshots::list).post(snapshots::create))
        .route(
            "/snapshots/{snapshot}",
            get(snapshots::get).delete(snapshots::delete),
        )
        .route("/snapshots/{snapshot}/activate", post(snapshots::activate))
        .route(
            "/snapshots/{snapshot}/build-logs-url",
            get(snapshots::logs_url),
        )
        .route("/snapshots/{snapshot}/build-logs", get(snapshots::logs))
        .route("/sandbox/{sandbox}/build-logs-url", get(images::logs_url))
        .route("/sandbox/{sandbox}/build-logs", get(images::logs))
        .route(
            "/sandbox/{sandbox}/ssh-access",
            post(ssh_access::create).delete(ssh_access::revoke),
        )
        .route("/sandbox/ssh-access/validate", get(ssh_access::validate))
        .route("/sandbox/{sandbox}/signing-key", get(file_links::key))
        .route(
            "/sandbox/{sandbox}/signing-key/rotate",
            post(file_links::rotate),
        )
        .route("/volumes", get(volumes::list).post(volumes::create))
        .route(
            "/volumes/{volume}",
            get(volumes::get).delete(volumes::delete),
        )
        .route("/volumes/by-name/{volume}", get(volumes::get))
        .merge(refused::api())
        .fallback(nowhere)
        .method_not_allowed_fallback(nowhere)
        .layer(from_fn(refusal::from_api))
        .layer(Extension(images::Images::default()))
        .with_state(front.clone());
    let toolbox = toolbox::router()
        .fallback(nowhere)
        .method_not_allowed_fallback(nowhere)
        .layer(from_fn(refusal::from_daemon))
        .with_state(front);
    Router::new().nest(TOOLBOX, toolbox).merge(api)
}

async fn nowhere(uri: Uri) -> Refusal {
    let path: String = uri.path().chars().take(128).collect();
    Refusal::new(
        404,
        "NOT_FOUND",
        format!(
            "this server does not have '{}' of Daytona's interface",
            path.escape_debug()
        ),
    )
}
