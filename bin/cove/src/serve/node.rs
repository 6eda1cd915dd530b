//! The supervisor of a node: the runner as on every host, and the relay in the place of control.
//!
//! ```text
//!  cove node run (root)  binds the port, starts and restarts its children
//!    ├─ runner (root)          the engine, behind <data-dir>/runner.sock
//!    └─ relay  (unprivileged)  TLS; gets the listening socket over standard input
//!
//! <data-dir>/relay/     0700  the relay's: who this node is, its certificate and key
//! <data-dir>/relay.uid  0644  the user id that is the relay's alone
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cove_node::Identity;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::logging::LostLines;
use super::role::{RoleConfig, claim};
use super::settings::Settings;
use super::supervisor::{
    RUNNER_GRACE, Supervised, listen, lock, lost, make_directory, passable, say_who,
};
use super::{ServeError, ownership, privileges, ready};

const RELAY_GRACE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub fn run(settings: Settings) -> Result<(), ServeError> {
    super::supervisor::run_with(settings, |settings, lines| {
        Box::pin(supervise(settings, lines))
    })
}

async fn supervise(settings: Settings, lines: Arc<LostLines>) -> Result<(), ServeError> {
    let unusable = |error: cove_node::NodeError| ServeError::Start {
        message: crate::report::chain(&error),
        hint: None,
    };
    let directory = settings.relay_dir();
    let identity = Identity::load(&directory).map_err(unusable)?;
    let identity = identity.ok_or_else(|| {
        ServeError::start(
            "this host has not joined a fleet",
            "make a token with `cove node token` on the control plane, then run `cove node join` here",
        )
    })?;
    make_directory(&settings.data_dir, 0o711)?;
    let lock = lock(&settings.data_dir)?;
    // On a full disk nothing below could be written.
    cove_engine::make_room(&settings.engine().data_dir);
    let account = privileges::account(&settings.cache_dir, &settings.data_dir, "relay")?;
    passable(&settings.data_dir, account)?;
    {
        // Not while a relay that a killed supervisor left may still write there.
        let _nobody = claim(&settings.data_dir, "relay")?;
        ownership::give(&directory, account)?;
    }
    let host = cove_engine::host_id(&settings.engine_dir())
        .map_err(|source| ServeError::io("cannot read the id of this host", source))?;
    if host != identity.host {
        return Err(ServeError::start(
            format!(
                "this data directory is host {host}, and it joined as {}",
                identity.host
            ),
            "restore the engine directory that belongs to it, or join again with another data directory",
        ));
    }
    let address = identity.listen.parse().map_err(|_| ServeError::Start {
        message: format!("cannot listen at {:?}", identity.listen),
        hint: None,
    })?;
    let listener = listen(
        address,
        "cove node join --listen",
        &settings.data_dir,
        "relay",
    )
    .await?;
    let role = RoleConfig {
        preview_url: None,
        ssh: None,
        issuer: String::new(),
        account,
        host: Some(host),
        root_key_hash: String::new(),
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        settings,
    };
    let stop = CancellationToken::new();
    let runner = Supervised::new("runner", &role.for_runner(), Arc::clone(&lines))?;
    let sockets = vec![OwnedFd::from(listener)];
    let (relay, _renew) = Supervised::renewable("relay", &role.for_runner(), sockets, lines)?;
    let socket = role.settings.runner_socket();
    let until_ready = stop.clone();
    let name = identity.name;
    let announce = tokio::spawn(async move {
        let up = async {
            while tokio::net::UnixStream::connect(&socket).await.is_err() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = up => {
                ready::notify("READY=1");
                tracing::info!(node = name, %address, "the node is ready");
            }
            () = until_ready.cancelled() => {}
        }
    });
    let mut runner = tokio::spawn(runner.keep(stop.clone(), RUNNER_GRACE));
    let mut relay = tokio::spawn(relay.keep(stop.clone(), RELAY_GRACE));
    let failed = |source| ServeError::io("cannot wait for signals", source);
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
    say_who(&lock)?;
    let outcome = tokio::select! {
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
        ended = &mut runner => ended.unwrap_or_else(|_| Err(lost("runner"))),
        ended = &mut relay => ended.unwrap_or_else(|_| Err(lost("relay"))),
    };
    ready::notify("STOPPING=1");
    stop.cancel();
    for child in [relay, runner] {
        if !child.is_finished() {
            child.await.ok();
        }
    }
    announce.await.ok();
    outcome
}
