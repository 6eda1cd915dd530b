//! `cove doctor --repair-pool`: ends the sandboxes, mounts the storage pool anew and starts them again.

use cove_engine::{Engine, EngineError, Interrupted};
use cove_runner::RunnerError;

use super::lock;
use crate::args::Global;
use crate::output;
use crate::report::{CliError, chain};

pub async fn run(global: &Global) -> Result<u8, CliError> {
    let mut settings = crate::serve::settings(global)?;
    settings.warm = 0;
    let _lock = lock(&settings.data_dir)?.ok_or_else(|| {
        CliError::hinted(
            "a server runs over this data directory",
            "stop it first: systemctl stop cove; afterwards: systemctl start cove",
        )
    })?;
    let config = settings.engine();
    let failed =
        |error: EngineError| CliError::usage(format!("cannot repair the pool: {}", chain(&error)));
    let told = |error: RunnerError| CliError::usage(format!("cannot repair the pool: {error}"));
    let engine = Engine::open(config.clone(), settings.tiers())
        .await
        .map_err(failed)?;
    if engine.check_pool().is_ok() {
        engine.close().await;
        output::line("the storage pool can be written to")?;
        return Ok(0);
    }
    let interrupted = engine.interrupt_all().await.map_err(told)?;
    engine.detach().await.map_err(failed)?;
    let engine = Engine::open(config, settings.tiers())
        .await
        .map_err(failed)?;
    let writable = engine.check_pool();
    if writable.is_ok() {
        output::line("the storage pool is mounted again and can be written to")?;
    }
    let mut lost = false;
    for Interrupted { id, state } in interrupted {
        let started = match &writable {
            Ok(()) => engine.start_again(&id).await,
            Err(error) => Err(error.clone()),
        };
        match started {
            Ok(()) => output::line(&format!(
                "{id}: was {state}; its memory is lost, its disk is kept, it runs again"
            ))?,
            Err(error) => {
                lost = true;
                output::line(&format!(
                    "{id}: was {state}; its memory is lost, its disk is kept, it could not be started: {error}"
                ))?;
            }
        }
    }
    engine.close().await;
    writable.map_err(|error| {
        CliError::hinted(
            format!("the storage pool is still read-only: {error}"),
            "read the kernel log; something else may use the pool, or its disk is broken",
        )
    })?;
    Ok(u8::from(lost))
}
