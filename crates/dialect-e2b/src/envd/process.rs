//! Processes: started, followed, fed and ended, by their pid inside.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use cove_control::{CommandLine, CommandRequest, GuestAccess, GuestAction};
use cove_dialect::Following;
use cove_limits::TERMINAL_SIDE_MAX;
use cove_protocol::client::{FollowEvent, GuestError, StdinWriter};
use cove_protocol::identity::{Identity, owner};
use cove_protocol::message::{
    Channel, ErrorCode as GuestCode, Exit, OutputFrom, Process, ProcessKind, PtySize, Resize,
    Signal,
};
use futures_util::Stream;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::paths::resolve;
use super::wire::{self, Frames, Next, Streamed};
use super::{Door, Service};
use crate::Dialect;
use crate::refusal::{Kind, Refusal, Unary};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Start {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
enum Selector {
    Pid(i32),
    Tag(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chosen {
    process: Selector,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
enum Input {
    Stdin(String),
    Pty(String),
}

impl Input {
    fn bytes(&self) -> Result<Bytes, Refusal> {
        let (Self::Stdin(text) | Self::Pty(text)) = self;
        let bytes = BASE64.decode(text);
        bytes
            .map(Into::into)
            .map_err(|_| Refusal::invalid("the input is not base64"))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendInput {
    process: Selector,
    input: Input,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
enum StreamInput {
    Start(Chosen),
    Data { input: Input },
    Keepalive(Nothing),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendSignal {
    process: Selector,
    signal: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Update {
    process: Selector,
    pty: Option<Pty>,
}

fn side(size: Size) -> Result<(u16, u16), Refusal> {
    let one = |side: u32| match side {
        1..=TERMINAL_SIDE_MAX => u16::try_from(side).ok(),
        _ => None,
    };
    one(size.cols).zip(one(size.rows)).ok_or_else(|| {
        Refusal::invalid(format!(
            "a terminal has between 1 and {TERMINAL_SIDE_MAX} columns and rows"
        ))
    })
}

pub async fn list(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let Nothing {} = wire::unary(&door, body).await?;
    let access = door.inside(GuestAction::ProcessRead).await?;
    let all = access.guest().processes().await?;
    let running = all.iter().filter(|process| process.exit.is_none());
    let shown: Vec<Value> = running.map(shown).collect();
    Ok(wire::answer(json!({"processes": shown})))
}

fn shown(process: &Process) -> Value {
    let mut argv = process.argv.iter();
    let mut told = json!({
        "config": {
            "cmd": argv.next().map_or("", String::as_str),
            "args": argv.collect::<Vec<_>>(),
            "envs": {},
            "cwd": process.cwd,
        },
        "pid": process.pid,
    });
    if let Some(tag) = tag_of(process) {
        told["tag"] = json!(tag);
    }
    told
}

/// The tag that a caller of this interface gave it.
fn tag_of(process: &Process) -> Option<String> {
    let identity = Identity::of(process);
    (identity.owner == owner::E2B && !identity.tag.is_empty()).then_some(identity.tag)
}

/// The process that is meant; of several that had a pid, the one that runs, else the last.
async fn find(access: &GuestAccess, which: &Selector) -> Result<Process, Refusal> {
    let all = access.guest().processes().await?;
    let fits = |process: &Process| match which {
        Selector::Pid(pid) => process.pid == *pid,
        Selector::Tag(tag) => tag_of(process).as_ref() == Some(tag),
    };
    all.into_iter()
        .filter(fits)
        .max_by_key(|process| (process.exit.is_none(), process.started_unix_ms))
        .ok_or_else(|| Refusal::new(Kind::NotFound, "there is no such process"))
}

async fn find_running(access: &GuestAccess, which: &Selector) -> Result<Process, Refusal> {
    let found = find(access, which).await?;
    match found.exit {
        None => Ok(found),
        Some(_) => Err(Refusal::new(Kind::NotFound, "the process has ended")),
    }
}

pub async fn start(State(dialect): State<Dialect>, request: Request) -> Result<Response, Streamed> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let start: Start = wire::first(&door, body).await?;
    let pty = start.pty.map(|pty| {
        let size = pty.size.unwrap_or(Size { cols: 80, rows: 24 });
        side(size)
    });
    let pty = pty.transpose()?;
    let slot = door.slot()?;
    let access = door.inside(GuestAction::ProcessStart).await?;
    let user = door.user(&access)?;
    let cwd = match start.process.cwd.filter(|cwd| !cwd.is_empty()) {
        None => None,
        Some(cwd) => Some(resolve(&access, &user, &cwd).await?),
    };
    let mut argv = vec![start.process.cmd];
    argv.extend(start.process.args);
    let request = CommandRequest {
        cwd,
        env: start.process.envs,
        user: Some(user).filter(|user| !user.is_empty()),
        stdin_open: pty.is_some() || start.stdin.unwrap_or(false),
        timeout_ms: wire::timeout_ms(&door.headers)?,
        pty,
        kind: match pty {
            Some(_) => ProcessKind::Terminal,
            None => ProcessKind::Command,
        },
        tag: start.tag.filter(|tag| !tag.is_empty()),
        ..CommandRequest::new(owner::E2B, CommandLine::Argv(argv))
    };
    let wish = access.command(request)?;
    let following = Following::start(access, wish).await;
    let mut following = following.map_err(not_started)?;
    let process = match following.next().await {
        Ok(Some(FollowEvent::Started(process))) => process,
        Ok(_) => return Err(Refusal::new(Kind::Internal, "the process did not start").into()),
        Err(cove_dialect::FollowError::Guest(error)) => return Err(not_started(error).into()),
        Err(error) => return Err(error.into()),
    };
    let output = Output {
        following,
        is_terminal: process.pty.is_some(),
        started: Some(process.pid),
        keepalive: wire::keepalive(&door.headers),
        deadline: None,
        leaving: dialect.front.leaving.clone(),
    };
    Ok(wire::stream(slot.hold(output.messages())))
}

/// What is missing when a command starts is its directory, and that is the caller's mistake.
fn not_started(error: GuestError) -> Refusal {
    let refusal = Refusal::from(error);
    match refusal.kind {
        Kind::NotFound => Refusal::invalid(refusal.message),
        _ => refusal,
    }
}

pub async fn connect(
    State(dialect): State<Dialect>,
    request: Request,
) -> Result<Response, Streamed> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let Chosen { process } = wire::first(&door, body).await?;
    let slot = door.slot()?;
    let access = door.inside(GuestAction::ProcessRead).await?;
    let process = find(&access, &process).await?;
    let from = OutputFrom {
        id: process.id,
        follow: true,
        ..OutputFrom::default()
    };
    let following = Following::attach(access, from).await?;
    let patience = wire::timeout_ms(&door.headers)?.map(Duration::from_millis);
    let output = Output {
        following,
        is_terminal: process.pty.is_some(),
        started: Some(process.pid),
        keepalive: wire::keepalive(&door.headers),
        deadline: patience.map(|patience| Instant::now() + patience),
        leaving: dialect.front.leaving.clone(),
    };
    Ok(wire::stream(slot.hold(output.messages())))
}

/// A process's output on its way to one client. Dropping it leaves the process alone.
struct Output {
    following: Following,
    is_terminal: bool,
    /// Its pid, until that is reported.
    started: Option<i32>,
    keepalive: Duration,
    deadline: Option<Instant>,
    leaving: CancellationToken,
}

impl Output {
    fn messages(self) -> impl Stream<Item = Next> + Send + 'static {
        futures_util::stream::unfold((self, None), |(mut output, last)| async move {
            if let Some(end) = last {
                return Some((end, (output, None)));
            }
            let (next, last) = output.next().await;
            Some((next, (output, last)))
        })
    }

    /// The next message, and the end where it comes right after.
    async fn next(&mut self) -> (Next, Option<Next>) {
        if let Some(pid) = self.started.take() {
            return (event(json!({"start": {"pid": pid}})), None);
        }
        loop {
            let quiet = Instant::now() + self.keepalive;
            let patience = self.deadline.unwrap_or(quiet).min(quiet);
            let told = tokio::select! {
                biased;
                told = self.following.next() => told,
                () = tokio::time::sleep_until(patience) => {
                    if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return (Next::End(Err(too_late())), None);
                    }
                    return (event(json!({"keepalive": {}})), None);
                }
                () = self.leaving.cancelled() => {
                    let refusal = Refusal::new(Kind::Unavailable, "the server is restarting");
                    return (Next::End(Err(refusal)), None);
                }
            };
            match told {
                Ok(Some(FollowEvent::Started(_) | FollowEvent::Refused(_))) => {}
                Ok(Some(FollowEvent::Output { channel, data, .. })) => {
                    let name = match (self.is_terminal, channel) {
                        (true, _) => "pty",
                        (false, Channel::Stdout) => "stdout",
                        (false, Channel::Stderr) => "stderr",
                    };
                    let told = event(json!({"data": {name: BASE64.encode(&data)}}));
                    return (told, None);
                }
                Ok(Some(FollowEvent::Exit(exit))) if exit.timed_out => {
                    return (Next::End(Err(too_late())), None);
                }
                Ok(Some(FollowEvent::Exit(exit))) => {
                    return (event(json!({"end": ended(&exit)})), Some(Next::End(Ok(()))));
                }
                Ok(None) => return (Next::End(Ok(())), None),
                Err(error) => return (Next::End(Err(error.into())), None),
            }
        }
    }
}

fn too_late() -> Refusal {
    Refusal::new(Kind::TimedOut, "the time limit was reached")
}

fn event(event: Value) -> Next {
    Next::Message(json!({ "event": event }))
}

fn ended(exit: &Exit) -> Value {
    let status = match (exit.oom, exit.signal) {
        (true, _) => format!(
            "killed: out of memory (the limit is {} bytes)",
            exit.memory_limit_bytes
        ),
        (false, 0) => format!("exit status {}", exit.code),
        (false, signal) => format!("signal: {signal}"),
    };
    let mut told = json!({
        "exitCode": exit.code,
        "exited": exit.signal == 0,
        "status": status,
    });
    if exit.code != 0 {
        told["error"] = json!(status);
    }
    told
}

pub async fn send_input(
    State(dialect): State<Dialect>,
    request: Request,
) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let call: SendInput = wire::unary(&door, body).await?;
    let bytes = call.input.bytes()?;
    let access = door.inside(GuestAction::ProcessInput).await?;
    let mut writer = writer(&access, &call.process).await?;
    writer.write(bytes).await?;
    writer.flush().await?;
    Ok(wire::answer(json!({})))
}

async fn writer(access: &GuestAccess, which: &Selector) -> Result<StdinWriter, Refusal> {
    let process = find_running(access, which).await?;
    Ok(access.guest().stdin(process.id).await?)
}

pub async fn stream_input(
    State(dialect): State<Dialect>,
    request: Request,
) -> Result<Response, Streamed> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let mut frames = Frames::new(&door, body)?;
    let access = door.inside(GuestAction::ProcessInput).await?;
    let mut open: Option<StdinWriter> = None;
    while let Some(message) = frames.next::<StreamInput>().await? {
        match (message, &mut open) {
            (StreamInput::Start(chosen), None) => {
                open = Some(writer(&access, &chosen.process).await?);
            }
            (StreamInput::Data { input }, Some(writer)) => writer.write(input.bytes()?).await?,
            (StreamInput::Keepalive(_), _) => {}
            (StreamInput::Start(_), Some(_)) => {
                return Err(Refusal::invalid("the process was named already").into());
            }
            (StreamInput::Data { .. }, None) => {
                return Err(Refusal::invalid("the process was not named yet").into());
            }
        }
    }
    if let Some(mut writer) = open {
        writer.flush().await?;
    }
    let answer = [Next::Message(json!({})), Next::End(Ok(()))];
    Ok(wire::stream(futures_util::stream::iter(answer)))
}

pub async fn close_stdin(
    State(dialect): State<Dialect>,
    request: Request,
) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let Chosen { process } = wire::unary(&door, body).await?;
    let access = door.inside(GuestAction::ProcessInput).await?;
    writer(&access, &process).await?.close().await?;
    Ok(wire::answer(json!({})))
}

pub async fn send_signal(
    State(dialect): State<Dialect>,
    request: Request,
) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let call: SendSignal = wire::unary(&door, body).await?;
    let signal = match call.signal.as_str() {
        "SIGNAL_SIGKILL" => 9,
        "SIGNAL_SIGTERM" => 15,
        _ => return Err(Refusal::invalid("the signal must be SIGKILL or SIGTERM").into()),
    };
    let access = door.inside(GuestAction::ProcessSignal).await?;
    let process = find_running(&access, &call.process).await?;
    let request = Signal {
        id: process.id,
        signal,
        only_leader: false,
    };
    match access.guest().signal(request).await {
        Err(GuestError::Refused {
            code: GuestCode::Gone,
            ..
        }) => return Err(Refusal::new(Kind::NotFound, "the process has ended").into()),
        outcome => outcome?,
    }
    Ok(wire::answer(json!({})))
}

pub async fn update(State(dialect): State<Dialect>, request: Request) -> Result<Response, Unary> {
    let (door, body) = Door::open(&dialect, request, Service::Envd).await?;
    let call: Update = wire::unary(&door, body).await?;
    let size = call.pty.and_then(|pty| pty.size);
    let Some(size) = size else {
        return Ok(wire::answer(json!({})));
    };
    let (cols, rows) = side(size)?;
    let access = door.inside(GuestAction::ProcessResize).await?;
    let process = find_running(&access, &call.process).await?;
    let request = Resize {
        id: process.id,
        size: Some(PtySize {
            cols: cols.into(),
            rows: rows.into(),
        }),
    };
    access.guest().resize(request).await?;
    Ok(wire::answer(json!({})))
}
