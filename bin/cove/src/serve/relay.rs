//! The unprivileged child of a node: TLS towards control, the runner's socket on this side.

use std::net::TcpListener;
use std::time::Duration;

use cove_node::{Relay, RelayConfig};
use rustix::process::Signal;

use super::role::{Handed, RoleConfig, claim, follow_parent, until_told};
use super::{ServeError, confine, privileges};

/// What threads that still work get when everything else has ended.
const LAST_THREADS: Duration = Duration::from_millis(500);

pub fn run(config: RoleConfig, handed: Handed) -> Result<(), ServeError> {
    follow_parent(&config, Signal::KILL)?;
    let _claim = claim(&config.settings.data_dir, "relay")?;
    privileges::drop_to(config.account)?;
    follow_parent(&config, Signal::KILL)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Before there is a second thread: all of them get it.
    let refused = confine::enter()?;
    handed.log.begin()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| ServeError::io("cannot start the relay", source))?;
    let ended = runtime.block_on(async {
        let shutdown = until_told()?;
        tokio::spawn(refused.tell());
        let relay = Relay::open(RelayConfig {
            directory: config.settings.relay_dir(),
            runner: config.settings.runner_socket(),
            release: crate::VERSION.into(),
        })
        .map_err(|error| ServeError::Start {
            message: crate::report::chain(&error),
            hint: Some("join again with `cove node join`".into()),
        })?;
        let missing = || ServeError::Start {
            message: "a listening socket was not handed over".into(),
            hint: None,
        };
        let listener = handed.sockets.into_iter().next().ok_or_else(missing)?;
        let listener = TcpListener::from(listener);
        let listener = listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpListener::from_std(listener))
            .map_err(|source| ServeError::io("cannot listen", source))?;
        tracing::info!("the relay is ready");
        relay.serve(listener, shutdown).await;
        Ok(())
    });
    runtime.shutdown_timeout(LAST_THREADS);
    ended
}
