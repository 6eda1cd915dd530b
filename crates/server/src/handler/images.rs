//! Images and the jobs that bring them.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use cove_api::NoQuery;
use cove_api::image::AddImage;
use cove_api::route::NDJSON;
use cove_control::{ImageJob, ImageSource, JobState};
use cove_dialect::{Kind, Slot};

use super::{Answer, nothing, ok, with_status};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query, accepts};
use crate::failure::Failure;
use crate::state::App;
use crate::streaming::ndjson;

/// How often a job's progress is looked at for a live answer.
const POLL: Duration = Duration::from_millis(200);

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let images = app.control.list_images(&caller.principal).await?;
    ok(convert::everything(
        images.into_iter().map(convert::image).collect(),
    ))
}

pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(image): Names<String>,
) -> Answer {
    ok(convert::image(
        app.control.get_image(&caller.principal, &image).await?,
    ))
}

pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(image): Names<String>,
) -> Answer {
    app.control.remove_image(&caller.principal, &image).await?;
    nothing()
}

pub async fn add(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    headers: HeaderMap,
    Json(body): Json<AddImage>,
) -> Answer {
    let principal = &caller.principal;
    let slot = slot(&app, &caller, &headers)?;
    let job = match body {
        AddImage::Snapshot { snapshot, name } => {
            app.control
                .image_from_snapshot(principal, &snapshot, &name)
                .await?
        }
        other => app.control.add_image(principal, source(other)?).await?,
    };
    if let Some(slot) = slot {
        return Ok(progress(app, caller, job, slot));
    }
    with_status(StatusCode::ACCEPTED, convert::image_job(job))
}

fn source(body: AddImage) -> Result<ImageSource, Failure> {
    let text = |name: &str, value: &str, max: usize| {
        if value.is_empty() || value.len() > max || value.chars().any(char::is_control) {
            return Err(Failure::invalid(format!(
                "{name}: must have 1 to {max} bytes and no control characters"
            )));
        }
        Ok(())
    };
    match body {
        AddImage::Registry {
            reference,
            username,
            password,
        } => {
            text("reference", &reference, 512)?;
            if username.is_some() != password.is_some() {
                return Err(Failure::invalid(
                    "give both username and password, or neither",
                ));
            }
            if let (Some(username), Some(password)) = (&username, &password) {
                text("username", username, 256)?;
                text("password", password, 4096)?;
            }
            Ok(ImageSource::Registry {
                reference,
                username,
                password,
            })
        }
        AddImage::Debian {} => Ok(ImageSource::Debian),
        AddImage::CodeInterpreter {} => Ok(ImageSource::CodeInterpreter),
        AddImage::Snapshot { .. } => Err(Failure::invalid(
            "a snapshot cannot be used as a source here",
        )),
        AddImage::Local { name, path } => {
            text("name", &name, 512)?;
            cove_model::spec::check_absolute("path", &path)
                .map_err(|error| Failure::invalid(error.to_string()))?;
            Ok(ImageSource::Local { name, path })
        }
    }
}

pub async fn job(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(job): Names<String>,
    headers: HeaderMap,
) -> Answer {
    let slot = slot(&app, &caller, &headers)?;
    let job = app.control.image_job(&caller.principal, &job).await?;
    if let Some(slot) = slot {
        return Ok(progress(app, caller, job, slot));
    }
    ok(convert::image_job(job))
}

/// A place among the organisation's streams, for whoever wants to see a job move.
fn slot(app: &App, caller: &Caller, headers: &HeaderMap) -> Result<Option<Slot>, Failure> {
    if !accepts(headers, NDJSON) {
        return Ok(None);
    }
    let entered = app.front.streams.enter(&caller.principal.org, Kind::Live)?;
    Ok(Some(entered))
}

/// The job now, and again whenever it moved, until it is over.
fn progress(app: App, caller: Caller, job: ImageJob, slot: Slot) -> axum::response::Response {
    struct State {
        app: App,
        caller: Caller,
        told: Option<ImageJob>,
        next: Option<ImageJob>,
    }
    let state = State {
        app: app.clone(),
        caller,
        told: None,
        next: Some(job),
    };
    let jobs = futures_util::stream::unfold(state, |mut state| async move {
        if let Some(job) = state.next.take() {
            state.told = Some(job.clone());
            return Some((convert::image_job(job), state));
        }
        loop {
            let last = state.told.as_ref()?;
            if last.state != JobState::Running {
                return None;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = state.app.draining.cancelled() => return None,
            }
            let job = state
                .app
                .control
                .image_job(&state.caller.principal, &last.id)
                .await
                .ok()?;
            if job != *last {
                state.told = Some(job.clone());
                return Some((convert::image_job(job), state));
            }
        }
    });
    ndjson(&app, slot.hold(jobs))
}
