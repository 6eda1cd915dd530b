//! Commands. A short one is answered with its end; a long one with a handle: the process and the offsets
//! to go on from.

use std::collections::BTreeMap;
use std::time::Duration;

use cove_api::process::{Exec, Exit, OutputEvent, OutputQuery, Process};
use cove_client::Lines;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::output::Kept;
use crate::answer::{self, Outcome, Refusal};
use crate::call::{Call, PROGRESS_EVERY};

/// How long a call waits for the end of a command; clients commonly give up after 60 s.
const WAIT_DEFAULT_S: u64 = 45;
const WAIT_MAX_S: u64 = 600;
/// Bytes of each stream in one answer.
const OUTPUT_DEFAULT: usize = 32 * 1024;
const OUTPUT_MAX: usize = 128 * 1024;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Name or id of the sandbox.
    sandbox: String,
    /// The command line, run by the user's login shell.
    command: String,
    /// Directory to run it in.
    cwd: Option<String>,
    /// Environment variables, in addition to the sandbox's.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// User to run it as. Default: the sandbox's user.
    user: Option<String>,
    /// Text for its standard input.
    stdin: Option<String>,
    /// Kill the command after this many seconds. Default: never.
    timeout_s: Option<u64>,
    /// Return after this many seconds even if the command still runs; it keeps running. Default 45,
    /// at most 600.
    wait_s: Option<u64>,
    /// Maximum number of bytes of stdout and of stderr in the answer; the middle is left out, and
    /// run_output reads it by its offsets. Default 32768, at most 131072.
    max_output_bytes: Option<usize>,
}

pub async fn run(call: Call, run: Run) -> Outcome {
    let exec = Exec {
        command: Some(run.command),
        cwd: run.cwd,
        env: run.env,
        user: run.user,
        stdin: run.stdin,
        timeout_ms: run.timeout_s.map(|seconds| seconds.saturating_mul(1000)),
        ..Exec::default()
    };
    let limits = Limits::new(run.wait_s, run.max_output_bytes)?;
    let lines = call.client.exec_live(&run.sandbox, &exec).await?;
    let mut followed = Followed::new(0, 0, limits.output);
    followed
        .follow(&call, &run.sandbox, lines, limits.wait)
        .await?;
    followed.answer()
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Name or id of the sandbox.
    sandbox: String,
    /// The process, as run returned it.
    process: String,
    /// Offset in stdout to continue from: `stdout_next` of the previous answer.
    #[serde(default)]
    stdout_from: u64,
    /// Offset in stderr to continue from: `stderr_next` of the previous answer.
    #[serde(default)]
    stderr_from: u64,
    /// Return after this many seconds even if the command still runs; 0 returns the output so far.
    /// Default 45, at most 600.
    wait_s: Option<u64>,
    /// Maximum number of bytes of stdout and of stderr in the answer. Default 32768, at most
    /// 131072.
    max_output_bytes: Option<usize>,
}

pub async fn output(call: Call, output: Output) -> Outcome {
    let limits = Limits::new(output.wait_s, output.max_output_bytes)?;
    let query = OutputQuery {
        stdout_from: output.stdout_from,
        stderr_from: output.stderr_from,
        follow: !limits.wait.is_zero(),
        ..OutputQuery::default()
    };
    let process = call
        .client
        .process(&output.sandbox, &output.process)
        .await?;
    let lines = call.client.output(&output.sandbox, &output.process, &query);
    let mut followed = Followed::new(output.stdout_from, output.stderr_from, limits.output);
    followed.process = Some(process);
    let wait = if query.follow {
        limits.wait
    } else {
        Duration::from_secs(WAIT_DEFAULT_S)
    };
    followed
        .follow(&call, &output.sandbox, lines.await?, wait)
        .await?;
    followed.answer()
}

struct Limits {
    wait: Duration,
    output: usize,
}

impl Limits {
    fn new(wait_s: Option<u64>, output: Option<usize>) -> Result<Self, Refusal> {
        let (wait, output) = (
            wait_s.unwrap_or(WAIT_DEFAULT_S),
            output.unwrap_or(OUTPUT_DEFAULT),
        );
        if wait > WAIT_MAX_S {
            return Err(Refusal::new(format!("wait_s is at most {WAIT_MAX_S}")));
        }
        if output > OUTPUT_MAX {
            return Err(Refusal::new(format!(
                "max_output_bytes is at most {OUTPUT_MAX}; run_output reads the rest by offsets"
            )));
        }
        Ok(Self {
            wait: Duration::from_secs(wait),
            output,
        })
    }
}

struct Followed {
    process: Option<Process>,
    stdout: Kept,
    stderr: Kept,
    exit: Option<Exit>,
}

impl Followed {
    fn new(stdout_from: u64, stderr_from: u64, max: usize) -> Self {
        Self {
            process: None,
            stdout: Kept::new(stdout_from, max),
            stderr: Kept::new(stderr_from, max),
            exit: None,
        }
    }

    async fn follow(
        &mut self,
        call: &Call,
        sandbox: &str,
        mut lines: Lines<OutputEvent>,
        wait: Duration,
    ) -> Result<(), Refusal> {
        let over = tokio::time::sleep(wait);
        tokio::pin!(over);
        let mut ticks = interval_at(Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                event = lines.next() => match event? {
                    None => return Ok(()),
                    Some(OutputEvent::Started { process }) => self.process = Some(*process),
                    Some(OutputEvent::Stdout(chunk)) => self.stdout.push(chunk),
                    Some(OutputEvent::Stderr(chunk)) => self.stderr.push(chunk),
                    Some(OutputEvent::Exit(exit)) => self.exit = Some(exit),
                    Some(OutputEvent::Error { error }) => {
                        // The command may still run; the handle says where to go on.
                        if self.process.is_none() {
                            return Err(Refusal::new(error.message));
                        }
                        return Ok(());
                    }
                },
                () = &mut over => return Ok(()),
                () = call.cancelled() => {
                    if let Some(process) = &self.process {
                        call.client.signal(sandbox, &process.id, "TERM").await?;
                    }
                    return Err(Refusal::new("cancelled; the command was sent SIGTERM"));
                }
                _ = ticks.tick() => call.progress(&self.last_line()).await,
            }
        }
    }

    fn last_line(&self) -> String {
        let line = self.stdout.last_line();
        if line.is_empty() {
            self.stderr.last_line()
        } else {
            line
        }
    }

    fn answer(self) -> Outcome {
        let process = self.process.map(|process| process.id).unwrap_or_default();
        let (stdout, stderr) = (self.stdout.text(), self.stderr.text());
        let mut text = stdout.clone();
        if !stderr.is_empty() {
            let gap = if text.is_empty() || text.ends_with('\n') {
                ""
            } else {
                "\n"
            };
            text.push_str(&format!("{gap}[stderr]\n{stderr}"));
        }
        let mut structured = json!({
            "running": self.exit.is_none(),
            "process": process,
            "stdout": stdout,
            "stderr": stderr,
            "stdout_next": self.stdout.next,
            "stderr_next": self.stderr.next,
        });
        let gap = if text.is_empty() || text.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        let end = match &self.exit {
            None => format!(
                "[still running; go on with run_output: process {process}, stdout_from {}, stderr_from {}]",
                self.stdout.next, self.stderr.next
            ),
            Some(exit) => {
                structured["exit_code"] = exit.exit_code.into();
                structured["timed_out"] = exit.timed_out.into();
                structured["out_of_memory"] = exit.oom.into();
                structured["duration_ms"] = exit.duration_ms.into();
                let why = match (exit.timed_out, exit.oom) {
                    (true, _) => ", killed: timeout_s was reached",
                    (_, true) => ", killed: the sandbox is out of memory",
                    _ => "",
                };
                let hint = match &exit.hint {
                    Some(hint) => {
                        structured["hint"] = hint.as_str().into();
                        format!("\n[{hint}]")
                    }
                    None => String::new(),
                };
                format!("[exit code {}{why}]{hint}", exit.exit_code)
            }
        };
        text.push_str(&format!("{gap}{end}"));
        answer::text(text, structured, &["stdout", "stderr"])
    }
}
