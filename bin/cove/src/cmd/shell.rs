//! A terminal in a sandbox. The process belongs to the sandbox, not to this connection: losing the
//! connection loses nothing, and leaving on purpose leaves it running.

use std::io::Write;
use std::time::{Duration, Instant};

use cove_api::process::{
    AttachEvent, AttachQuery, AttachRequest, Exit, Process, StartProcess, Stream, TerminalSize,
};
use cove_client::{AttachMessage, Attachment, Client, ClientError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::exec::{self, Signals};
use super::stdin;
use crate::args::ShellArgs;
use crate::args::work::CommandOptions;
use crate::output;
use crate::report::CliError;
use crate::terminal::{self, Raw};

/// How long a broken connection is tried again.
const RECONNECT_FOR: Duration = Duration::from_secs(30);
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// The login shell of the user that it runs as.
pub const LOGIN_SHELL: &str = r#"exec "${SHELL:-/bin/sh}" -l"#;

pub async fn run(client: &Client, args: &ShellArgs) -> Result<u8, CliError> {
    if let Some(process) = &args.attach {
        let process = client.process(&args.sandbox, process).await?;
        let size = terminal::size();
        return attach(client, &args.sandbox, process, size, args.detach_key.0).await;
    }
    let (command, argv) = match args.argv.as_slice() {
        [] => (Some(LOGIN_SHELL.to_owned()), None),
        argv => (None, Some(argv.to_vec())),
    };
    let start = terminal_process(&args.options, command, argv, None)?;
    start_and_attach(client, &args.sandbox, &start, args.detach_key.0).await
}

/// A process with a terminal of the size of ours.
pub fn terminal_process(
    options: &CommandOptions,
    command: Option<String>,
    argv: Option<Vec<String>>,
    timeout_ms: Option<u64>,
) -> Result<StartProcess, CliError> {
    if !terminal::is_interactive() {
        return Err(CliError::hinted(
            "standard input and output must be a terminal",
            "`cove exec` runs commands without one",
        ));
    }
    let mut env: std::collections::BTreeMap<_, _> = ["TERM", "COLORTERM"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
        .collect();
    env.extend(options.variables());
    Ok(StartProcess {
        command,
        argv,
        cwd: options.workdir.clone(),
        env,
        user: options.user.clone(),
        timeout_ms,
        pty: Some(terminal::size()),
        ..StartProcess::default()
    })
}

pub async fn start_and_attach(
    client: &Client,
    sandbox: &str,
    start: &StartProcess,
    detach: Option<u8>,
) -> Result<u8, CliError> {
    let process = client.start_process(sandbox, start).await?;
    let size = start.pty.unwrap_or_else(terminal::size);
    attach(client, sandbox, process, size, detach).await
}

/// How the time at the terminal ended.
enum Left {
    Exited(Exit),
    Detached,
    /// By a signal to us; the process gets it too.
    Signalled(&'static str),
}

async fn attach(
    client: &Client,
    sandbox: &str,
    process: Process,
    mut known: TerminalSize,
    detach: Option<u8>,
) -> Result<u8, CliError> {
    let failed = |source| CliError::io("cannot use the terminal", source);
    let raw = if terminal::is_interactive() {
        Some(Raw::enter().map_err(failed)?)
    } else {
        None
    };
    let mut keys = stdin::chunks();
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let mut signals = Signals::new()?;
    let mut from = AttachQuery {
        stdout_from: 0,
        stderr_from: 0,
    };
    let mut lost_at: Option<Instant> = None;
    let left = loop {
        let mut attachment = match client.attach(sandbox, &process.id, &from).await {
            Ok(attachment) => attachment,
            Err(error) => {
                let since = *lost_at.get_or_insert_with(Instant::now);
                let refused = matches!(&error, ClientError::Refused { status, .. } if status.is_client_error());
                if refused || since.elapsed() > RECONNECT_FOR {
                    return Err(error.into());
                }
                tokio::time::sleep(RECONNECT_PAUSE).await;
                continue;
            }
        };
        let session = Session {
            attachment: &mut attachment,
            keys: &mut keys,
            resized: &mut resized,
            signals: &mut signals,
            detach,
        };
        match session.run(&mut from, &mut known).await? {
            Some(left) => break left,
            // The connection broke; come back where we were.
            None => {
                lost_at = Some(Instant::now());
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        }
    };
    drop(raw);
    match left {
        Left::Exited(exit) => Ok(exec::finish(&exit)),
        Left::Detached => {
            eprintln!(
                "\ndetached; `cove shell --attach {} {sandbox}` attaches again",
                process.id
            );
            Ok(0)
        }
        Left::Signalled(name) => {
            client.signal(sandbox, &process.id, name).await.ok();
            let number = cove_api::process::parse_signal(name).unwrap_or(15);
            Ok(128 + u8::try_from(number).unwrap_or(15))
        }
    }
}

struct Session<'a> {
    attachment: &'a mut Attachment,
    keys: &'a mut mpsc::Receiver<bytes::Bytes>,
    resized: &'a mut tokio::signal::unix::Signal,
    signals: &'a mut Signals,
    detach: Option<u8>,
}

impl Session<'_> {
    /// Until it ends; `None` when only the connection did.
    async fn run(
        self,
        from: &mut AttachQuery,
        known: &mut TerminalSize,
    ) -> Result<Option<Left>, CliError> {
        let Attachment { sender, receiver } = self.attachment;
        let mut keys_open = true;
        // The size may have changed while nobody was attached.
        let now = terminal::size();
        if now != *known {
            *known = now;
            if sender.request(&resize(now)).await.is_err() {
                return Ok(None);
            }
        }
        loop {
            let sent = tokio::select! {
                message = receiver.next() => match message {
                    Ok(Some(AttachMessage::Output { stream, offset, data })) => {
                        show(stream, &data)?;
                        let next = offset.saturating_add(data.len() as u64);
                        match stream {
                            Stream::Stdout => from.stdout_from = next,
                            Stream::Stderr => from.stderr_from = next,
                        }
                        Ok(())
                    }
                    Ok(Some(AttachMessage::Event(AttachEvent::Exit(exit)))) => {
                        return Ok(Some(Left::Exited(exit)));
                    }
                    Ok(Some(AttachMessage::Event(_))) => Ok(()),
                    Ok(None) | Err(_) => return Ok(None),
                },
                chunk = self.keys.recv(), if keys_open => match chunk {
                    None => {
                        keys_open = false;
                        sender.request(&AttachRequest::CloseStdin).await
                    }
                    Some(chunk) => match self.detach.and_then(|key| chunk.iter().position(|b| *b == key)) {
                        Some(at) => {
                            if at > 0 {
                                sender.input(chunk[..at].to_vec()).await.ok();
                            }
                            sender.close().await.ok();
                            return Ok(Some(Left::Detached));
                        }
                        None => sender.input(chunk.to_vec()).await,
                    },
                },
                _ = self.resized.recv() => {
                    *known = terminal::size();
                    sender.request(&resize(*known)).await
                }
                name = self.signals.next() => return Ok(Some(Left::Signalled(name))),
            };
            if sent.is_err() {
                return Ok(None);
            }
        }
    }
}

fn resize(size: TerminalSize) -> AttachRequest {
    AttachRequest::Resize {
        cols: size.cols,
        rows: size.rows,
    }
}

fn show(stream: Stream, data: &[u8]) -> Result<(), CliError> {
    match stream {
        Stream::Stdout => output::write(data),
        Stream::Stderr => {
            let mut err = std::io::stderr().lock();
            err.write_all(data)
                .and_then(|()| err.flush())
                .map_err(output::closed)
        }
    }
}
