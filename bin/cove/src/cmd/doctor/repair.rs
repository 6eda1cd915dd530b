//! `cove doctor --repair-pool`: stops the server and the sandboxes, mounts the storage pool anew and starts the
//! sandboxes again.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cove_engine::{Engine, EngineConfig, EngineError};
use cove_runner_api::RunnerError;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::lock;
use crate::args::Global;
use crate::output;
use crate::report::{CliError, chain};

/// How long a server may take to end.
const STOP_PATIENCE: Duration = Duration::from_secs(60);
const STOP_LOOK: Duration = Duration::from_millis(50);
const WRITABLE: &str = "the storage pool can be written to";

pub async fn run(global: &Global) -> Result<u8, CliError> {
    let json = global.json;
    let mut settings = crate::serve::settings(global)?;
    settings.warm = 0;
    if crate::serve::running(&settings.data_dir)?.is_some() && needs_none(&settings.engine()) {
        // A server is not stopped for nothing.
        output::message(WRITABLE, json)?;
        return Ok(0);
    }
    let (_lock, stopped) = take_over(&settings.data_dir, json).await?;
    let config = settings.engine();
    let failed =
        |error: EngineError| CliError::usage(format!("cannot repair the pool: {}", chain(&error)));
    let told = |error: RunnerError| CliError::usage(format!("cannot repair the pool: {error}"));
    let mut engine = Engine::open(config.clone(), settings.tiers())
        .await
        .map_err(failed)?;
    let was_writable = engine.check_pool().is_ok();
    if !was_writable {
        engine.interrupt_all().await.map_err(told)?;
        engine.detach().await.map_err(failed)?;
        engine = Engine::open(config, settings.tiers())
            .await
            .map_err(failed)?;
    }
    let writable = engine.check_pool();
    if writable.is_ok() {
        let told = match was_writable {
            true => WRITABLE,
            false => "the storage pool is mounted again and can be written to",
        };
        output::message(told, json)?;
    }
    let mut lost = false;
    for interrupted in engine.interrupted().map_err(told)? {
        let started = match &writable {
            Ok(()) => engine.start_again(&interrupted).await,
            Err(error) => Err(error.clone()),
        };
        let (id, state) = (&interrupted.id, interrupted.state);
        let outcome = match started {
            Ok(true) => {
                format!("{id}: was {state}; its memory is lost, its disk is kept, it runs again")
            }
            Ok(false) => format!("{id}: was {state}; deleted or started since, left as it is"),
            Err(error) => {
                lost = true;
                format!(
                    "{id}: was {state}; its memory is lost, its disk is kept, it could not be started: {error}"
                )
            }
        };
        output::message(&outcome, json)?;
    }
    engine.close().await;
    if stopped {
        output::message(
            "the server was stopped; systemd restarts cove.service, any other server must be started by hand",
            json,
        )?;
    }
    writable.map_err(|error| {
        CliError::hinted(
            format!("the storage pool is still read-only: {error}"),
            "read the kernel log; something else may use the pool, or its disk is broken",
        )
    })?;
    Ok(u8::from(lost))
}

/// Whether the pool is mounted to be written to, and no repair was cut short.
fn needs_none(config: &EngineConfig) -> bool {
    let pool = rustix::fs::statvfs(config.data_dir.join("pool"));
    pool.is_ok_and(|pool| !pool.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
        && !cove_engine::is_unfinished(&config.data_dir)
}

/// The lock of the data directory, from a server that runs over it if there is one. Returns whether there was.
async fn take_over(data_dir: &Path, json: bool) -> Result<(fs::File, bool), CliError> {
    let started = Instant::now();
    let mut asked = None;
    loop {
        if let Some(lock) = lock(data_dir)? {
            return Ok((lock, asked.is_some()));
        }
        // Whoever holds the lock says who it is; systemd may start another one meanwhile.
        let holder = crate::serve::running(data_dir)?;
        if let Some(pid) = holder
            && asked != holder
        {
            let told = format!("stopping the server, process {}", pid.as_raw_nonzero());
            output::message(&told, json)?;
            // It may have ended since: then the lock is free.
            let _ = pidfd_open(pid, PidfdFlags::empty())
                .and_then(|process| pidfd_send_signal(process, Signal::TERM));
            asked = holder;
        }
        if started.elapsed() > STOP_PATIENCE {
            return Err(CliError::hinted(
                "a server uses this data directory and does not stop",
                "end it first, then repeat this command",
            ));
        }
        tokio::time::sleep(STOP_LOOK).await;
    }
}
