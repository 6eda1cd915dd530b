//! Sessions: a shell that keeps its directory and variables from one command to the next.
//!
//! A session is a shell of the guest that reads what to run from its input. Each command is a process of
//! its own beside it, which only lends its outputs and its input: the shell runs the command on them, and
//! the lender ends as the command did. So a command's output, its input, its end and how it ended are the
//! guest's own records of a process, apart from all others, byte for byte; nothing of it is lost when the
//! server restarts, and both are found again by their tags. The text of a command travels as a file that
//! the shell reads, so here-documents are nothing special.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use bytes::Bytes;
use cove_control::{Account, CommandLine, CommandRequest, Guest, GuestAccess, GuestAction};
use cove_dialect::{Following, Front, JsonAnswer, Kind, Output, Said};
use cove_protocol::client::{FollowEvent, Listed};
use cove_protocol::identity::{Identity, owner};
use cove_protocol::message::{Channel, OutputFrom, Process, ProcessKind, Remove, Start, WriteFile};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::asking::{Caller, Json, Names};
use crate::entrypoint;
use crate::exec::{ANSWER_MAX, SIGKILL, end};
use crate::refusal::{Answer, Refusal, about_path};

/// Output of each stream that is kept of a command.
pub const RING_BYTES: u64 = 1024 * 1024;
/// Characters of a session's name.
const NAME_MAX: usize = 128;
/// Bytes of a command, and of input at once.
const TEXT_MAX: usize = 4 * 1024 * 1024;

/// The shell. `$1` is its directory. A command that ends the shell still tells how it ended.
const SHELL: &str = r#"umask 077; mkdir -p "$1" || exit 1
s='trap '\''echo $? >"${COVE_STATUS:-/dev/null}"'\'' EXIT'
if command -v bash >/dev/null; then exec env -u COVE_STATUS bash --noprofile --norc -c "$s"' ; while IFS= read -r __cove_line; do eval "$__cove_line"; done' ; fi
exec sh -c "$s"' ; while IFS= read -r __cove_line; do eval "$__cove_line"; done'"#;

/// The lender: it says who it is, and waits to hear how the command ended. `$1` is what its files are
/// called; the rest says what runs, for whoever lists processes.
const LENDER: &str = r#"umask 077; echo $$ >"$1.pid" && mkfifo "$1.status" || exit 1
IFS= read -r s <"$1.status" || s=1
rm -f "$1.pid" "$1.status" "$1.sh"
exit "$s""#;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Create {
    session_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Execute {
    command: String,
    #[serde(default)]
    run_async: Option<bool>,
    /// The older word for it.
    #[serde(default, rename = "async")]
    var_async: Option<bool>,
    /// Input is never echoed here: there is no terminal.
    #[serde(default, rename = "suppressInputEcho")]
    _suppress_input_echo: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    data: String,
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let good = (1..=NAME_MAX).contains(&name.chars().count())
        && name != entrypoint::NAME
        && !name.chars().any(|c| c.is_control() || c == '/');
    if good {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "a session's id has 1 to {NAME_MAX} characters without slashes, and is not 'entrypoint'"
    )))
}

fn unknown(name: &str) -> Refusal {
    let name: String = name.chars().take(NAME_MAX).collect();
    Refusal::new(
        404,
        "NOT_FOUND",
        format!("there is no session '{}'", name.escape_debug()),
    )
}

/// Every session and command of a sandbox, oldest first.
async fn processes(access: &GuestAccess) -> Result<Listed<Process>, Refusal> {
    let mut all = access.guest().processes().await?;
    all.sort_by_key(|process| process.started_unix_ms);
    Ok(all)
}

fn shell_of<'a>(all: &'a [Process], name: &str) -> Result<&'a Process, Refusal> {
    let is_it =
        |process: &&Process| Identity::of(process).name_of(owner::DAYTONA_SESSION) == Some(name);
    // The newest: one that ended may have been made again.
    let found = all.iter().rev().find(is_it).ok_or_else(|| unknown(name))?;
    // One that was deleted was killed; one that ended by itself is distinguished from none.
    match &found.exit {
        Some(exit) if exit.signal == SIGKILL => Err(unknown(name)),
        _ => Ok(found),
    }
}

/// The session's shell, which may have ended by itself. Deleting takes its directory away.
async fn session(access: &GuestAccess, all: &[Process], name: &str) -> Result<Process, Refusal> {
    let shell = shell_of(all, name)?;
    if shell.exit.is_some() {
        let path = directory_of(shell).ok_or_else(|| unknown(name))?;
        let there = crate::tree::stat(access, path).await;
        there.map_err(|_| unknown(name))?;
    }
    Ok(shell.clone())
}

/// The commands of the newest session of this name.
fn commands_of<'a>(all: &'a [Process], name: &'a str) -> impl Iterator<Item = &'a Process> {
    let since = shell_of(all, name).map_or(i64::MAX, |shell| shell.started_unix_ms);
    let is_its = move |process: &&Process| {
        let identity = Identity::of(process);
        identity.name_of(owner::DAYTONA_COMMAND) == Some(name) && process.started_unix_ms >= since
    };
    all.iter().filter(is_its)
}

fn command(process: &Process) -> Value {
    let text = process.argv.get(LENDER_ARGV).map_or("", String::as_str);
    match &process.exit {
        Some(exit) => json!({ "id": process.id, "command": text, "exitCode": exit.code }),
        None => json!({ "id": process.id, "command": text }),
    }
}

/// Where the command's own text stands among the lender's arguments.
const LENDER_ARGV: usize = 5;

fn described(all: &[Process], name: &str) -> Value {
    let commands: Vec<Value> = commands_of(all, name).map(command).collect();
    json!({ "sessionId": name, "commands": commands })
}

pub async fn create(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Create>,
) -> Answer {
    check_name(&body.session_id)?;
    let access = front
        .control
        .guest(&caller, &id, GuestAction::ProcessStart)
        .await?;
    let all = processes(&access).await?;
    if shell_of(&all, &body.session_id).is_ok_and(|shell| shell.exit.is_none()) {
        let message = "a session of this id exists already";
        return Err(Refusal::new(409, "CONFLICT", message));
    }
    let directory = format!("/tmp/.cove-session-{:016x}", rand::random::<u64>());
    let argv = ["/bin/sh", "-c", SHELL, "session", &directory];
    let request = CommandRequest {
        stdin_open: true,
        kind: ProcessKind::DialectSession,
        ..CommandRequest::new(
            owner::named(owner::DAYTONA_SESSION, &body.session_id),
            CommandLine::Argv(argv.map(str::to_owned).to_vec()),
        )
    };
    let start = access.command(request)?;
    access.guest().start(start).await?;
    Ok(StatusCode::CREATED.into_response())
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
    let all = processes(&access).await?;
    let live = all.iter().filter(|process| process.exit.is_none());
    let sessions: Vec<Value> = live
        .filter_map(|process| {
            let identity = Identity::of(process);
            let name = identity.name_of(owner::DAYTONA_SESSION)?;
            let name = Some(name).filter(|name| *name != entrypoint::NAME)?;
            Some(described(&all, name))
        })
        .collect();
    Ok(axum::Json(sessions).into_response())
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
    let all = processes(&access).await?;
    session(&access, &all, &name).await?;
    Ok(axum::Json(described(&all, &name)).into_response())
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
    let all = processes(&access).await?;
    let shell = session(&access, &all, &name).await?;
    let running = commands_of(&all, &name)
        .chain([&shell])
        .filter(|p| p.exit.is_none());
    for process in running {
        // One that ended meanwhile is where it should be.
        end(&access, process).await.ok();
    }
    if let Some(path) = directory_of(&shell) {
        let user = access.default_user().to_owned();
        let remove = Remove {
            path,
            user,
            recursive: true,
        };
        // Left-overs in a temporary directory are no reason to say that the session is still there.
        access.guest().remove(remove).await.ok();
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A guest may say anything; a directory that is not one of ours is not touched.
fn directory_of(shell: &Process) -> Option<String> {
    let given = shell.argv.last()?;
    let digits = given.strip_prefix("/tmp/.cove-session-")?;
    let ours = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    ours.then(|| given.clone())
}

fn ended() -> Refusal {
    let message = "the session's shell has ended; make a new session";
    Refusal::new(410, "SESSION_ENDED", message)
}

pub async fn execute(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, name)): Names<(String, String)>,
    Json(body): Json<Execute>,
) -> Answer {
    if body.command.trim().is_empty()
        || body.command.len() > TEXT_MAX
        || body.command.contains('\0')
    {
        let message = format!("a command has 1 to {TEXT_MAX} bytes and no NUL");
        return Err(Refusal::invalid(message));
    }
    let in_background = body.run_async.or(body.var_async).unwrap_or(false);
    let access = front.control.guest(&caller, &id, GuestAction::Exec).await?;
    let all = processes(&access).await?;
    let shell = session(&access, &all, &name).await?;
    if shell.exit.is_some() {
        return Err(ended());
    }
    let directory = directory_of(&shell).ok_or_else(ended)?;
    let base = format!("{directory}/{:016x}", rand::random::<u64>());
    let user = access.default_user().to_owned();
    let write = WriteFile {
        path: format!("{base}.sh"),
        user,
        mode: Some(0o600),
        parents: true,
        ..WriteFile::default()
    };
    let mut upload = access.guest().write_file(write).await.map_err(about_path)?;
    let text = Bytes::from(format!("{}\n", body.command));
    upload.write(text).await.map_err(about_path)?;
    upload.finish().await.map_err(about_path)?;

    let start = lender(&access, &base, &name, &body.command, in_background)?;
    let cmd = start.id.clone();
    if in_background {
        access.guest().start(start).await?;
        tell(access.guest(), &shell.id, &base).await?;
        let answer = json!({ "cmdId": cmd });
        return Ok((StatusCode::ACCEPTED, axum::Json(answer)).into_response());
    }
    let _under_way = front.streams.enter(&caller.org, Kind::Run)?;
    let account = access.account().clone();
    let guest = access.guest().clone();
    let following = Following::start(access, start).await?;
    tell(&guest, &shell.id, &base).await?;
    let said = collect(&account, following).await?;
    let code = said
        .exit
        .ok_or_else(|| Refusal::new(502, "BAD_GATEWAY", "the output ended without an exit code"))?;
    said.answer(&json!({ "cmdId": cmd, "exitCode": code }))
}

fn lender(
    access: &GuestAccess,
    base: &str,
    name: &str,
    command: &str,
    input: bool,
) -> Result<Start, Refusal> {
    // Listed with the command's own words, as much of them as a list shows.
    let shown: String = command.chars().take(1024).collect();
    let argv = ["/bin/sh", "-c", LENDER, "command", base, &shown];
    let request = CommandRequest {
        stdin_open: input,
        ..CommandRequest::new(
            owner::named(owner::DAYTONA_COMMAND, name),
            CommandLine::Argv(argv.map(str::to_owned).to_vec()),
        )
    };
    let mut start = access.command(request)?;
    start.ring_bytes = RING_BYTES;
    Ok(start)
}

/// Hands a command to the session's shell, which waits for the lender by itself.
async fn tell(guest: &Guest, shell: &str, base: &str) -> Result<(), Refusal> {
    let fd = "/proc/$__cove_pid/fd";
    let line = format!(
        "while [ ! -p \"{base}.status\" ]; do sleep 0.01 2>/dev/null || sleep 1; done; \
         read -r __cove_pid <\"{base}.pid\"; COVE_STATUS=\"{base}.status\"; \
         . \"{base}.sh\" <{fd}/0 >{fd}/1 2>{fd}/2; \
         echo $? >\"{base}.status\"; unset COVE_STATUS\n"
    );
    let told = async {
        let mut stdin = guest.stdin(shell).await?;
        stdin.write(line.into()).await?;
        stdin.flush().await
    };
    told.await.map(drop).map_err(|_| ended())
}

/// What a command has said.
struct Spoken {
    all: Output,
    stdout: Output,
    stderr: Output,
    exit: Option<i32>,
}

impl Spoken {
    fn answer(self, head: &Value) -> Answer {
        let outputs = [
            ("output", self.all),
            ("stdout", self.stdout),
            ("stderr", self.stderr),
        ];
        let answer = JsonAnswer::new(head);
        let whole = outputs.into_iter().fold(answer, |answer, (name, output)| {
            let remark = output.cut_remark();
            answer.output_and(name, output, Said::Text, &remark)
        });
        Ok(whole.into_response())
    }
}

async fn collect(account: &Account, mut following: Following) -> Result<Spoken, Refusal> {
    let mut said = Spoken {
        all: Output::new(account, ANSWER_MAX),
        stdout: Output::new(account, ANSWER_MAX),
        stderr: Output::new(account, ANSWER_MAX),
        exit: None,
    };
    while let Some(event) = following.next().await? {
        match event {
            FollowEvent::Started(_) | FollowEvent::Refused(_) => {}
            FollowEvent::Output {
                channel,
                data,
                dropped,
                ..
            } => {
                let own = match channel {
                    Channel::Stdout => &mut said.stdout,
                    Channel::Stderr => &mut said.stderr,
                };
                for output in [own, &mut said.all] {
                    output.take(dropped_remark(dropped).as_bytes());
                    output.take(&data);
                }
            }
            FollowEvent::Exit(exit) => {
                said.exit = Some(exit.code);
                break;
            }
        }
    }
    Ok(said)
}

/// What is to stand in the place of output that is kept no more.
pub fn dropped_remark(dropped: u64) -> String {
    match dropped {
        0 => String::new(),
        bytes => format!("[{bytes} bytes of output are missing here: the last MiB is kept]\n"),
    }
}

/// One command of a session, and nothing else that runs in the sandbox.
pub async fn found(access: &GuestAccess, name: &str, cmd: &str) -> Result<Process, Refusal> {
    let all = processes(access).await?;
    let found = commands_of(&all, name)
        .find(|process| process.id == cmd)
        .cloned();
    found.ok_or_else(|| {
        let message = "there is no such command in this session";
        Refusal::new(404, "NOT_FOUND", message)
    })
}

type Named = Names<(String, String, String)>;

pub async fn get_command(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, name, cmd)): Named,
) -> Answer {
    let access = front
        .control
        .guest(&caller, &id, GuestAction::ProcessRead)
        .await?;
    let process = found(&access, &name, &cmd).await?;
    Ok(axum::Json(command(&process)).into_response())
}

/// What a command said so far.
pub async fn logs(front: &Front, access: GuestAccess, process: Process) -> Answer {
    let from = OutputFrom {
        id: process.id,
        ..OutputFrom::default()
    };
    let account = access.account().clone();
    let following = Following::attach(access, from).await?;
    let said = tokio::select! {
        said = collect(&account, following) => said?,
        () = front.leaving.cancelled() => {
            return Err(Refusal::new(503, "UNAVAILABLE", "the server is restarting"));
        }
    };
    said.answer(&json!({}))
}

pub async fn input(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, name, cmd)): Named,
    Json(body): Json<Input>,
) -> Answer {
    if body.data.len() > TEXT_MAX {
        return Err(Refusal::invalid(format!(
            "input has at most {TEXT_MAX} bytes at once"
        )));
    }
    let access = front
        .control
        .guest(&caller, &id, GuestAction::ProcessInput)
        .await?;
    let process = found(&access, &name, &cmd).await?;
    if process.exit.is_some() {
        let message = "the command has ended";
        return Err(Refusal::new(410, "COMMAND_ALREADY_COMPLETED", message));
    }
    let mut text = body.data;
    // Input is a line, as it is at Daytona.
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut stdin = access.guest().stdin(process.id).await?;
    stdin.write(text.into()).await?;
    stdin.flush().await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
