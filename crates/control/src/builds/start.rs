//! A command that runs when the template's memory is captured, and the check that says when it is ready.

use std::time::{Duration, Instant};

use cove_model::SpecError;
use cove_protocol::identity::owner;
use cove_template::Config;

use super::Live;
use super::run::or_cancelled;
use crate::error::{ControlError, ErrorCode};
use crate::guest::{CommandLine, CommandRequest, GuestAccess};

/// How often the check is made.
const READY_POLL: Duration = Duration::from_millis(100);
/// One check may take so long.
pub(super) const CHECK_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartCommand {
    /// Given to a shell. Absent: the image's `ENTRYPOINT` and `CMD`.
    pub command: Option<String>,
    /// A shell command that succeeds once the server is ready.
    pub ready: String,
    pub timeout_s: u64,
}

impl StartCommand {
    pub(super) fn check(&self) -> Result<(), SpecError> {
        let seconds = 1..=cove_limits::BUILD_TIME_MAX_S;
        let wrong = |field, problem: &str| SpecError::Field {
            field,
            problem: problem.to_owned(),
        };
        if self.ready.trim().is_empty() {
            return Err(wrong("start.ready", "must be a command"));
        }
        if self
            .command
            .as_ref()
            .is_some_and(|command| command.trim().is_empty())
        {
            return Err(wrong("start.command", "must be a command"));
        }
        match seconds.contains(&self.timeout_s) {
            true => Ok(()),
            false => Err(wrong(
                "start.timeout_s",
                "must be between 1 and 3600 seconds",
            )),
        }
    }
}

/// Starts the command and waits until it is ready.
pub(super) async fn start(
    live: &Live,
    access: &GuestAccess,
    wanted: &StartCommand,
    config: &Config,
    check_max: Duration,
) -> Result<(), ControlError> {
    let command = match &wanted.command {
        Some(text) => CommandLine::Shell(text.clone()),
        None => {
            let argv: Vec<String> = config
                .entrypoint
                .iter()
                .chain(&config.cmd)
                .cloned()
                .collect();
            if argv.is_empty() {
                return Err(ControlError::invalid(
                    "start: the Dockerfile has neither ENTRYPOINT nor CMD, and no command was given",
                ));
            }
            CommandLine::Argv(argv)
        }
    };
    live.log.note("starting the start command");
    let process = access.command(CommandRequest::new(owner::API, command))?;
    let id = process.id.clone();
    access.guest().start(process).await?;
    let deadline = Instant::now() + Duration::from_secs(wanted.timeout_s);
    loop {
        let mut check = CommandRequest::shell(wanted.ready.clone());
        check.timeout_ms = u64::try_from(check_max.as_millis()).ok();
        let check = access.command(check)?;
        let checked = or_cancelled(live, access.guest().exec(check)).await??;
        if checked.exit.code == 0 {
            live.log.note("the ready check succeeded");
            return Ok(());
        }
        let process = access.guest().process(id.clone()).await?;
        // One that ended well may have left a server behind.
        if let Some(exit) = process.exit
            && exit.code != 0
        {
            return Err(ControlError::invalid(format!(
                "start: the command ended with exit code {} before it was ready",
                exit.code
            )));
        }
        if Instant::now() >= deadline {
            return Err(ControlError::new(
                ErrorCode::TimedOut,
                format!(
                    "start: the ready check did not succeed within {} seconds",
                    wanted.timeout_s
                ),
            ));
        }
        or_cancelled(live, tokio::time::sleep(READY_POLL)).await?;
    }
}
