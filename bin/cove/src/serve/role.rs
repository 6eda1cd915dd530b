//! What both children share: their configuration, their log, and when to end.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::privileges::Account;
use super::settings::Settings;
use super::{FATAL, ServeError, logging};
use crate::report::CliError;

/// The variable a child gets its configuration in: resolved once, by the supervisor.
pub const VARIABLE: &str = "COVE_ROLE";

#[derive(Debug, Serialize, Deserialize)]
pub struct RoleConfig {
    pub settings: Settings,
    pub account: Account,
    /// Of the first key; the key itself stays with root.
    pub root_key_hash: String,
    /// Where previews are reached; their socket is handed over after the API's.
    pub preview_url: Option<String>,
    /// Host and port by which the SSH gateway is reached; its socket comes after the previews'.
    pub ssh: Option<(String, u16)>,
    /// The supervisor; a child that finds another parent was left alone.
    pub parent: i32,
}

impl RoleConfig {
    /// For the variable.
    pub fn encoded(&self) -> Result<String, ServeError> {
        serde_json::to_string(self).map_err(|error| ServeError::Settings {
            message: error.to_string(),
        })
    }
}

/// Runs a child to its end. What it cannot recover from by a restart is told by the exit code.
pub fn child(run: fn(RoleConfig) -> Result<(), ServeError>) -> Result<u8, CliError> {
    let config = configuration()?;
    logging::start(&config.settings)?;
    match run(config) {
        Ok(()) => Ok(0),
        Err(error) => {
            let mut text = error.to_string();
            let mut below = std::error::Error::source(&error);
            while let Some(cause) = below {
                text.push_str(&format!(": {cause}"));
                below = cause.source();
            }
            tracing::error!(hint = error.hint().unwrap_or_default(), "{text}");
            Ok(FATAL)
        }
    }
}

fn configuration() -> Result<RoleConfig, ServeError> {
    let text = std::env::var(VARIABLE).map_err(|_| {
        ServeError::start(
            "roles are started by `cove serve`",
            "run `cove serve` without --role",
        )
    })?;
    serde_json::from_str(&text).map_err(|error| ServeError::Settings {
        message: format!("{VARIABLE} is broken: {error}"),
    })
}

/// Ends with the supervisor, however that ends. Changing the user forgets this, so it comes after.
pub fn follow_parent(config: &RoleConfig) -> Result<(), ServeError> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .map_err(|errno| ServeError::io("cannot follow the supervisor", errno.into()))?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent != Some(config.parent) {
        return Err(ServeError::Start {
            message: "the supervisor is gone already".into(),
            hint: None,
        });
    }
    Ok(())
}

/// How long a child waits for the one before it, left by a killed supervisor, to end.
const CLAIM_WAIT: Duration = Duration::from_secs(60);
const CLAIM_PAUSE: Duration = Duration::from_millis(50);

/// At most one child of a role lives over a data directory. Held until the file is dropped.
pub fn claim(config: &RoleConfig, role: &str) -> Result<File, ServeError> {
    let path = config.settings.data_dir.join(format!("{role}.lock"));
    let failed = |source| ServeError::io(format!("cannot lock {}", path.display()), source);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if started.elapsed() < CLAIM_WAIT => {
                std::thread::sleep(CLAIM_PAUSE);
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// Cancelled by SIGTERM or SIGINT.
pub fn until_told() -> Result<CancellationToken, ServeError> {
    let failed = |source| ServeError::io("cannot wait for signals", source);
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        cancelled.cancel();
    });
    Ok(token)
}
