//! The privileged child: the engine behind a unix socket that the control side alone may open.

use std::sync::Arc;

use cove_engine::Engine;
use cove_runner_api::wire;

use rustix::process::Signal;

use super::ServeError;
use super::role::{Handed, RoleConfig, claim, follow_parent, until_told};

pub fn run(config: RoleConfig, handed: Handed) -> Result<(), ServeError> {
    // In good order: a change under way comes to its end.
    follow_parent(&config, Signal::TERM)?;
    handed.log.begin()?;
    let claim = claim(&config.settings.data_dir, "runner")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| ServeError::io("cannot start the runner", source))?;
    let ended = runtime.block_on(serve(config));
    // Work that is still under way ends with the process, as by a kill. Cancelled, it would take that for a
    // failure and write it down: of a sandbox, for example, that it cannot be taken over. The next runner begins
    // when this process is gone.
    std::mem::forget((runtime, claim));
    ended
}

async fn serve(config: RoleConfig) -> Result<(), ServeError> {
    let shutdown = until_told()?;
    let opening = Engine::open(config.settings.engine(), config.settings.tiers());
    let mut opening = Box::pin(opening);
    let opened = tokio::select! {
        opened = &mut opening => opened,
        // The next start goes on from wherever this one was. Nothing is cancelled here either.
        () = shutdown.cancelled() => {
            std::mem::forget(opening);
            return Ok(());
        }
    };
    let engine = opened.map_err(|error| ServeError::Start {
        message: told(&error),
        hint: Some("`cove doctor` says what this host lacks".into()),
    })?;
    let engine = Arc::new(engine);
    let path = config.settings.runner_socket();
    let listener = wire::bind(&path, Some(config.account.uid))
        .map_err(|source| ServeError::io(format!("cannot listen at {}", path.display()), source))?;
    tracing::info!("the runner is ready");
    let allowed = vec![0, config.account.uid];
    wire::serve(listener, engine.clone(), allowed, shutdown).await;
    engine.close().await;
    Ok(())
}

fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        text.push_str(&format!(": {cause}"));
        below = cause.source();
    }
    text
}
