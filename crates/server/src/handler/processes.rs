//! Processes that run: their records, output, input and signals.

use std::collections::VecDeque;

use axum::extract::State;
use cove_api::process::{
    OutputChunk, OutputEvent, OutputQuery, SignalProcess, StdinQuery, TerminalSize, parse_signal,
};
use cove_api::{NoQuery, Timestamp};
use cove_control::{GuestAction, GuestError};
use cove_dialect::Kind;
use cove_model::ProcessId;
use cove_protocol::client::FollowEvent;
use cove_protocol::message::{OutputFrom, PtySize, Resize, Signal};
use futures_util::Stream;
use tokio_util::sync::CancellationToken;

use super::exec::{output_event, terminal};
use super::{Answer, nothing, ok};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query, Raw};
use crate::failure::{self, About, Failure};
use crate::following::Following;
use crate::offline::Offline;
use crate::state::App;
use crate::streaming::ndjson;
use crate::timing::Timing;

pub fn process_failure(error: GuestError) -> Failure {
    failure::guest(error, About::Process)
}

/// The guest's table is keyed by our ids; anything else names no process.
pub fn process_id(text: &str) -> Result<String, Failure> {
    if ProcessId::matches(text) {
        return Ok(text.to_owned());
    }
    let shown: String = text.chars().take(64).collect();
    let message = format!("there is no process '{}'", shown.escape_debug());
    Err(Failure::new(cove_api::ErrorCode::NotFound, message))
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
    let all = access.guest().processes().await.map_err(process_failure)?;
    ok(convert::everything(
        all.into_iter().map(convert::process).collect(),
    ))
}

pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((id, process)): Names<(String, String)>,
) -> Answer {
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ProcessRead)
        .await?;
    let process = process_id(&process)?;
    ok(convert::process(
        access
            .guest()
            .process(process)
            .await
            .map_err(process_failure)?,
    ))
}

pub async fn output(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<OutputQuery>,
    Names((id, process)): Names<(String, String)>,
) -> Answer {
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ProcessRead)
        .await?;
    let id = process_id(&process)?;
    let slot = app.front.streams.enter(&caller.principal.org, Kind::Live)?;
    // Following alone would tell of a missing process only inside the stream.
    access
        .guest()
        .process(id.clone())
        .await
        .map_err(process_failure)?;
    let from = OutputFrom {
        id,
        stdout_from: query.stdout_from,
        stderr_from: query.stderr_from,
        follow: query.follow,
        resume: false,
    };
    let offline = Offline::of(&access);
    let following = Following::attach(access, from).await?;
    let ending = Ending {
        until: app.draining.clone(),
        request_id: caller.request_id,
    };
    let timing = Timing::new(query.since, query.timestamps);
    let lines = follow_lines(following, None, ending, offline, timing);
    Ok(ndjson(&app, slot.hold(lines)))
}

/// When a live answer is cut short, and the id to tell the client with it.
pub struct Ending {
    pub until: CancellationToken,
    pub request_id: String,
}

/// A process's output as lines. The sandbox counts as used for as long as they are read.
pub fn follow_lines(
    following: Following,
    first: Option<OutputEvent>,
    ending: Ending,
    offline: Option<Offline>,
    timing: Timing,
) -> impl Stream<Item = OutputEvent> + Send + 'static {
    let ready: VecDeque<OutputEvent> = first.into_iter().collect();
    let state = (following, ready, ending, offline, false);
    futures_util::stream::unfold(
        state,
        move |(mut following, mut ready, ending, mut offline, mut over)| async move {
            loop {
                if let Some(event) = ready.pop_front() {
                    return Some((event, (following, ready, ending, offline, over)));
                }
                if over {
                    return None;
                }
                let next = tokio::select! {
                    biased;
                    next = following.next() => next,
                    () = ending.until.cancelled() => Err(leaving()),
                };
                match next {
                    Ok(None) => return None,
                    Ok(Some(event)) => {
                        let parts = timing.parts(event).into_iter();
                        ready.extend(parts.map(|(event, at)| {
                            dated(watched(event, &following, offline.as_mut()), at)
                        }));
                    }
                    Err(failure) => {
                        let error = failure.detail(&ending.request_id);
                        ready.push_back(OutputEvent::Error { error });
                        over = true;
                    }
                }
            }
        },
    )
}

fn dated(event: OutputEvent, at: Option<Timestamp>) -> OutputEvent {
    match event {
        OutputEvent::Stdout(chunk) => OutputEvent::Stdout(OutputChunk { at, ..chunk }),
        OutputEvent::Stderr(chunk) => OutputEvent::Stderr(OutputChunk { at, ..chunk }),
        event => event,
    }
}

/// An event, with a hint where something was refused because the network is off, and where the command failed for
/// want of it.
fn watched(
    event: FollowEvent,
    following: &Following,
    offline: Option<&mut Offline>,
) -> OutputEvent {
    let position = following.position();
    let Some(offline) = offline else {
        return output_event(event, position);
    };
    let mut hint = None;
    match &event {
        FollowEvent::Output { channel, data, .. } => offline.take(*channel, data),
        FollowEvent::Refused(refusals) => hint = Some(offline.explain(refusals)),
        FollowEvent::Started(_) | FollowEvent::Exit(_) => {}
    }
    match output_event(event, position) {
        OutputEvent::Exit(mut exit) => {
            exit.hint = offline.hint(&exit, following.seen());
            OutputEvent::Exit(exit)
        }
        OutputEvent::Stderr(chunk) => OutputEvent::Stderr(OutputChunk { hint, ..chunk }),
        event => event,
    }
}

/// What the last line of a stream says when the server ends before the stream does.
pub fn leaving() -> Failure {
    Failure::new(
        cove_api::ErrorCode::Unavailable,
        "the server is restarting; the command goes on",
    )
    .hint("follow it again from the offsets you have")
}

pub async fn stdin(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<StdinQuery>,
    Names((id, process)): Names<(String, String)>,
    Raw(bytes): Raw,
) -> Answer {
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ProcessInput)
        .await?;
    let mut writer = access
        .guest()
        .stdin(process_id(&process)?)
        .await
        .map_err(process_failure)?;
    if !bytes.is_empty() {
        writer.write(bytes).await.map_err(process_failure)?;
    }
    if query.close {
        writer.close().await.map_err(process_failure)?;
    } else {
        writer.flush().await.map_err(process_failure)?;
    }
    nothing()
}

pub async fn signal(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((id, process)): Names<(String, String)>,
    Json(body): Json<SignalProcess>,
) -> Answer {
    let signal = parse_signal(&body.signal).ok_or_else(|| {
        Failure::invalid("signal must be a name like TERM or a number from 1 to 64")
    })?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ProcessSignal)
        .await?;
    let id = process_id(&process)?;
    let request = Signal {
        id,
        signal,
        only_leader: body.only_leader,
    };
    access
        .guest()
        .signal(request)
        .await
        .map_err(process_failure)?;
    nothing()
}

pub async fn resize(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names((id, process)): Names<(String, String)>,
    Json(body): Json<TerminalSize>,
) -> Answer {
    let (cols, rows) = terminal(body)?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ProcessResize)
        .await?;
    let size = Some(PtySize {
        cols: cols.into(),
        rows: rows.into(),
    });
    let request = Resize {
        id: process_id(&process)?,
        size,
    };
    access
        .guest()
        .resize(request)
        .await
        .map_err(process_failure)?;
    nothing()
}
