//! Terminals: shells of the guest with a pty, found again by their tags.

use std::collections::BTreeMap;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use cove_control::{CommandLine, CommandRequest, GuestAccess, GuestAction, Principal};
use cove_dialect::{Following, Front, Kind, StreamPermit, Wire};
use cove_limits::TERMINAL_SIDE_MAX;
use cove_protocol::client::{FollowEvent, Listed};
use cove_protocol::identity::{Identity, owner};
use cove_protocol::message::{OutputFrom, Process, ProcessKind, PtySize, Resize};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::asking::{Caller, Json, Names, Query};
use crate::convert::time_text;
use crate::exec::{cwd, end};
use crate::refusal::{Answer, Refusal};
use crate::streams::{self, DONE, FAILED, Out, Stream};

const EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";
const ENVS: &str = "X-Daytona-Pty-Envs~";
const NAME_MAX: usize = 128;
const RING_BYTES: u64 = 1024 * 1024;
/// The user's own shell where the account names one that is there.
const SHELL: &str = r#"for s in "$SHELL" /bin/bash /bin/sh; do [ -x "$s" ] && exec "$s" -i; done"#;
/// Before it, in one that is to begin with its first client: a line from there.
const WAIT: &str = "stty -echo 2>/dev/null; IFS= read -r _ || exit; stty echo 2>/dev/null; ";
/// What marks such a shell in lists of processes.
const LAZY: &str = "lazy";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Create {
    id: Option<String>,
    cols: Option<u32>,
    rows: Option<u32>,
    cwd: Option<String>,
    envs: Option<BTreeMap<String, String>>,
    /// The shell begins when the first client is there.
    lazy_start: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    cols: u32,
    rows: u32,
}

fn side(name: &str, value: u32) -> Result<u16, Refusal> {
    let fits = (1..=TERMINAL_SIDE_MAX).contains(&value);
    let value = u16::try_from(value).ok().filter(|_| fits);
    value.ok_or_else(|| {
        Refusal::invalid(format!("{name} must be between 1 and {TERMINAL_SIDE_MAX}"))
    })
}

fn name_of(process: &Process) -> Option<String> {
    Identity::of(process)
        .name_of(owner::DAYTONA_PTY)
        .map(str::to_owned)
}

fn info(process: &Process) -> Value {
    let size = process.pty.unwrap_or(PtySize { cols: 80, rows: 24 });
    let millis = i128::from(process.started_unix_ms) * 1_000_000;
    let at =
        OffsetDateTime::from_unix_timestamp_nanos(millis).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    json!({
        "id": name_of(process).unwrap_or_default(),
        "active": process.exit.is_none(),
        "cols": size.cols,
        "rows": size.rows,
        "createdAt": time_text(at),
        "cwd": process.cwd,
        // What a shell was given is not reported again.
        "envs": {},
        "lazyStart": is_lazy(process),
    })
}

fn is_lazy(process: &Process) -> bool {
    process.argv.get(3).is_some_and(|mark| mark == LAZY)
}

/// Whether nobody has let it begin. A second client that comes before it has said anything ends one more line, which
/// means nothing to a shell.
fn waits(process: &Process) -> bool {
    is_lazy(process) && process.stdout_bytes == 0
}

async fn live(access: &GuestAccess) -> Result<Listed<Process>, Refusal> {
    let mut all = access.guest().processes().await?;
    all.retain(|process| name_of(process).is_some() && process.exit.is_none());
    Ok(all)
}

async fn found(access: &GuestAccess, name: &str) -> Result<Process, Refusal> {
    let all = live(access).await?;
    let found = all
        .into_iter()
        .find(|process| name_of(process).as_deref() == Some(name));
    found.ok_or_else(|| {
        let name: String = name.chars().take(NAME_MAX).collect();
        let message = format!("there is no PTY session '{}'", name.escape_debug());
        Refusal::new(404, "NOT_FOUND", message)
    })
}

async fn start(
    front: &Front,
    caller: &Principal,
    id: &str,
    body: Create,
) -> Result<(GuestAccess, Process), Refusal> {
    let name = body.id.filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| format!("{:016x}", rand::random::<u64>()));
    if name.chars().count() > NAME_MAX || name.chars().any(|c| c.is_control() || c == '/') {
        let message =
            format!("a PTY session's id has at most {NAME_MAX} characters, without slashes");
        return Err(Refusal::invalid(message));
    }
    let size = (
        side("cols", body.cols.unwrap_or(80))?,
        side("rows", body.rows.unwrap_or(24))?,
    );
    let cwd = cwd(front, caller, id, body.cwd).await?;
    let access = front
        .control
        .guest(caller, id, GuestAction::ProcessStart)
        .await?;
    if found(&access, &name).await.is_ok() {
        let message = "a PTY session of this id exists already";
        return Err(Refusal::new(409, "CONFLICT", message));
    }
    let mut env = body.envs.unwrap_or_default();
    env.entry("TERM".into())
        .or_insert_with(|| "xterm-256color".into());
    let mut argv = ["/bin/sh", "-c", SHELL].map(str::to_owned).to_vec();
    if body.lazy_start == Some(true) {
        argv[2].insert_str(0, WAIT);
        argv.push(LAZY.into());
    }
    let request = CommandRequest {
        cwd,
        env,
        pty: Some(size),
        stdin_open: true,
        kind: ProcessKind::Terminal,
        ..CommandRequest::new(
            owner::named(owner::DAYTONA_PTY, &name),
            CommandLine::Argv(argv),
        )
    };
    let mut start = access.command(request)?;
    start.ring_bytes = RING_BYTES;
    let process = access.guest().start(start).await?;
    Ok((access, process))
}

pub async fn create(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Create>,
) -> Answer {
    let (_, process) = start(&front, &caller, &id, body).await?;
    let name = name_of(&process).unwrap_or_default();
    let answer = json!({ "sessionId": name });
    Ok((StatusCode::CREATED, axum::Json(answer)).into_response())
}

/// The protocols a caller offers; the environment of the shell travels as one of them.
fn offered(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    texts
        .flat_map(|text| text.split(','))
        .map(|part| part.trim().to_owned())
        .collect()
}

fn envs(offered: &[String]) -> Result<Option<BTreeMap<String, String>>, Refusal> {
    let Some(encoded) = offered.iter().find_map(|part| part.strip_prefix(ENVS)) else {
        return Ok(None);
    };
    let wrong = || Refusal::invalid("the environment of the PTY session is invalid");
    let text = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| wrong())?;
    serde_json::from_slice(&text).map(Some).map_err(|_| wrong())
}

pub async fn create_connect(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(mut query): Query<Create>,
    request: Request,
) -> Answer {
    let offered = offered(request.headers());
    query.envs = envs(&offered)?;
    let upgrade = streams::upgrade(&front, &caller, request, spoken(&offered)).await?;
    let seat = front.seat(&caller, Kind::Live)?;
    let (access, process) = start(&front, &caller, &id, query).await?;
    attach(front, upgrade, access, process, seat).await
}

pub async fn connect(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, name)): Names<(String, String)>,
    request: Request,
) -> Answer {
    let offered = offered(request.headers());
    let upgrade = streams::upgrade(&front, &caller, request, spoken(&offered)).await?;
    let seat = front.seat(&caller, Kind::Live)?;
    let access = front
        .control
        .guest(&caller, &id, GuestAction::ProcessAttach)
        .await?;
    let process = found(&access, &name).await?;
    attach(front, upgrade, access, process, seat).await
}

fn spoken(offered: &[String]) -> Vec<String> {
    let control = offered.iter().filter(|part| *part == EXIT_CONTROL);
    control.cloned().collect()
}

async fn attach(
    front: Front,
    (upgrade, wire): (WebSocketUpgrade, Wire),
    access: GuestAccess,
    process: Process,
    seat: StreamPermit,
) -> Answer {
    let from = OutputFrom {
        id: process.id.clone(),
        // What scrolled away before is replayed as far as it is kept.
        stdout_from: process.stdout_oldest,
        follow: true,
        ..OutputFrom::default()
    };
    let guest = access.guest().clone();
    let mut following = Following::attach(access, from).await?;
    if waits(&process) {
        let mut stdin = guest.stdin(process.id.clone()).await?;
        stdin.write(Bytes::from_static(b"\n")).await?;
        stdin.flush().await?;
    }
    let tracker = front.sessions.clone();
    Ok(upgrade
        .on_upgrade(move |socket| {
            tracker.track_future(async move {
                let (sink, stream) = socket.split();
                let mut stream = Stream::new(stream, wire);
                let mut out = Out::new(sink);
                let control = |status: &str| json!({ "type": "control", "status": status });
                let told = async {
                    out.text(control("connected").to_string()).await?;
                    loop {
                        let next = Box::pin(following.next());
                        match out.while_waiting(next).await? {
                            Ok(Some(FollowEvent::Output { data, .. })) => out.bytes(data).await?,
                            Ok(Some(FollowEvent::Started(_) | FollowEvent::Refused(_))) => {}
                            Ok(Some(FollowEvent::Exit(exit))) => {
                                let mut last = control("exited");
                                last["exitCode"] = exit.code.into();
                                out.text(last.to_string()).await?;
                                let reason = json!({ "exitCode": exit.code });
                                return Some((DONE, reason.to_string()));
                            }
                            Ok(None) => return Some((DONE, String::new())),
                            Err(error) => {
                                let refusal = Refusal::from(error);
                                return Some((FAILED, refusal.message().to_owned()));
                            }
                        }
                    }
                };
                let typed = async {
                    let mut stdin = None;
                    while let Some(bytes) = streams::heard(&mut stream).await {
                        if stdin.is_none() {
                            stdin = guest.stdin(process.id.clone()).await.ok();
                        }
                        let Some(open) = &mut stdin else { continue };
                        let written = async {
                            open.write(bytes).await?;
                            open.flush().await
                        };
                        if written.await.is_err() {
                            stdin = None;
                        }
                    }
                };
                let end = tokio::select! {
                    end = told => end,
                    () = typed => None,
                    () = front.draining.cancelled() => Some((1012, "the server is restarting".into())),
                    () = seat.ended() => Some(streams::taken_back()),
                };
                if let Some((code, reason)) = end {
                    out.close(code, &reason).await;
                }
            })
        })
        .into_response())
}

pub async fn list(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    let access = front
        .control
        .guest(&caller, &id, GuestAction::ProcessRead)
        .await?;
    let sessions: Vec<Value> = live(&access).await?.iter().map(info).collect();
    Ok(axum::Json(json!({ "sessions": sessions })).into_response())
}

pub async fn get(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, name)): Names<(String, String)>,
) -> Answer {
    let access = front
        .control
        .guest(&caller, &id, GuestAction::ProcessRead)
        .await?;
    Ok(axum::Json(info(&found(&access, &name).await?)).into_response())
}

pub async fn delete(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, name)): Names<(String, String)>,
) -> Answer {
    let access = front
        .control
        .guest(&caller, &id, GuestAction::ProcessSignal)
        .await?;
    let process = found(&access, &name).await?;
    end(&access, &process).await?;
    Ok(axum::Json(json!({ "message": "the PTY session was ended" })).into_response())
}

pub async fn resize(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, name)): Names<(String, String)>,
    Json(body): Json<Size>,
) -> Answer {
    let (cols, rows) = (side("cols", body.cols)?, side("rows", body.rows)?);
    let access = front
        .control
        .guest(&caller, &id, GuestAction::ProcessResize)
        .await?;
    let mut process = found(&access, &name).await?;
    let size = PtySize {
        cols: cols.into(),
        rows: rows.into(),
    };
    let request = Resize {
        id: process.id.clone(),
        size: Some(size),
    };
    access.guest().resize(request).await?;
    process.pty = Some(size);
    Ok(axum::Json(info(&process)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_are_read_from_their_protocol() {
        let encoded = URL_SAFE_NO_PAD.encode(br#"{"A":"b"}"#);
        let offered = vec![EXIT_CONTROL.to_owned(), format!("{ENVS}{encoded}")];
        assert_eq!(envs(&offered).unwrap().unwrap()["A"], "b");
        assert_eq!(envs(&spoken(&offered)).unwrap(), None);
        for bad in ["!", "e30x", ""] {
            assert!(envs(&[format!("{ENVS}{bad}")]).is_err(), "{bad} was taken");
        }
    }
}
