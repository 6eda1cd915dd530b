//! What both children share: their configuration, their log, and when to end.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use cove_control::HostId;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::logging::{self, Log, LostLines, Process};
use super::privileges::Account;
use super::settings::Settings;
use super::{FATAL, ServeError, handover};
use crate::report::CliError;

/// Resolved once, by the supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RoleConfig {
    pub settings: Settings,
    pub account: Account,
    /// Which host this data directory is; none where no sandboxes are.
    pub host: Option<HostId>,
    /// Of the first key; the key itself stays with root.
    pub root_key_hash: String,
    /// Where previews are reached; their socket is handed over after the API's.
    pub preview_url: Option<String>,
    /// Host and port by which the SSH gateway is reached; its socket comes after the previews'.
    pub ssh: Option<(String, u16)>,
    /// The URL in identity tokens.
    pub issuer: String,
    /// The supervisor; a child that finds another parent was left alone.
    pub parent: i32,
}

impl RoleConfig {
    /// As it is handed over.
    pub fn encoded(&self) -> Result<String, ServeError> {
        serde_json::to_string(self).map_err(|error| ServeError::Settings {
            message: error.to_string(),
        })
    }

    /// Without what the runner has no use for: it starts programs, and the database is not theirs.
    pub fn for_runner(&self) -> Self {
        let mut config = self.clone();
        config.settings.database.clear();
        config.root_key_hash.clear();
        config
    }
}

/// What a child was handed besides its configuration.
pub struct Handed {
    /// Listening sockets, in the order of [`RoleConfig`].
    pub sockets: Vec<OwnedFd>,
    pub log: Log,
    /// What the log of all processes lost.
    pub lost: LostLines,
}

/// Runs a child to its end. What it cannot recover from by a restart is shown by the exit code.
pub fn child(
    process: Process,
    run: fn(RoleConfig, Handed) -> Result<(), ServeError>,
) -> Result<u8, CliError> {
    let (config, sockets, lost) = configuration(process)?;
    let shown = lost
        .of(process)
        .map_err(|source| ServeError::io("cannot count log lines", source))?;
    let log = logging::start(&config.settings, lost)?;
    let handed = Handed {
        sockets,
        log: log.clone(),
        lost: shown,
    };
    let ended = run(config, handed);
    if let Err(error) = &ended {
        let mut text = error.to_string();
        let mut below = std::error::Error::source(error);
        while let Some(cause) = below {
            text.push_str(&format!(": {cause}"));
            below = cause.source();
        }
        tracing::error!(hint = error.hint().unwrap_or_default(), "{text}");
    }
    log.flush();
    Ok(if ended.is_ok() { 0 } else { FATAL })
}

fn configuration(process: Process) -> Result<(RoleConfig, Vec<OwnedFd>, LostLines), ServeError> {
    let by_hand = || {
        ServeError::start(
            "roles are started by `cove serve`",
            "run `cove serve` without --role",
        )
    };
    let (descriptors, text) = handover::take().map_err(|_| by_hand())?;
    let config = serde_json::from_str(&text).map_err(|error| ServeError::Settings {
        message: format!("the configuration of this role is invalid: {error}"),
    })?;
    let mut descriptors = descriptors.into_iter();
    let lost = descriptors.next().ok_or_else(by_hand)?;
    let lost = LostLines::taken(lost, process);
    Ok((config, descriptors.collect(), lost))
}

/// Gets `signal` when the supervisor ends, however that ends. Changing the user forgets this, so it is
/// said again afterwards.
pub fn follow_parent(config: &RoleConfig, signal: Signal) -> Result<(), ServeError> {
    rustix::process::set_parent_process_death_signal(Some(signal))
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
pub fn claim(data_dir: &Path, role: &str) -> Result<File, ServeError> {
    let path = lock_file(data_dir, role);
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

fn lock_file(data_dir: &Path, role: &str) -> std::path::PathBuf {
    data_dir.join(format!("{role}.lock"))
}

/// Whether a child of a role lives over this directory.
pub fn is_claimed(data_dir: &Path, role: &str) -> bool {
    File::open(lock_file(data_dir, role))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
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
