//! Connections: accepted up to a limit, timed, and ended gracefully.

use async_recursion::async_recursion as boxed;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use cove_dialect::Wire;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use crate::addresses::Addresses;
use crate::config::ServerConfig;
use crate::guard::Peer;
use crate::pulse::{Pulse, Verdict};
use crate::router::router;
use crate::stalling::Stalling;
use crate::state::App;
use crate::tls::{self, TlsError};
use crate::{paid, preview};

/// Pause after a failed accept (no descriptors left, say), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Beyond the contract's own bounds, so that most oversized requests still get a proper answer.
const HTTP1_HEADERS: usize = 128;
const HTTP1_BUFFER: usize = 128 * 1024;
pub const HTTP2_STREAMS: u32 = 128;
const HTTP2_HEADER_LIST: u32 = 64 * 1024;
const HTTP2_PING: Duration = Duration::from_secs(30);
/// What commands get to end before those who follow them are sent away; they can come back.
const FOLLOWERS_GRACE: Duration = Duration::from_millis(500);
/// Bytes of one answer that wait in HTTP/2 for its reader.
const HTTP2_SEND_BUFFER: usize = 64 * 1024;
/// Streams that a peer reset before they were looked at, and that it made us reset, before it is cut.
/// Those reset later are counted by [`Pulse`].
const HTTP2_RESETS_MAX: usize = 20;
const HTTP2_ERRORS_MAX: usize = 64;
/// A connection is looked at so often within the shortest time that it may take for something.
const LOOKS: u32 = 4;
/// What streams get to say goodbye after they were asked to end.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the listening socket cannot be used")]
    Listener(#[source] io::Error),
}

/// Serves until `shutdown`. From then on new connections are refused and streams that can be resumed
/// end, those that follow a command a moment later; other requests get `shutdown_grace`, are asked to end, and are cut.
#[boxed]
pub async fn serve(
    listener: std::net::TcpListener,
    app: App,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let router = router(app.clone());
    accept(listener, app, router, shutdown).await
}

/// Serves visits to ports inside, on a listener of their own, in the same way.
#[boxed]
pub async fn serve_previews(
    listener: std::net::TcpListener,
    app: App,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let router = preview::router(app.clone());
    accept(listener, app, router, shutdown).await
}

async fn accept(
    listener: std::net::TcpListener,
    app: App,
    router: Router,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    listener
        .set_nonblocking(true)
        .map_err(ServeError::Listener)?;
    let listener = TcpListener::from_std(listener).map_err(ServeError::Listener)?;
    let acceptor = app.config.tls.as_ref().map(tls::acceptor).transpose()?;
    let server = Arc::new(Connections {
        http: http(&app.config),
        router,
        acceptor,
        app: app.clone(),
    });
    let addresses = Addresses::new(app.config.connections_max);
    let tasks = TaskTracker::new();
    loop {
        let (stream, peer) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let pulse = Pulse::new();
        let Some(place) = addresses.enter(peer.ip(), &pulse) else {
            tracing::debug!(%peer, "too many connections from this address");
            continue;
        };
        let server = Arc::clone(&server);
        tasks.spawn(async move {
            server.app.metrics.connections.fetch_add(1, Relaxed);
            tokio::select! {
                () = server.one(stream, peer, &pulse) => {}
                () = pulse.ended() => tracing::debug!(%peer, "closed a connection"),
            }
            server.app.metrics.connections.fetch_sub(1, Relaxed);
            drop(place);
        });
    }
    drop(listener);
    app.draining.cancel();
    tasks.close();
    app.sessions.close();
    let ended = || async {
        tasks.wait().await;
        app.sessions.wait().await;
    };
    let grace = app.config.shutdown_grace;
    let mut left = timeout(grace.min(FOLLOWERS_GRACE), ended()).await;
    // Another listener of the same server may still have requests under way, so only what is left over here
    // is a reason to cut followers short.
    if left.is_err() {
        app.leaving.cancel();
        left = timeout(grace.saturating_sub(FOLLOWERS_GRACE), ended()).await;
    }
    if left.is_err() {
        app.closing.cancel();
        if timeout(FAREWELL, ended()).await.is_err() {
            tracing::warn!(connections = tasks.len(), "closed connections at shutdown");
        }
    }
    Ok(())
}

fn http(config: &ServerConfig) -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.keep_alive)
        .max_headers(HTTP1_HEADERS)
        .max_buf_size(HTTP1_BUFFER);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .max_header_list_size(HTTP2_HEADER_LIST)
        .max_send_buf_size(HTTP2_SEND_BUFFER)
        .max_pending_accept_reset_streams(HTTP2_RESETS_MAX)
        .max_local_error_reset_streams(HTTP2_ERRORS_MAX)
        .keep_alive_interval(HTTP2_PING)
        .keep_alive_timeout(config.header_timeout);
    http
}

struct Connections {
    http: Builder<TokioExecutor>,
    router: Router,
    acceptor: Option<TlsAcceptor>,
    app: App,
}

impl Connections {
    async fn one(&self, stream: TcpStream, peer: SocketAddr, pulse: &Arc<Pulse>) {
        // Small answers must not wait for the peer's acknowledgements.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        match &self.acceptor {
            None => self.speak(stream, peer, pulse).await,
            Some(acceptor) => {
                match timeout(self.app.config.header_timeout, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => self.speak(stream, peer, pulse).await,
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "the TLS handshake failed"),
                    Err(_) => tracing::debug!(%peer, "the TLS handshake took too long"),
                }
            }
        }
    }

    async fn speak<S>(&self, stream: S, peer: SocketAddr, pulse: &Arc<Pulse>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let config = &self.app.config;
        let wire = Wire::default();
        let stalling = Stalling::new(stream, config, Arc::clone(pulse), wire.clone());
        let io = TokioIo::new(stalling);
        let service = hyper::service::service_fn(|request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Peer(peer.ip()));
            request.extensions_mut().insert(wire.clone());
            let mut router = self.router.clone();
            let (flight, patience) = (pulse.begin(), config.write_stall);
            let asked = request.method().clone();
            async move {
                let response = answer(router.call(request).await);
                Ok::<Response, Infallible>(paid::send(response, &asked, flight, patience))
            }
        });
        let connection = self.http.serve_connection_with_upgrades(io, service);
        tokio::pin!(connection);
        let shortest = config.header_timeout.min(config.write_stall);
        let mut looks = interval(shortest.min(config.keep_alive) / LOOKS);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut leaving, mut farewell) = (false, None);
        let result = loop {
            tokio::select! {
                result = connection.as_mut() => break result,
                () = self.app.draining.cancelled(), if !leaving => {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = looks.tick() => match pulse.verdict(config) {
                    Verdict::Stay => {}
                    Verdict::Cut(why) => {
                        tracing::debug!(%peer, why, "closed a connection");
                        return;
                    }
                    Verdict::Idle => match farewell {
                        None => {
                            farewell = Some(Instant::now());
                            leaving = true;
                            connection.as_mut().graceful_shutdown();
                        }
                        // It was asked to end, and does not.
                        Some(told) if told.elapsed() >= config.header_timeout => return,
                        Some(_) => {}
                    },
                },
            }
        };
        if let Err(error) = result {
            tracing::debug!(%peer, error = %error, "a connection ended with an error");
        }
    }
}

fn answer(result: Result<Response, Infallible>) -> Response {
    match result {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
