//! Commands in the foreground: output as it comes, input from a pipe, signals passed on, and the
//! command's own exit code.

use std::io::Write;
use std::pin::Pin;
use std::time::{Duration, Instant};

use cove_api::process::{Exec, Exit, OutputChunk, OutputEvent, OutputQuery, StartProcess};
use cove_client::{Client, ClientError, Lines};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{shell, stdin};
use crate::args::ExecArgs;
use crate::args::work::CommandOptions;
use crate::output;
use crate::report::{CliError, printable};

/// How long a broken connection is tried again before the command is given up for lost.
const RECONNECT_FOR: Duration = Duration::from_secs(30);
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// What timeout(1) exits with.
pub const TIMED_OUT: u8 = 124;
/// So many interrupts and the command is left alone.
const INTERRUPTS_MAX: u32 = 3;

pub async fn run(client: &Client, args: &ExecArgs, json: bool) -> Result<u8, CliError> {
    let command = args.shell.clone();
    let argv = (!args.argv.is_empty()).then(|| args.argv.clone());
    let timeout_ms = args.timeout.map(|seconds| seconds.saturating_mul(1000));
    if args.detach {
        let start = StartProcess {
            command,
            argv,
            cwd: args.options.workdir.clone(),
            env: args.options.variables(),
            user: args.options.user.clone(),
            timeout_ms,
            ..StartProcess::default()
        };
        let process = client.start_process(&args.sandbox, &start).await?;
        if json {
            output::json(&process)?
        } else {
            output::line(&process.id)?
        }
        return Ok(0);
    }
    if args.tty {
        let start = shell::terminal_process(&args.options, command, argv, timeout_ms)?;
        return shell::start_and_attach(client, &args.sandbox, &start, Some(0x1d)).await;
    }
    let mut exec = request(&args.options, timeout_ms);
    exec.command = command;
    exec.argv = argv;
    exec.stdin_open = args.interactive;
    foreground(client, &args.sandbox, &exec, json).await
}

pub fn request(options: &CommandOptions, timeout_ms: Option<u64>) -> Exec {
    Exec {
        cwd: options.workdir.clone(),
        env: options.variables(),
        user: options.user.clone(),
        timeout_ms,
        ..Exec::default()
    }
}

/// Runs a command to its end as if it ran here; as JSON, its events one a line.
pub async fn foreground(
    client: &Client,
    sandbox: &str,
    exec: &Exec,
    json: bool,
) -> Result<u8, CliError> {
    let lines = client.exec_live(sandbox, exec).await?;
    let mut following = Following {
        client,
        sandbox,
        lines,
        process: None,
        next: [0, 0],
    };
    let mut signals = Signals::new()?;
    let mut interrupts = 0;
    // A hint is shown once.
    let mut hinted = false;
    // Nothing to feed until the process is known; nothing again after its input ended.
    let mut feeding: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(std::future::pending());
    loop {
        let event = tokio::select! {
            event = following.next() => event?,
            name = signals.next() => {
                interrupts += 1;
                let Some(process) = following.process.clone() else { return Ok(130) };
                if interrupts > INTERRUPTS_MAX {
                    return Ok(130);
                }
                client.signal(sandbox, &process, name).await.ok();
                continue;
            }
            () = &mut feeding => {
                feeding = Box::pin(std::future::pending());
                continue;
            }
        };
        let told = match json {
            true => output::json_line(&event),
            false => Ok(()),
        };
        if told.is_err()
            && let Some(process) = &following.process
        {
            client.signal(sandbox, process, "PIPE").await.ok();
        }
        told?;
        match event {
            OutputEvent::Started { process } => {
                if exec.stdin_open {
                    feeding = Box::pin(async move {
                        stdin::feed(client, sandbox, &process.id).await;
                    });
                }
            }
            OutputEvent::Stdout(_) | OutputEvent::Stderr(_) if json => {}
            OutputEvent::Exit(exit) if json => return Ok(exit_code(&exit)),
            OutputEvent::Stdout(chunk) => {
                let result = write_chunk(chunk, &mut std::io::stdout().lock());
                if let Err(error @ CliError::OutputClosed) = result {
                    // Our reader left: the command gets what it would have got in a local pipe.
                    if let Some(process) = &following.process {
                        client.signal(sandbox, process, "PIPE").await.ok();
                    }
                    return Err(error);
                }
                result?;
            }
            OutputEvent::Stderr(chunk) => {
                if let Some(hint) = &chunk.hint {
                    hinted = true;
                    eprintln!("cove: {}", printable(hint));
                }
                write_chunk(chunk, &mut std::io::stderr().lock())?;
            }
            OutputEvent::Exit(exit) => {
                let code = finish(&exit);
                if let Some(hint) = exit.hint.as_ref().filter(|_| !hinted) {
                    eprintln!("cove: {}", printable(hint));
                }
                return Ok(code);
            }
            OutputEvent::Error { error } => {
                return Err(CliError::usage(format!(
                    "the output ended early: {}",
                    error.message
                )));
            }
        }
    }
}

pub fn write_chunk(chunk: OutputChunk, out: &mut impl Write) -> Result<(), CliError> {
    if chunk.dropped > 0 {
        eprintln!(
            "cove: {} bytes of output were no longer kept",
            chunk.dropped
        );
    }
    let bytes = chunk
        .into_bytes()
        .ok_or_else(|| CliError::usage("the server sent output that cannot be read"))?;
    out.write_all(&bytes)
        .and_then(|()| out.flush())
        .map_err(output::closed)
}

/// Says what an exit code alone does not, and returns it.
pub fn finish(exit: &Exit) -> u8 {
    if exit.oom {
        let mib = |bytes: Option<u64>| bytes.unwrap_or(0) / (1024 * 1024);
        eprintln!(
            "cove: out of memory: the limit is {} MiB, the peak was {} MiB",
            mib(exit.memory_limit_bytes),
            mib(exit.memory_peak_bytes)
        );
        eprintln!("  raise it with `cove update --memory`");
    } else if exit.timed_out {
        eprintln!("cove: the command was killed after its timeout");
    }
    exit_code(exit)
}

fn exit_code(exit: &Exit) -> u8 {
    match exit.timed_out && !exit.oom {
        true => TIMED_OUT,
        false => u8::try_from(exit.exit_code).unwrap_or(255),
    }
}

/// A command's output that survives its connection.
struct Following<'a> {
    client: &'a Client,
    sandbox: &'a str,
    lines: Lines<OutputEvent>,
    process: Option<String>,
    next: [u64; 2],
}

impl Following<'_> {
    async fn next(&mut self) -> Result<OutputEvent, CliError> {
        loop {
            let event = match self.lines.next().await {
                Ok(Some(OutputEvent::Error { error }))
                    if error.code == cove_api::ErrorCode::Unavailable =>
                {
                    self.reconnect(CliError::usage(error.message)).await?;
                    continue;
                }
                Ok(Some(event)) => event,
                Ok(None) => {
                    let lost = ClientError::Protocol("the output ended without an exit code");
                    self.reconnect(lost.into()).await?;
                    continue;
                }
                Err(error) => {
                    self.reconnect(error.into()).await?;
                    continue;
                }
            };
            match &event {
                OutputEvent::Started { process } => self.process = Some(process.id.clone()),
                OutputEvent::Stdout(chunk) => self.next[0] = end(chunk),
                OutputEvent::Stderr(chunk) => self.next[1] = end(chunk),
                OutputEvent::Exit(_) | OutputEvent::Error { .. } => {}
            }
            return Ok(event);
        }
    }

    /// Goes on from the offsets reached; the command did not notice that we were away.
    async fn reconnect(&mut self, reason: CliError) -> Result<(), CliError> {
        let Some(process) = &self.process else {
            return Err(reason);
        };
        let [stdout_from, stderr_from] = self.next;
        let query = OutputQuery {
            stdout_from,
            stderr_from,
            follow: true,
            ..OutputQuery::default()
        };
        let started = Instant::now();
        loop {
            match self.client.output(self.sandbox, process, &query).await {
                Ok(lines) => {
                    self.lines = lines;
                    return Ok(());
                }
                Err(ClientError::Refused { status, .. }) if status.is_client_error() => {
                    return Err(reason);
                }
                Err(_) if started.elapsed() > RECONNECT_FOR => return Err(reason),
                Err(_) => tokio::time::sleep(RECONNECT_PAUSE).await,
            }
        }
    }
}

/// The offset behind a chunk.
fn end(chunk: &OutputChunk) -> u64 {
    let length = match (&chunk.text, &chunk.data) {
        (Some(text), _) => text.len(),
        (None, _) => chunk.clone().into_bytes().map_or(0, |bytes| bytes.len()),
    };
    chunk.offset.saturating_add(length as u64)
}

/// Signals that are meant for the command.
pub struct Signals {
    int: Signal,
    term: Signal,
    hup: Signal,
    quit: Signal,
}

impl Signals {
    pub fn new() -> Result<Self, CliError> {
        let failed = |source| CliError::io("cannot wait for signals", source);
        Ok(Self {
            int: signal(SignalKind::interrupt()).map_err(failed)?,
            term: signal(SignalKind::terminate()).map_err(failed)?,
            hup: signal(SignalKind::hangup()).map_err(failed)?,
            quit: signal(SignalKind::quit()).map_err(failed)?,
        })
    }

    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.int.recv() => "INT",
            _ = self.term.recv() => "TERM",
            _ = self.hup.recv() => "HUP",
            _ = self.quit.recv() => "QUIT",
        }
    }
}
