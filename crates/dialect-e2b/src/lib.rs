//! Cove as programs written for E2B know it.
//!
//! Two contracts under one address, as those programs expect: the *plane* makes, lists and ends
//! sandboxes, asked with an API key; *envd* is what they believe runs inside each sandbox, named by two
//! headers and opened with a token that making the sandbox gave. Nothing runs inside but Cove's own
//! guest: both are translations of calls of [`cove_control::Control`], with no state of their own but
//! the watchers that some clients poll.
//!
//! What cannot be said in Cove's terms is refused in E2B's own form; docs/compat/e2b.md is the list.
#![forbid(unsafe_code)]

mod envd;
mod naming;
mod plane;
mod refusal;
mod volume_files;

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post, put};
use cove_dialect::Front;

/// What every handler shares.
#[derive(Clone)]
pub(crate) struct Dialect {
    front: Front,
    watchers: Arc<envd::Watchers>,
    waiting: Arc<plane::builds::Waiting>,
}

/// What is answered below `/e2b`.
pub fn router(front: Front) -> Router {
    let dialect = Dialect {
        front,
        watchers: Arc::default(),
        waiting: Arc::default(),
    };
    Router::new()
        .route("/health", get(envd::health))
        .merge(plane_routes())
        .merge(envd_routes())
        .merge(volume_routes())
        .fallback(plane::elsewhere)
        .method_not_allowed_fallback(plane::elsewhere)
        .with_state(dialect)
}

/// Links to files that their makers signed: they name neither a sandbox nor this dialect.
pub fn signed_files(front: Front) -> Router {
    let dialect = Dialect {
        front,
        watchers: Arc::default(),
        waiting: Arc::default(),
    };
    Router::new()
        .route(
            "/files",
            get(envd::files::read_signed).post(envd::files::write_signed),
        )
        .with_state(dialect)
}

fn plane_routes() -> Router<Dialect> {
    use plane::{builds, sandboxes, snapshots, templates};
    Router::new()
        .route(
            "/sandboxes",
            post(sandboxes::create).get(sandboxes::list_running),
        )
        .route(
            "/v2/sandboxes",
            post(sandboxes::create).get(sandboxes::list),
        )
        .route(
            "/sandboxes/{id}",
            get(sandboxes::get).delete(sandboxes::kill),
        )
        .route("/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/v2/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/sandboxes/{id}/timeout", post(sandboxes::set_timeout))
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/sandboxes/{id}/network", put(sandboxes::update_network))
        .route("/sandboxes/{id}/metrics", get(sandboxes::metrics))
        .route("/sandboxes/{id}/snapshots", post(snapshots::take))
        .route("/sandboxes/{id}/fork", post(snapshots::fork))
        .route("/snapshots", get(snapshots::list))
        .route("/templates", get(templates::list))
        .route("/v2/templates", get(templates::list))
        .route(
            "/templates/{id}",
            get(templates::get).delete(templates::remove),
        )
        .route(
            "/templates/tags",
            post(templates::assign_tags).delete(templates::remove_tags),
        )
        .route("/templates/{id}/tags", get(templates::tags))
        .route("/templates/aliases/{alias}", get(templates::alias))
        .route("/v3/templates", post(builds::reserve))
        .route("/templates/{id}/files/{hash}", get(builds::files))
        .route("/v2/templates/{id}/builds/{build}", post(builds::start))
        .route("/templates/{id}/builds/{build}/status", get(builds::status))
        .route(builds::UPLOAD, put(builds::upload))
}

fn volume_routes() -> Router<Dialect> {
    use plane::volumes;
    Router::new()
        .route("/volumes", get(volumes::list).post(volumes::create))
        .route("/volumes/{id}", get(volumes::get).delete(volumes::destroy))
        .route(
            "/volumecontent/{id}/path",
            get(volume_files::stat)
                .patch(volume_files::update)
                .delete(volume_files::remove),
        )
        .route(
            "/volumecontent/{id}/dir",
            get(volume_files::list).post(volume_files::make_dir),
        )
        .route(
            "/volumecontent/{id}/file",
            get(volume_files::read).put(volume_files::write),
        )
}

fn envd_routes() -> Router<Dialect> {
    use envd::{code, files, filesystem, process};
    Router::new()
        .route("/files", get(files::read).post(files::write))
        .route("/process.Process/List", post(process::list))
        .route("/process.Process/Start", post(process::start))
        .route("/process.Process/Connect", post(process::connect))
        .route("/process.Process/SendInput", post(process::send_input))
        .route("/process.Process/StreamInput", post(process::stream_input))
        .route("/process.Process/CloseStdin", post(process::close_stdin))
        .route("/process.Process/SendSignal", post(process::send_signal))
        .route("/process.Process/Update", post(process::update))
        .route("/filesystem.Filesystem/Stat", post(filesystem::stat))
        .route("/filesystem.Filesystem/MakeDir", post(filesystem::make_dir))
        .route("/filesystem.Filesystem/Move", post(filesystem::rename))
        .route("/filesystem.Filesystem/ListDir", post(filesystem::list_dir))
        .route("/filesystem.Filesystem/Remove", post(filesystem::remove))
        .route(
            "/filesystem.Filesystem/WatchDir",
            post(envd::watch::watch_dir),
        )
        .route(
            "/filesystem.Filesystem/CreateWatcher",
            post(envd::watch::create),
        )
        .route(
            "/filesystem.Filesystem/GetWatcherEvents",
            post(envd::watch::events),
        )
        .route(
            "/filesystem.Filesystem/RemoveWatcher",
            post(envd::watch::remove),
        )
        .route("/execute", post(code::execute))
        .route("/contexts", get(code::list).post(code::create))
        .route("/contexts/{id}", delete(code::remove))
        .route("/contexts/{id}/restart", post(code::restart))
}
