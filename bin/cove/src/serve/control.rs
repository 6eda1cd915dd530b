//! The unprivileged child: HTTP and the database.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cove_control::{
    Control, ControlError, HostKeys, Hosts, IdentityConfig, Issuer, ObjectsConfig,
    SandboxAuthorities, SystemClock, TokenHash,
};
use cove_model::Backoff;
use cove_runner_api::wire;
use cove_server::{App, LogLosses, PreviewUrl, SshPlace, TlsPem};
use cove_store::{Store, StoreError};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::reload::told;
use super::role::{Handed, RoleConfig, claim, follow_parent, until_told};
use super::settings::Settings;
use super::{ServeError, authorities, confine, objects, privileges, secrets};
use crate::report::chain;

/// Between two tries to reach the database, which may come up after us or be away for a while: doubled
/// each time, from and to these.
const STORE_RETRY_FIRST: Duration = Duration::from_millis(250);
const STORE_RETRY_MAX: Duration = Duration::from_secs(5);
/// How long requests wait for the runner at a start before they learn that it does not answer.
const RUNNER_WAIT: Duration = Duration::from_secs(5);
const RUNNER_PAUSE: Duration = Duration::from_millis(10);
/// What threads that still work (a name being looked up, say) get when everything else has ended.
const LAST_THREADS: Duration = Duration::from_millis(500);

/// What is root's to read.
struct RootFiles {
    fleet_key: Option<Arc<HostKeys>>,
    objects: Option<ObjectsConfig>,
    authorities: Option<Arc<SandboxAuthorities>>,
}

pub fn run(config: RoleConfig, handed: Handed) -> Result<(), ServeError> {
    // Killed with the supervisor: the next one needs the ports, and everything here may be cut anywhere.
    follow_parent(&config, Signal::KILL)?;
    // The key of the certificate is root's to read.
    let tls = tls(&config.settings)?;
    let fleet_key = objects::fleet_key(&config.settings)?;
    let objects = objects::open(&config.settings, config.account, fleet_key.as_ref())?;
    let files = RootFiles {
        fleet_key,
        objects,
        authorities: authorities::read(&config.settings)?.map(Arc::new),
    };
    let _claim = claim(&config.settings.data_dir, "control")?;
    privileges::drop_to(config.account)?;
    follow_parent(&config, Signal::KILL)?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Before there is a second thread: all of them get it.
    let refused = confine::enter()?;
    handed.log.begin()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| ServeError::io("cannot start control", source))?;
    let sqlite = config.settings.database.is_empty();
    let database = config.settings.control_dir().join("cove.db");
    let ended = runtime.block_on(serve(config, handed, tls, files, refused));
    runtime.shutdown_timeout(LAST_THREADS);
    // Connections that threads still hold are not closed, so the log would stay beside the file.
    if sqlite
        && database.exists()
        && let Err(error) = cove_store::checkpoint_sqlite(&database)
    {
        tracing::warn!(error = chain(&error), "cannot checkpoint the database");
    }
    ended
}

/// Whether the API can be served with the certificate and key that the settings name.
pub fn check_certificate(settings: &Settings) -> Result<(), ServeError> {
    match tls(settings)? {
        None => Ok(()),
        Some(pem) => cove_server::check_tls(&pem).map_err(|error| ServeError::Start {
            message: told(&error),
            hint: Some("see the settings tls_certificate and tls_key".into()),
        }),
    }
}

pub fn tls(settings: &Settings) -> Result<Option<TlsPem>, ServeError> {
    let (Some(certificate), Some(key)) = (&settings.tls_certificate, &settings.tls_key) else {
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
    handed: Handed,
    tls: Option<TlsPem>,
    files: RootFiles,
    refused: confine::Refusals,
) -> Result<(), ServeError> {
    let shutdown = until_told()?;
    tokio::spawn(refused.tell());
    let settings = &config.settings;
    let mut listeners = handed.sockets.into_iter().map(TcpListener::from);
    let missing = || ServeError::Start {
        message: "a listening socket was not handed over".into(),
        hint: None,
    };
    let listener = listeners.next().ok_or_else(missing)?;
    let control = tokio::select! {
        control = begin(&config, files) => control?,
        () = shutdown.cancelled() => return Ok(()),
    };

    // The background work outlives the last request, so that what requests did is still noticed.
    let background_end = CancellationToken::new();
    let background = tokio::spawn({
        let (control, end) = (control.clone(), background_end.clone());
        async move { control.run(end).await }
    });
    let mut server = settings.server();
    server.tls = tls;
    let lost = handed.lost;
    server.log_losses = Some(LogLosses::new(move || lost.total()));
    let previews = match &config.preview_url {
        Some(url) => {
            let place = PreviewUrl::parse(url).map_err(|error| ServeError::Settings {
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
    let visitors = tokio::spawn(cove_server::serve_metadata(
        control.clone(),
        shutdown.clone(),
    ));
    let app = App::new(control, server);
    tracing::info!("control is ready");
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
    visitors.await.ok();
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

/// Everything that must be there before the first request: the database, the runner for a while, and
/// both in agreement. Waits for a database for as long as it takes; dropping it gives up.
async fn begin(config: &RoleConfig, files: RootFiles) -> Result<Control, ServeError> {
    let settings = &config.settings;
    let mut retry = Backoff::new(STORE_RETRY_FIRST, STORE_RETRY_MAX);
    loop {
        let store = open_store(config).await?;
        let hosts = match &config.host {
            Some(host) => {
                wait_for_runner(&settings.runner_socket()).await;
                let runner = Arc::new(wire::Client::new(settings.runner_socket()));
                Hosts::only(host.clone(), runner)
            }
            None => Hosts::none(),
        };
        let mut with = settings.control();
        with.fleet_key = files.fleet_key.clone();
        with.objects = files.objects.clone();
        with.authorities = files.authorities.clone();
        with.link_key = secrets::link_key(&settings.control_dir())?;
        with.identity = IdentityConfig {
            issuer: Issuer::parse(&config.issuer).map_err(|error| ServeError::Settings {
                message: format!("identity_issuer {error}"),
            })?,
            key_file: Some(settings.control_dir().join(secrets::IDENTITY_KEYS_FILE)),
        };
        let control = Control::new(with, store, hosts, Arc::new(SystemClock));
        match prepare(&control, config).await? {
            Ok(()) => return Ok(control),
            Err(error) if is_unavailable(&error) => {
                let pause = retry.pause();
                tracing::warn!(again_in = ?pause, error = chain(&error), "database connection lost");
                tokio::time::sleep(pause).await;
            }
            Err(error) => {
                return Err(ServeError::Start {
                    message: format!("control cannot start: {}", chain(&error)),
                    hint: error.hint.clone(),
                });
            }
        }
    }
}

async fn prepare(
    control: &Control,
    config: &RoleConfig,
) -> Result<Result<(), ControlError>, ServeError> {
    let hash = TokenHash::parse(&config.root_key_hash).ok_or_else(|| ServeError::Settings {
        message: "the hash of the first key is invalid".into(),
    })?;
    Ok(async {
        control.prepare().await?;
        control.bootstrap_root_key(&hash).await.map(drop)
    }
    .await)
}

/// Whether an error comes from a database that does not answer or takes no writes.
fn is_unavailable(error: &ControlError) -> bool {
    let mut below = std::error::Error::source(error);
    while let Some(cause) = below {
        if cause.downcast_ref().is_some_and(passes) {
            return true;
        }
        below = cause.source();
    }
    false
}

async fn open_store(config: &RoleConfig) -> Result<Arc<dyn Store>, ServeError> {
    let settings = &config.settings;
    let open = || async {
        match settings.database.as_str() {
            "" => cove_store::open_sqlite(&settings.control_dir().join("cove.db")).await,
            address => cove_store::open(address).await,
        }
    };
    let opened = keep_trying(open, tokio::time::sleep).await;
    opened.map_err(|error| ServeError::Start {
        message: format!("cannot open the database: {}", chain(&error)),
        hint: None,
    })
}

/// Until the database is there and takes writes, for as long as that takes. What will not become another
/// by waiting (a wrong password, a damaged file) ends it.
async fn keep_trying<T, O, S>(
    open: impl Fn() -> O,
    sleep: impl Fn(Duration) -> S,
) -> Result<T, StoreError>
where
    O: Future<Output = Result<T, StoreError>>,
    S: Future<Output = ()>,
{
    let mut retry = Backoff::new(STORE_RETRY_FIRST, STORE_RETRY_MAX);
    loop {
        match open().await {
            Err(error) if passes(&error) => {
                let pause = retry.pause();
                tracing::warn!(again_in = ?pause, error = chain(&error), "cannot reach the database");
                sleep(pause).await;
            }
            outcome => return outcome,
        }
    }
}

/// Whether a database may be there again by itself.
fn passes(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::ReadOnly)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[tokio::test]
    async fn ten_minutes_without_a_database_end_within_one_pause_of_its_return() {
        const AWAY: Duration = Duration::from_secs(600);
        for away in [
            || StoreError::Unavailable("refused".into()),
            || StoreError::ReadOnly,
        ] {
            // No time passes but what is waited for.
            let (now, pauses) = (Cell::new(Duration::ZERO), RefCell::new(Vec::new()));
            let open = || async {
                match now.get() < AWAY {
                    true => Err(away()),
                    false => Ok("open"),
                }
            };
            let sleep = |pause| {
                now.set(now.get() + pause);
                pauses.borrow_mut().push(pause);
                std::future::ready(())
            };
            assert_eq!(keep_trying(open, sleep).await.unwrap(), "open");
            assert!(now.get() <= AWAY + STORE_RETRY_MAX);
            let pauses = pauses.into_inner();
            assert!(pauses.iter().all(|pause| *pause <= STORE_RETRY_MAX));
            // Neither a busy loop nor a full log.
            assert!(pauses.len() < 200, "{} tries", pauses.len());
        }
    }

    #[tokio::test]
    async fn what_waiting_does_not_change_is_told_at_once() {
        let open = || async { Err::<(), _>(StoreError::Refused("no such user".into())) };
        let sleep = |_| -> std::future::Ready<()> { panic!("nothing to wait for") };
        let refused = keep_trying(open, sleep).await;
        assert!(matches!(refused, Err(StoreError::Refused(_))));
    }
}
