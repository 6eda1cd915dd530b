//! The unprivileged child: HTTP and the books.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cove_control::{Control, SystemClock, TokenHash};
use cove_runner::wire;
use cove_server::{App, Place, SshPlace, TlsPem};
use tokio_util::sync::CancellationToken;

use super::role::{RoleConfig, claim, follow_parent, until_told};
use super::{ServeError, handover, privileges, secrets};

/// Between two tries to open the books: a database may come up after us.
const STORE_RETRY: Duration = Duration::from_millis(500);
const STORE_TRIES: u32 = 60;
/// How long requests wait for the runner at a start before they are told that it does not answer.
const RUNNER_WAIT: Duration = Duration::from_secs(5);
const RUNNER_PAUSE: Duration = Duration::from_millis(10);

pub fn run(config: RoleConfig) -> Result<(), ServeError> {
    // The listening sockets come over standard input; the key of the certificate is root's to read.
    let listeners = handover::take()
        .map_err(|source| ServeError::io("cannot take over the listening sockets", source))?;
    let tls = tls(&config)?;
    let _claim = claim(&config, "control")?;
    privileges::drop_to(config.account)?;
    follow_parent(&config)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| ServeError::io("cannot start the control side", source))?;
    runtime.block_on(serve(config, listeners, tls))
}

pub fn tls(config: &RoleConfig) -> Result<Option<TlsPem>, ServeError> {
    let (Some(certificate), Some(key)) =
        (&config.settings.tls_certificate, &config.settings.tls_key)
    else {
        return Ok(None);
    };
    let read = |path: &std::path::Path| {
        std::fs::read(path)
            .map_err(|source| ServeError::io(format!("cannot read {}", path.display()), source))
    };
    Ok(Some(TlsPem {
        certificates: read(certificate)?,
        key: read(key)?,
    }))
}

async fn serve(
    config: RoleConfig,
    listeners: Vec<TcpListener>,
    tls: Option<TlsPem>,
) -> Result<(), ServeError> {
    let shutdown = until_told()?;
    let settings = &config.settings;
    let mut listeners = listeners.into_iter();
    let missing = || ServeError::Start {
        message: "a listening socket was not handed over".into(),
        hint: None,
    };
    let listener = listeners.next().ok_or_else(missing)?;
    let store = open_store(&config).await?;
    wait_for_runner(&settings.runner_socket()).await;
    let runner = Arc::new(wire::Client::new(settings.runner_socket()));
    let mut control = settings.control();
    control.link_key = secrets::link_key(&settings.control_dir())?;
    let control = Control::new(control, store, runner, Arc::new(SystemClock));
    let failed = |error: cove_control::ControlError| ServeError::Start {
        message: format!("the control side cannot start: {}", chain(&error)),
        hint: error.hint.clone(),
    };
    control.prepare().await.map_err(failed)?;
    let hash = TokenHash::parse(&config.root_key_hash).ok_or_else(|| ServeError::Settings {
        message: "the hash of the first key is broken".into(),
    })?;
    control.bootstrap_root_key(&hash).await.map_err(failed)?;

    // The background work outlives the last request, so that what requests did is still noticed.
    let background_end = CancellationToken::new();
    let background = tokio::spawn({
        let (control, end) = (control.clone(), background_end.clone());
        async move { control.run(end).await }
    });
    let mut server = settings.server();
    server.tls = tls;
    let previews = match &config.preview_url {
        Some(url) => {
            let place = Place::parse(url).map_err(|error| ServeError::Settings {
                message: format!("preview_url: {error}"),
            })?;
            server.previews = Some(place);
            Some(listeners.next().ok_or_else(missing)?)
        }
        None => None,
    };
    let gateway = match &config.ssh {
        Some((host, port)) => {
            let host_key = secrets::host_key(&settings.control_dir())?;
            let public = host_key.public().map_err(|error| ServeError::Start {
                message: chain(&error),
                hint: None,
            })?;
            server.ssh = Some(SshPlace {
                host: host.clone(),
                port: *port,
                host_key: public,
                fingerprint: host_key.fingerprint(),
            });
            Some((listeners.next().ok_or_else(missing)?, host_key))
        }
        None => None,
    };
    let logins = {
        let (control, shutdown) = (control.clone(), shutdown.clone());
        async move {
            if let Some((listener, host_key)) = gateway {
                let served = cove_ssh::serve(listener, control, &host_key, shutdown);
                if let Err(error) = served.await {
                    tracing::error!(%error, "the SSH gateway cannot listen");
                }
            }
        }
    };
    let app = App::new(control, server);
    tracing::info!("the control side is ready");
    let visits = async {
        match previews {
            Some(listener) => {
                cove_server::serve_previews(listener, app.clone(), shutdown.clone()).await
            }
            None => Ok(()),
        }
    };
    let (served, ()) = tokio::join!(
        async {
            tokio::try_join!(
                cove_server::serve(listener, app.clone(), shutdown.clone()),
                visits
            )
        },
        logins
    );
    background_end.cancel();
    background.await.ok();
    served.map(drop).map_err(|error| ServeError::Start {
        message: chain(&error),
        hint: None,
    })
}

/// Both children start at once; the first requests should not fail for that.
async fn wait_for_runner(path: &std::path::Path) {
    let connected = async {
        while tokio::net::UnixStream::connect(path).await.is_err() {
            tokio::time::sleep(RUNNER_PAUSE).await;
        }
    };
    tokio::time::timeout(RUNNER_WAIT, connected).await.ok();
}

async fn open_store(config: &RoleConfig) -> Result<Arc<dyn cove_store::Store>, ServeError> {
    let mut tries = 0;
    loop {
        let opened = match config.settings.database.as_str() {
            "" => cove_store::open_sqlite(&config.settings.control_dir().join("cove.db")).await,
            address => cove_store::open(address).await,
        };
        match opened {
            Ok(store) => return Ok(store),
            Err(cove_store::StoreError::Unavailable(_)) if tries < STORE_TRIES => {
                tries += 1;
                tracing::warn!("the database does not answer yet");
                tokio::time::sleep(STORE_RETRY).await;
            }
            Err(error) => {
                let message = format!("the books cannot be opened: {}", chain(&error));
                return Err(ServeError::Start {
                    message,
                    hint: None,
                });
            }
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        text.push_str(&format!(": {cause}"));
        below = cause.source();
    }
    text
}
