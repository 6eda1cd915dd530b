//! Builds of templates from Dockerfiles.

use std::sync::Arc;

use axum::extract::State;
use cove_api::NoQuery;
use cove_api::build::{
    Build, BuildCacheCleared, BuildLogEvent, BuildStepState, Builds, CreateBuild,
};
use cove_api::sandbox::{Network, NetworkMode};
use cove_api::template::TemplateDefaults;
use cove_control::{BuildEvent, BuildLog, BuildRecord, Principal, StartCommand, StepState};
use cove_dialect::Kind;
use cove_model::{NetworkPolicy, SandboxSpec};

use super::files::transfer;
use super::sandboxes::mount_request;
use super::{Answer, nothing, ok};
use crate::extract::{Caller, Json, Names, Pieces, Query};
use crate::failure::Failure;
use crate::state::App;
use crate::streaming::ndjson;

/// What a build may reach when it does not say.
const DEFAULT_REACH: &str = "preset:packages";
/// How long a ready check may take when the build does not say.
const READY_DEFAULT_S: u64 = 60;

fn view(record: BuildRecord) -> Build {
    Build {
        id: record.id.into(),
        name: record.name,
        state: record.state,
        error: record.error,
        template: record.template.map(Into::into),
        steps: record.steps,
        cached: record.cached,
        created_at: record.created_at.into(),
        finished_at: record.finished_at.map(Into::into),
    }
}

/// A network policy as a create of a sandbox reads it.
fn reach(asked: Option<Network>) -> Result<NetworkPolicy, Failure> {
    let default = || Network {
        mode: NetworkMode::Allowlist,
        allow: Some(vec![DEFAULT_REACH.to_owned()]),
        bandwidth_up_mbit: None,
        bandwidth_down_mbit: None,
    };
    let asked = TemplateDefaults {
        network: Some(asked.unwrap_or_else(default)),
        ..TemplateDefaults::default()
    };
    let spec = asked.into_spec_over(SandboxSpec::default());
    Ok(spec.map_err(cove_control::ControlError::from)?.network)
}

pub async fn create(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<CreateBuild>,
) -> Answer {
    let defaults = body.defaults;
    let mounts = defaults.volumes.iter().map(mount_request).collect();
    let volumes = app.control.mounts(&caller.principal, mounts).await?;
    // Refused now, not at the end of the build.
    defaults
        .clone()
        .into_spec_over(SandboxSpec::default())
        .map_err(cove_control::ControlError::from)?;
    let request = cove_control::CreateBuild {
        name: body.name,
        tags: body.tags,
        dockerfile: body.dockerfile,
        ignore: body.ignore,
        args: body.args,
        target: body.target,
        network: reach(body.network)?,
        no_cache: body.no_cache,
        pull: body.pull,
        start: body.start.map(|start| StartCommand {
            command: start.command,
            ready: start.ready,
            timeout_s: start.timeout_s.unwrap_or(READY_DEFAULT_S),
        }),
        over: Arc::new(move |base| {
            let spec = defaults.clone().into_spec_over(base)?;
            Ok(SandboxSpec {
                volumes: volumes.clone(),
                ..spec
            })
        }),
    };
    let record = app.control.create_build(&caller.principal, request).await?;
    super::made(view(record), false)
}

pub async fn context(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(build): Names<String>,
    mut pieces: Pieces,
) -> Answer {
    let _slot = transfer(&app, &caller)?;
    let mut upload = app.control.build_context(&caller.principal, &build).await?;
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece?,
            given_up = upload.given_up() => return Err(given_up.into()),
        };
        match piece {
            Some(piece) => upload.write(piece).await?,
            None => break,
        }
    }
    upload.finish()?;
    nothing()
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let found = app.control.list_builds(&caller.principal).await?;
    ok(Builds {
        items: found.into_iter().map(view).collect(),
    })
}

pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(build): Names<String>,
) -> Answer {
    ok(view(
        app.control.get_build(&caller.principal, &build).await?,
    ))
}

pub async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(build): Names<String>,
) -> Answer {
    ok(view(
        app.control.cancel_build(&caller.principal, &build).await?,
    ))
}

pub async fn clear_cache(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let steps = app.control.clear_build_cache(&caller.principal).await?;
    ok(BuildCacheCleared { steps })
}

fn line(event: BuildEvent) -> BuildLogEvent {
    match event {
        BuildEvent::Step {
            number,
            total,
            line,
            text,
            state,
            ms,
        } => BuildLogEvent::Step {
            number,
            total,
            line,
            text,
            state: match state {
                StepState::Started => BuildStepState::Started,
                StepState::Cached => BuildStepState::Cached,
                StepState::Done => BuildStepState::Done,
                StepState::Failed => BuildStepState::Failed,
            },
            ms,
        },
        BuildEvent::Output { stderr, text } => BuildLogEvent::Output {
            stream: if stderr { "stderr" } else { "stdout" }.into(),
            text,
        },
        BuildEvent::Note(text) => BuildLogEvent::Note { text },
        BuildEvent::Dropped(bytes) => BuildLogEvent::Dropped { bytes },
    }
}

/// Where a reader of a log is.
struct Reading {
    app: App,
    principal: Principal,
    build: String,
    log: Option<BuildLog>,
    at: u64,
    pending: std::vec::IntoIter<BuildEvent>,
    ended: bool,
}

impl Reading {
    async fn next(mut self) -> Option<(BuildLogEvent, Self)> {
        loop {
            if let Some(event) = self.pending.next() {
                return Some((line(event), self));
            }
            if self.ended {
                return None;
            }
            if let Some(log) = &self.log {
                let (events, at) = tokio::select! {
                    next = log.next(self.at) => next,
                    () = self.app.draining.cancelled() => return None,
                };
                self.at = at;
                if !events.is_empty() {
                    self.pending = events.into_iter();
                    continue;
                }
            }
            self.ended = true;
            let found = self.app.control.get_build(&self.principal, &self.build);
            let build = Box::new(view(found.await.ok()?));
            return Some((BuildLogEvent::End { build }, self));
        }
    }
}

pub async fn log(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(build): Names<String>,
) -> Answer {
    let log = app.control.build_log(&caller.principal, &build).await?;
    let slot = app.front.streams.enter(&caller.principal.org, Kind::Live)?;
    let reading = Reading {
        app: app.clone(),
        principal: caller.principal,
        build,
        log,
        at: 0,
        pending: Vec::new().into_iter(),
        ended: false,
    };
    let events = futures_util::stream::unfold(reading, Reading::next);
    Ok(ndjson(&app, slot.hold(events)))
}
