//! Commands that are answered in one piece, and code that leaves nothing behind.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use cove_control::{CommandLine, CommandRequest, GuestAccess, GuestAction, Principal, budget};
use cove_dialect::{Following, Front, JsonAnswer, Kind, Output, Said};
use cove_limits::PATH_MAX;
use cove_protocol::client::FollowEvent;
use cove_protocol::identity::owner;
use cove_protocol::message::{Channel, Exit, OutputFrom, Process, Signal};
use serde_json::json;

use crate::asking::{Caller, Json, Names};
use crate::refusal::{Answer, Refusal};
use crate::wire::{CodeRun, Execute};

const TIMEOUT_MAX_S: i64 = (cove_limits::TIMEOUT_MAX_MS / 1000).cast_signed();
/// How long a killed process may take to be gone.
const END_WAIT: Duration = Duration::from_secs(20);
pub const SIGKILL: i32 = 9;

/// Bytes of one answer, which carries both streams of a command.
pub const ANSWER_MAX: usize = 2 * cove_limits::EXEC_OUTPUT_MAX;
/// Bytes of output that is read here rather than answered.
const READ_MAX: usize = 4 * 1024 * 1024;

/// A command that has ended.
pub struct Ended {
    pub output: Output,
    pub exit: Exit,
}

impl Ended {
    /// What the server adds to the output.
    pub fn remark(&self) -> String {
        let mut remark = self.output.cut_remark();
        if self.exit.oom {
            let mib = self.exit.memory_limit_bytes / (1024 * 1024);
            remark += &format!("\n[the sandbox ran out of memory: its limit is {mib} MiB]\n");
        }
        remark
    }

    /// All of it, to be read here.
    pub fn bytes(&mut self) -> Result<Vec<u8>, Refusal> {
        Ok(self.output.whole().ok_or_else(budget::over)?)
    }
}

/// Runs a command to its end, both outputs together as they come.
pub async fn run(
    front: &Front,
    access: GuestAccess,
    request: CommandRequest,
) -> Result<Ended, Refusal> {
    let mut output = Output::new(access.account(), ANSWER_MAX);
    let exit = until_exit(front, access, request, |_, data| output.take(data)).await?;
    Ok(Ended { output, exit })
}

/// A command that has ended, with its outputs apart.
pub struct Both {
    pub stdout: String,
    pub stderr: String,
    pub exit: Exit,
}

/// Runs a command to its end, its outputs apart.
pub async fn run_apart(
    front: &Front,
    access: GuestAccess,
    request: CommandRequest,
) -> Result<Both, Refusal> {
    let mut stdout = Output::new(access.account(), READ_MAX);
    let mut stderr = Output::new(access.account(), READ_MAX);
    let take = |channel, data: &[u8]| match channel {
        Channel::Stdout => stdout.take(data),
        Channel::Stderr => stderr.take(data),
    };
    let exit = until_exit(front, access, request, take).await?;
    let text = |mut output: Output| {
        let bytes = output.whole().ok_or_else(budget::over)?;
        Ok::<_, Refusal>(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Both {
        stdout: text(stdout)?,
        stderr: text(stderr)?,
        exit,
    })
}

async fn until_exit(
    front: &Front,
    access: GuestAccess,
    request: CommandRequest,
    take: impl FnMut(Channel, &[u8]),
) -> Result<Exit, Refusal> {
    let _under_way = front.streams.enter(&access.sandbox().org, Kind::Run)?;
    access.account().require_output_room()?;
    let start = access.command(request)?;
    let mut following = Following::start(access, start).await?;
    Ok(following.until_exit(take).await?)
}

/// Ends a process and all of its group, and returns when the guest has noticed.
pub async fn end(access: &GuestAccess, process: &Process) -> Result<(), Refusal> {
    let signal = Signal {
        id: process.id.clone(),
        signal: SIGKILL,
        only_leader: false,
    };
    access.guest().signal(signal).await?;
    let from = OutputFrom {
        id: process.id.clone(),
        stdout_from: process.stdout_bytes,
        stderr_from: process.stderr_bytes,
        follow: true,
        resume: false,
    };
    let ended = async {
        let mut follow = access.guest().follow(from).await?;
        while let Some(event) = follow.next().await? {
            if matches!(event, FollowEvent::Exit(_)) {
                break;
            }
        }
        Ok::<_, Refusal>(())
    };
    match tokio::time::timeout(END_WAIT, ended).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Refusal::new(
            504,
            "TIMED_OUT",
            "the process did not end in time",
        )),
    }
}

/// Both outputs on one pipe, so that they keep their order.
pub fn merged(command: &str) -> CommandLine {
    CommandLine::Shell(format!("exec 2>&1; {command}"))
}

pub fn timeout_ms(seconds: Option<i64>) -> Result<Option<u64>, Refusal> {
    match seconds {
        None | Some(0) => Ok(None),
        Some(seconds @ 1..=TIMEOUT_MAX_S) => Ok(Some(seconds.unsigned_abs() * 1000)),
        Some(_) => Err(Refusal::invalid(format!(
            "timeout must be between 1 and {TIMEOUT_MAX_S} seconds"
        ))),
    }
}

pub fn timed_out(seconds: Option<i64>) -> Refusal {
    let seconds = seconds.unwrap_or(0);
    let message = format!("the command did not end within {seconds} seconds and was killed");
    Refusal::new(408, "PROCESS_EXECUTION_TIMEOUT", message)
}

pub async fn execute(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Execute>,
) -> Answer {
    if body.command.trim().is_empty() {
        return Err(Refusal::invalid("the command is empty"));
    }
    let access = front.control.guest(&caller, &id, GuestAction::Exec).await?;
    let mut env = body.env.unwrap_or_default();
    env.extend(body.envs.unwrap_or_default());
    let request = CommandRequest {
        cwd: cwd(&front, &caller, &id, body.cwd).await?,
        env,
        timeout_ms: timeout_ms(body.timeout)?,
        ..CommandRequest::new(owner::DAYTONA, merged(&body.command))
    };
    let ended = run(&front, access, request).await?;
    if ended.exit.timed_out {
        return Err(timed_out(body.timeout));
    }
    let remark = ended.remark();
    Ok(JsonAnswer::new(&json!({ "exitCode": ended.exit.code }))
        .output_and("result", ended.output, Said::Text, &remark)
        .into_response())
}

/// A directory as Daytona takes it: one that is not absolute begins where commands do.
pub async fn cwd(
    front: &Front,
    caller: &Principal,
    id: &str,
    given: Option<String>,
) -> Result<Option<String>, Refusal> {
    match given.filter(|given| !given.is_empty()) {
        None => Ok(None),
        Some(given) => absolute(front, caller, id, given).await.map(Some),
    }
}

pub async fn absolute(
    front: &Front,
    caller: &Principal,
    id: &str,
    given: String,
) -> Result<String, Refusal> {
    if given.contains('\0') || given.len() > PATH_MAX {
        let message = format!("a path has at most {PATH_MAX} bytes and no NUL");
        return Err(Refusal::new(400, "INVALID_FILE_PATH", message));
    }
    if given.starts_with('/') {
        return Ok(given);
    }
    let base = asked_inside(front, caller, id, "pwd").await?;
    Ok(format!("{}/{given}", base.trim_end_matches('/')))
}

/// One line that a command prints.
async fn asked_inside(
    front: &Front,
    caller: &Principal,
    id: &str,
    command: &str,
) -> Result<String, Refusal> {
    let access = front
        .control
        .guest(caller, id, GuestAction::Metrics)
        .await?;
    let mut ended = run(
        front,
        access,
        CommandRequest::new(owner::DAYTONA, CommandLine::Shell(command.to_owned())),
    )
    .await?;
    let text = String::from_utf8_lossy(&ended.bytes()?).into_owned();
    match text.strip_suffix('\n') {
        Some(line) if line.starts_with('/') && line.len() <= PATH_MAX => Ok(line.to_owned()),
        _ => Err(Refusal::new(
            502,
            "BAD_GATEWAY",
            "cannot read the working directory of the sandbox",
        )),
    }
}

pub async fn work_dir(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    let dir = asked_inside(&front, &caller, &id, "pwd").await?;
    Ok(axum::Json(json!({ "dir": dir })).into_response())
}

pub async fn home_dir(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    let dir = asked_inside(&front, &caller, &id, "printf '%s\\n' \"$HOME\"").await?;
    Ok(axum::Json(json!({ "dir": dir })).into_response())
}

/// How each language's program takes a file with code.
fn interpreter(language: &str) -> Result<(&'static str, &'static str), Refusal> {
    match language {
        "python" => Ok(("py", "exec python3 -u \"$@\"")),
        "javascript" => Ok(("cjs", "exec node \"$@\"")),
        // What strips the types is in Node since version 22.6; later ones need no flag for it.
        "typescript" => Ok((
            "ts",
            "exec node --experimental-strip-types --no-warnings \"$@\"",
        )),
        "bash" => Ok(("sh", "exec bash \"$@\"")),
        other => Err(Refusal::invalid(format!(
            "language: '{}' is not one of python, javascript, typescript and bash",
            other.chars().take(40).collect::<String>().escape_debug()
        ))),
    }
}

pub async fn code_run(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<CodeRun>,
) -> Answer {
    let (extension, program) = interpreter(&body.language)?;
    let access = front.control.guest(&caller, &id, GuestAction::Exec).await?;
    // The code is the shell's input, which puts it into a file of its own and takes that away again.
    let script = format!(
        "exec 2>&1; umask 077; d=$(mktemp -d) || exit 1; \
         trap 'rm -rf \"$d\"' EXIT; trap 'exit 143' HUP INT TERM; \
         cat >\"$d/code.{extension}\" || exit 1; \
         ( set -- \"$d/code.{extension}\" \"$@\"; {program} ) </dev/null"
    );
    let mut argv = vec![
        "/bin/sh".to_owned(),
        "-c".to_owned(),
        script,
        "code".to_owned(),
    ];
    argv.extend(body.argv.unwrap_or_default());
    let code = bytes::Bytes::from(body.code);
    let env: BTreeMap<String, String> = body.envs.unwrap_or_default();
    let request = CommandRequest {
        env,
        stdin: Some(code),
        timeout_ms: timeout_ms(body.timeout)?,
        ..CommandRequest::new(owner::DAYTONA, CommandLine::Argv(argv))
    };
    let ended = run(&front, access, request).await?;
    if ended.exit.timed_out {
        return Err(timed_out(body.timeout));
    }
    let remark = ended.remark();
    let head = json!({ "exitCode": ended.exit.code, "artifacts": { "charts": [] } });
    Ok(JsonAnswer::new(&head)
        .output_and("result", ended.output, Said::Text, &remark)
        .into_response())
}
