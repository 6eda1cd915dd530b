//! Running commands: answered in one piece, followed live, or left in the background.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{Bytes, BytesMut};
use cove_api::NoQuery;
use cove_api::bounds::{
    ARGV_MAX, COMMAND_BYTES_MAX, EXEC_OUTPUT_MAX, TERMINAL_SIDE_MAX, TIMEOUT_MAX_MS,
};
use cove_api::process::{Encoding, Exec, ExecResult, OutputEvent, StartProcess, TerminalSize};
use cove_api::route::NDJSON;
use cove_control::{CommandLine, CommandRequest, GuestAction};
use cove_dialect::Kind;
use cove_protocol::client::{FollowEvent, GuestError};
use cove_protocol::message::OutputFrom;
use tokio::sync::SemaphorePermit;

use super::processes::{Ending, follow_lines};
use super::{Answer, ok, with_status};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query, accepts};
use crate::failure::{self, About, Failure};
use crate::following::Following;
use crate::state::{App, BUFFER_UNIT};
use crate::streaming::ndjson;

const TAG_MAX: usize = 256;
const RING_MIN: u64 = 4096;
const RING_MAX: u64 = 8 * 1024 * 1024;

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
    let tag = tag(body.tag)?;
    let request = CommandRequest {
        cwd: body.cwd,
        env: body.env,
        user: body.user,
        stdin,
        stdin_open: body.stdin_open,
        timeout_ms: timeout(body.timeout_ms)?,
        kill_on_disconnect: body.kill_on_disconnect,
        ..CommandRequest::new(command_line(body.command, body.argv)?)
    };
    let slot = match live {
        true => Some(app.front.streams.enter(&caller.principal.org, Kind::Live)?),
        false => None,
    };
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::Exec)
        .await?;
    let mut start = access.command(request)?;
    start.tag = tag;
    let process = start.id.clone();
    let follow = access.start_following(start).await.map_err(start_failure)?;
    let from = OutputFrom {
        id: process.clone(),
        follow: true,
        ..OutputFrom::default()
    };
    let mut following = Following::new(access, follow, from, About::Start);
    if let Some(slot) = slot {
        // The first event tells whether there is a command at all; before it an error has a status.
        let first = next(&mut following).await?;
        let ending = Ending {
            until: app.leaving.clone(),
            request_id: caller.request_id,
        };
        let events = follow_lines(following, Some(output_event(first)), ending);
        return Ok(ndjson(&app, slot.hold(events)));
    }
    collect(&app, following, encoding, process).await
}

fn start_failure(error: GuestError) -> Failure {
    failure::guest(error, About::Start)
}

async fn next(following: &mut Following) -> Result<FollowEvent, Failure> {
    match following.next().await? {
        Some(event) => Ok(event),
        None => Err(start_failure(GuestError::Unexpected(
            "the output ended without an exit",
        ))),
    }
}

async fn collect(
    app: &App,
    mut following: Following,
    encoding: Encoding,
    process: String,
) -> Answer {
    let mut kept = [Kept::new(app), Kept::new(app)];
    loop {
        match next(&mut following).await? {
            FollowEvent::Started(_) => {}
            FollowEvent::Output { channel, data, .. } => kept[channel as usize].take(&data),
            FollowEvent::Exit(exit) => {
                let (stdout_bytes, stderr_bytes) = following.position();
                let [stdout, stderr] = &kept;
                let truncated = stdout_bytes > stdout.bytes.len() as u64
                    || stderr_bytes > stderr.bytes.len() as u64;
                return ok(ExecResult {
                    exit: convert::exit(&exit),
                    stdout: encode(&stdout.bytes, encoding),
                    stderr: encode(&stderr.bytes, encoding),
                    encoding,
                    truncated,
                    process,
                });
            }
        }
    }
}

/// The beginning of one stream, as much as one answer may have and the server has room for.
struct Kept<'a> {
    app: &'a App,
    bytes: BytesMut,
    room: Vec<SemaphorePermit<'a>>,
    full: bool,
}

impl<'a> Kept<'a> {
    fn new(app: &'a App) -> Self {
        Self {
            app,
            bytes: BytesMut::new(),
            room: Vec::new(),
            full: false,
        }
    }

    fn take(&mut self, data: &[u8]) {
        let left = EXEC_OUTPUT_MAX.saturating_sub(self.bytes.len());
        let data = &data[..data.len().min(left)];
        // The first unit of each stream is free: most answers are small.
        let units = (self.bytes.len() + data.len()) / BUFFER_UNIT;
        while self.room.len() < units && !self.full {
            match self.app.buffers.try_acquire() {
                Ok(permit) => self.room.push(permit),
                Err(_) => self.full = true,
            }
        }
        if !self.full {
            self.bytes.extend_from_slice(data);
        }
    }
}

fn encode(bytes: &[u8], encoding: Encoding) -> String {
    match encoding {
        Encoding::Text => String::from_utf8_lossy(bytes).into_owned(),
        Encoding::Base64 => BASE64.encode(bytes),
    }
}

pub fn output_event(event: FollowEvent) -> OutputEvent {
    use cove_api::process::OutputChunk;
    use cove_protocol::message::Channel;
    match event {
        FollowEvent::Started(process) => OutputEvent::Started {
            process: Box::new(convert::process(process)),
        },
        FollowEvent::Output {
            channel,
            offset,
            data,
            dropped,
        } => {
            let chunk = OutputChunk::new(offset, dropped, &data);
            match channel {
                Channel::Stdout => OutputEvent::Stdout(chunk),
                Channel::Stderr => OutputEvent::Stderr(chunk),
            }
        }
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
    let tag = tag(body.tag)?;
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
        foreground: false,
        ..CommandRequest::new(command_line(body.command, body.argv)?)
    };
    let access = app
        .control
        .guest(&caller.principal, &id, GuestAction::ProcessStart)
        .await?;
    let mut start = access.command(request)?;
    start.tag = tag;
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

fn command_line(
    command: Option<String>,
    argv: Option<Vec<String>>,
) -> Result<CommandLine, Failure> {
    let check = |parts: &[String]| {
        if parts.iter().any(|part| part.contains('\0')) {
            return Err(Failure::invalid("a command must not contain NUL"));
        }
        if parts.iter().map(|part| part.len() + 1).sum::<usize>() > COMMAND_BYTES_MAX {
            return Err(Failure::invalid(format!(
                "a command must have at most {COMMAND_BYTES_MAX} bytes"
            )));
        }
        Ok(())
    };
    match (command, argv) {
        (Some(command), None) if !command.is_empty() => {
            check(std::slice::from_ref(&command))?;
            Ok(CommandLine::Shell(command))
        }
        (None, Some(argv)) if argv.first().is_some_and(|program| !program.is_empty()) => {
            if argv.len() > ARGV_MAX {
                return Err(Failure::invalid(format!(
                    "argv must have at most {ARGV_MAX} entries"
                )));
            }
            check(&argv)?;
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

fn tag(tag: Option<String>) -> Result<String, Failure> {
    match tag {
        None => Ok(String::new()),
        Some(tag) if (1..=TAG_MAX).contains(&tag.len()) && !tag.chars().any(char::is_control) => {
            Ok(tag)
        }
        Some(_) => Err(Failure::invalid(format!(
            "tag must have 1 to {TAG_MAX} bytes and no control characters"
        ))),
    }
}
