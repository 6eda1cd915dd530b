//! Running commands: answered in one piece, followed live, or left in the background.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use cove_api::NoQuery;
use cove_api::process::{Encoding, Exec, Exit, OutputEvent, StartProcess, TerminalSize};
use cove_api::route::NDJSON;
use cove_control::{CommandLine, CommandRequest, GuestAction};
use cove_dialect::{JsonAnswer, Kind, Output, Said, Slot};
use cove_limits::{EXEC_OUTPUT_MAX, RING_MAX, RING_MIN, TERMINAL_SIDE_MAX, TIMEOUT_MAX_MS};
use cove_protocol::client::{FollowEvent, GuestError};
use cove_protocol::identity::owner;
use cove_protocol::message::ProcessKind;
use serde::Serialize;

use super::processes::{Ending, follow_lines};
use super::{Answer, with_status};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query, accepts};
use crate::failure::{self, About, Failure};
use crate::following::Following;
use crate::offline::Offline;
use crate::state::App;
use crate::streaming::ndjson;
use crate::timing::Timing;

pub async fn exec(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    headers: HeaderMap,
    Json(body): Json<Exec>,
) -> Answer {
    let live = accepts(&headers, NDJSON);
    if body.stdin_open && !live {
        return Err(Failure::invalid("stdin_open needs a live answer")
            .hint("send `Accept: application/x-ndjson`, or give the input as stdin"));
    }
    let encoding = body.encoding.unwrap_or_default();
    let stdin = stdin(body.stdin, body.stdin_base64)?;
    if stdin.is_some() && body.stdin_open {
        return Err(Failure::invalid(
            "give either the whole input or stdin_open",
        ));
    }
    let request = CommandRequest {
        cwd: body.cwd,
        env: body.env,
        user: body.user,
        stdin,
        stdin_open: body.stdin_open,
        timeout_ms: timeout(body.timeout_ms)?,
        kill_on_disconnect: body.kill_on_disconnect,
        tag: body.tag,
        ..CommandRequest::new(owner::API, command_line(body.command, body.argv)?)
    };
    let kind = if live { Kind::Live } else { Kind::Run };
    let slot = app.front.streams.enter(&caller.principal.org, kind)?;
    let account = app.control.budget().account(&caller.principal);
    account.require_output_room()?;
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::Exec)
        .await?;
    let start = access.command(request)?;
    let process = start.id.clone();
    let offline = Offline::of(&access);
    let mut following = Following::start(access, start).await?;
    if live {
        // The first event tells whether there is a command at all; before it an error has a status.
        let first = next(&mut following).await?;
        let ending = Ending {
            until: app.leaving.clone(),
            request_id: caller.request_id,
        };
        let first = output_event(first, following.position());
        let events = follow_lines(following, Some(first), ending, offline, Timing::default());
        return Ok(ndjson(&app, slot.hold(events)));
    }
    let outputs = [
        Output::new(&account, EXEC_OUTPUT_MAX),
        Output::new(&account, EXEC_OUTPUT_MAX),
    ];
    collect(following, outputs, offline, encoding, process, slot).await
}

fn start_failure(error: GuestError) -> Failure {
    failure::guest(error, About::Start)
}

/// The next event of a command that has not ended.
async fn next(following: &mut Following) -> Result<FollowEvent, Failure> {
    match following.next().await? {
        Some(event) => Ok(event),
        None => Err(start_failure(GuestError::Unexpected(
            "the output ended without an exit code",
        ))),
    }
}

/// [`cove_api::process::ExecResult`] without the output, which is written behind it.
#[derive(Serialize)]
struct Head {
    #[serde(flatten)]
    exit: Exit,
    encoding: Encoding,
    truncated: bool,
    process: String,
}

/// Runs to the end. What of its output an answer may have is collected, and the rest counted.
async fn collect(
    mut following: Following,
    mut outputs: [Output; 2],
    mut offline: Option<Offline>,
    encoding: Encoding,
    process: String,
    _under_way: Slot,
) -> Answer {
    let take = |channel, data: &[u8]| {
        outputs[channel as usize].take(data);
        if let Some(offline) = &mut offline {
            offline.take(channel, data);
        }
    };
    let exit = following.until_exit(take).await?;
    let mut exit = convert::exit(&exit);
    exit.hint = offline.and_then(|offline| offline.hint(&exit, following.seen()));
    let (stdout_bytes, stderr_bytes) = following.position();
    let [stdout, stderr] = outputs;
    let truncated = stdout_bytes > stdout.len() as u64 || stderr_bytes > stderr.len() as u64;
    let head = Head {
        exit,
        encoding,
        truncated,
        process,
    };
    let said = match encoding {
        Encoding::Text => Said::Text,
        Encoding::Base64 => Said::Base64,
    };
    Ok(JsonAnswer::new(&head)
        .output("stdout", stdout, said)
        .output("stderr", stderr, said)
        .into_response())
}

/// `position`: the next offsets of stdout and stderr.
pub fn output_event(event: FollowEvent, position: (u64, u64)) -> OutputEvent {
    use cove_api::process::OutputChunk;
    use cove_protocol::message::Channel;
    match event {
        FollowEvent::Started(process) => OutputEvent::Started {
            process: Box::new(convert::process(*process)),
        },
        FollowEvent::Output {
            channel,
            offset,
            data,
            dropped,
            ..
        } => {
            let chunk = OutputChunk::new(offset, dropped, &data);
            match channel {
                Channel::Stdout => OutputEvent::Stdout(chunk),
                Channel::Stderr => OutputEvent::Stderr(chunk),
            }
        }
        // No output of the command; whoever has the hint puts it there.
        FollowEvent::Refused(_) => OutputEvent::Stderr(OutputChunk::new(position.1, 0, b"")),
        FollowEvent::Exit(exit) => OutputEvent::Exit(convert::exit(&exit)),
    }
}

pub async fn start(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<StartProcess>,
) -> Answer {
    let ring_bytes = match body.ring_bytes {
        None => 0,
        Some(bytes @ RING_MIN..=RING_MAX) => bytes,
        Some(_) => {
            return Err(Failure::invalid(format!(
                "ring_bytes must be between {RING_MIN} and {RING_MAX}"
            )));
        }
    };
    let pty = body.pty.map(terminal).transpose()?;
    let request = CommandRequest {
        cwd: body.cwd,
        env: body.env,
        user: body.user,
        stdin_open: body.stdin_open || pty.is_some(),
        timeout_ms: timeout(body.timeout_ms)?,
        pty,
        kind: match pty {
            Some(_) => ProcessKind::Terminal,
            None => ProcessKind::Service,
        },
        tag: body.tag,
        ..CommandRequest::new(owner::API, command_line(body.command, body.argv)?)
    };
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ProcessStart)
        .await?;
    let mut start = access.command(request)?;
    start.ring_bytes = ring_bytes;
    let process = access.guest().start(start).await.map_err(start_failure)?;
    with_status(StatusCode::CREATED, convert::process(process))
}

pub fn terminal(size: TerminalSize) -> Result<(u16, u16), Failure> {
    let side = |name: &str, value: u32| {
        u16::try_from(value)
            .ok()
            .filter(|value| (1..=TERMINAL_SIDE_MAX).contains(&u32::from(*value)))
            .ok_or_else(|| {
                Failure::invalid(format!("{name} must be between 1 and {TERMINAL_SIDE_MAX}"))
            })
    };
    Ok((side("cols", size.cols)?, side("rows", size.rows)?))
}

pub fn command_line(
    command: Option<String>,
    argv: Option<Vec<String>>,
) -> Result<CommandLine, Failure> {
    match (command, argv) {
        (Some(command), None) if !command.is_empty() => Ok(CommandLine::Shell(command)),
        (None, Some(argv)) if argv.first().is_some_and(|program| !program.is_empty()) => {
            Ok(CommandLine::Argv(argv))
        }
        _ => Err(Failure::invalid(
            "give either a command or an argv, and not an empty one",
        )),
    }
}

fn stdin(text: Option<String>, base64: Option<String>) -> Result<Option<Bytes>, Failure> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(Failure::invalid("give either stdin or stdin_base64")),
        (Some(text), None) => Ok(Some(text.into())),
        (None, Some(base64)) => BASE64
            .decode(base64)
            .map(|bytes| Some(bytes.into()))
            .map_err(|_| Failure::invalid("stdin_base64 is not base64")),
        (None, None) => Ok(None),
    }
}

pub fn timeout(timeout_ms: Option<u64>) -> Result<Option<u64>, Failure> {
    match timeout_ms {
        Some(0) => Err(Failure::invalid("timeout_ms must be at least 1")),
        Some(ms) if ms > TIMEOUT_MAX_MS => Err(Failure::invalid(format!(
            "timeout_ms must be at most {TIMEOUT_MAX_MS}"
        ))),
        other => Ok(other),
    }
}
