//! What Daytona's daemon inside a sandbox answers.

use axum::Router;
use axum::routing::{delete, get, post};
use cove_dialect::Front;

use crate::{
    entrypoint, exec, files, git, info, interpreter, logs, search, sessions, settings, terminals,
    tree,
};

pub fn router() -> Router<Front> {
    Router::new()
        .route("/process/execute", post(exec::execute))
        .route("/process/code-run", post(exec::code_run))
        .route("/work-dir", get(exec::work_dir))
        .route("/user-home-dir", get(exec::home_dir))
        .route("/files", get(tree::list).delete(tree::remove))
        .route("/files/info", get(tree::info))
        .route("/files/folder", post(tree::folder))
        .route("/files/move", post(tree::rename))
        .route("/files/permissions", post(tree::permissions))
        .route("/files/bulk-upload", post(files::bulk_upload))
        .route("/files/upload-v2", post(files::upload))
        .route("/files/upload", post(files::upload))
        .route("/files/bulk-download", post(files::bulk_download))
        .route("/files/download", get(files::download))
        .route("/files/find", get(search::find))
        .route("/files/search", get(search::search))
        .route("/files/replace", post(search::replace))
        .route(
            "/process/session",
            get(sessions::list).post(sessions::create),
        )
        .route(
            "/process/session/{session}",
            get(sessions::get).delete(sessions::delete),
        )
        .route("/process/session/entrypoint", get(entrypoint::session))
        .route("/process/session/entrypoint/logs", get(entrypoint::output))
        .route("/process/session/{session}/exec", post(sessions::execute))
        .route(
            "/process/session/{session}/command/{command}",
            get(sessions::get_command),
        )
        .route(
            "/process/session/{session}/command/{command}/logs",
            get(logs::logs),
        )
        .route(
            "/process/session/{session}/command/{command}/input",
            post(sessions::input),
        )
        .route("/process/pty", get(terminals::list).post(terminals::create))
        .route(
            "/process/pty/create-connect",
            get(terminals::create_connect),
        )
        .route(
            "/process/pty/{session}",
            get(terminals::get).delete(terminals::delete),
        )
        .route("/process/pty/{session}/connect", get(terminals::connect))
        .route("/process/pty/{session}/resize", post(terminals::resize))
        .route(
            "/process/interpreter/context",
            get(interpreter::list).post(interpreter::create),
        )
        .route(
            "/process/interpreter/context/{context}",
            delete(interpreter::delete),
        )
        .route("/process/interpreter/execute", get(interpreter::execute))
        .route("/env", post(settings::environment))
        .route("/port", get(info::ports))
        .route("/port/{port}/in-use", get(info::port_in_use))
        .route("/system/metrics", get(info::metrics))
        .route("/git/init", post(git::work::init))
        .route("/git/add", post(git::work::add))
        .route("/git/commit", post(git::work::commit))
        .route(
            "/git/branches",
            get(git::work::branches)
                .post(git::work::create_branch)
                .delete(git::work::delete_branch),
        )
        .route("/git/checkout", post(git::work::checkout))
        .route("/git/reset", post(git::work::reset))
        .route("/git/restore", post(git::work::restore))
        .route("/git/history", get(git::work::history))
        .route("/git/status", get(git::status::get))
        .route("/git/clone", post(git::remote::clone))
        .route("/git/push", post(git::remote::push))
        .route("/git/pull", post(git::remote::pull))
        .route(
            "/git/remotes",
            get(git::remote::remotes).post(git::remote::add_remote),
        )
        .route(
            "/git/config",
            get(git::remote::get_config).post(git::remote::set_config),
        )
        .route("/git/config/user", post(git::remote::user))
        .route("/git/credentials", post(git::remote::authenticate))
        .merge(crate::refused::toolbox())
}
