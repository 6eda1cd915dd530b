//! Services: commands that come back with their sandbox.

use axum::extract::State;
use axum::http::StatusCode;
use cove_api::NoQuery;
use cove_api::service::{RestartPolicy, Service, ServiceState, StartService};
use cove_control::{GuestAction, GuestError, ServiceRequest};
use cove_model::spec::check_name;
use cove_protocol::message as guest;

use super::exec::command_line;
use super::{Answer, nothing, ok, with_status};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query};
use crate::failure::{self, About, Failure};
use crate::state::App;

fn service_failure(error: GuestError) -> Failure {
    failure::guest(error, About::Process)
}

pub async fn start(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<StartService>,
) -> Answer {
    let request = ServiceRequest {
        name: body.name,
        command: command_line(body.command, body.argv)?,
        cwd: body.cwd,
        env: body.env,
        user: body.user,
        restart: match body.restart {
            RestartPolicy::No => guest::Restart::No,
            RestartPolicy::OnFailure => guest::Restart::OnFailure,
            RestartPolicy::Always => guest::Restart::Always,
        },
    };
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ServiceStart)
        .await?;
    let start = access.service(request)?;
    let started = access.guest().start_service(start).await;
    let started = started.map_err(|error| failure::guest(error, About::Start))?;
    with_status(StatusCode::CREATED, service(started))
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ProcessRead)
        .await?;
    let all = access.services().await.map_err(service_failure)?;
    ok(convert::everything(all.into_iter().map(service).collect()))
}

pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((id, name)): Names<(String, String)>,
) -> Answer {
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ServiceRemove)
        .await?;
    if check_name(&name).is_err() {
        let shown: String = name.chars().take(64).collect();
        let message = format!("there is no service '{}'", shown.escape_debug());
        return Err(Failure::new(cove_api::ErrorCode::NotFound, message));
    }
    let removed = access.guest().remove_service(name).await;
    removed.map_err(service_failure)?;
    nothing()
}

fn service(status: guest::ServiceStatus) -> Service {
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let state = match status.state() {
        guest::ServiceState::Pending => ServiceState::Pending,
        guest::ServiceState::Running => ServiceState::Running,
        guest::ServiceState::Waiting => ServiceState::Waiting,
        guest::ServiceState::Ended => ServiceState::Ended,
    };
    let service = status.service.unwrap_or_default();
    Service {
        restart: match service.restart() {
            guest::Restart::No => RestartPolicy::No,
            guest::Restart::OnFailure => RestartPolicy::OnFailure,
            guest::Restart::Always => RestartPolicy::Always,
        },
        name: service.name,
        argv: Some(service.argv).filter(|argv| !argv.is_empty()),
        command: given(service.shell),
        cwd: given(service.cwd),
        user: given(service.user),
        state,
        process: status.process,
        restarts: status.restarts,
        last_exit: status.last_exit.as_ref().map(convert::exit),
        error: given(status.error),
    }
}
