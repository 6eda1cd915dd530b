//! The privileged child: the engine behind a unix socket that the control side alone may open.

use std::sync::Arc;

use cove_engine::Engine;
use cove_runner::wire;

use super::ServeError;
use super::role::{RoleConfig, claim, follow_parent, until_told};

pub fn run(config: RoleConfig) -> Result<(), ServeError> {
    follow_parent(&config)?;
    let _claim = claim(&config, "runner")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| ServeError::io("cannot start the runner", source))?;
    runtime.block_on(serve(config))
}

async fn serve(config: RoleConfig) -> Result<(), ServeError> {
    let shutdown = until_told()?;
    let engine = Engine::open(config.settings.engine())
        .await
        .map_err(|error| ServeError::Start {
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
