//! An engine of its own process behind the runner's socket, so that tests can kill it at any moment
//! and start it again over the same data.
//!
//! Says `ready` on standard output once the socket answers. SIGTERM deletes every sandbox, detaches
//! the pool and ends; SIGINT only lets go, as a service's restart does.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;

use cove_engine::Engine;
use cove_runner_api::wire;
use cove_tests::engine_host::Setup;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engine-host: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let setup = Setup::from_arguments(std::env::args().skip(1))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let engine = Engine::open(setup.engine_config(), setup.tiers())
        .await
        .map_err(chain)?;
    if setup.warm > 0 {
        engine.warm_up().await;
    }
    let listener = wire::bind(&setup.socket(), None)?;
    let shutdown = CancellationToken::new();
    let uid = rustix::process::getuid().as_raw();
    let serving = tokio::spawn(wire::serve(
        listener,
        Arc::new(engine.clone()),
        vec![uid],
        shutdown.clone(),
    ));
    println!("ready");
    let destroy = tokio::select! {
        _ = terminate.recv() => true,
        _ = interrupt.recv() => false,
    };
    shutdown.cancel();
    serving.await?;
    if destroy {
        engine.destroy().await.map_err(chain)?;
    } else {
        engine.close().await;
    }
    Ok(())
}

fn chain(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
