//! Connections: accepted up to a limit, timed, and ended gracefully.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use crate::config::ServerConfig;
use crate::guard::Peer;
use crate::preview;
use crate::router::router;
use crate::stalling::Stalling;
use crate::state::App;
use crate::tls::{self, TlsError};

/// Pause after a failed accept (no descriptors left, say), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Beyond the contract's own bounds, so that most oversized requests still get a proper answer.
const HTTP1_HEADERS: usize = 128;
const HTTP1_BUFFER: usize = 128 * 1024;
const HTTP2_STREAMS: u32 = 256;
const HTTP2_HEADER_LIST: u32 = 64 * 1024;
const HTTP2_PING: Duration = Duration::from_secs(30);
/// What commands get to end before those who follow them are sent away; they can come back.
const FOLLOWERS_GRACE: Duration = Duration::from_millis(500);
/// What streams get to say goodbye after they were told to end.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the listening socket cannot be used")]
    Listener(#[source] io::Error),
}

/// Serves until `shutdown`. From then on new connections are refused and streams that can be resumed
/// end, those that follow a command a moment later; other requests get `shutdown_grace`, are told to end, and are cut.
pub async fn serve(
    listener: std::net::TcpListener,
    app: App,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let router = router(app.clone());
    accept(listener, app, router, shutdown).await
}

/// Serves visits to ports inside, on a listener of their own, in the same way.
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
    let room = Arc::new(Semaphore::new(app.config.connections_max));
    let tasks = TaskTracker::new();
    loop {
        let place = tokio::select! {
            () = shutdown.cancelled() => break,
            place = Arc::clone(&room).acquire_owned() => place.expect("the semaphore is never closed"),
        };
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
        let server = Arc::clone(&server);
        tasks.spawn(async move {
            server.app.metrics.connections.fetch_add(1, Relaxed);
            server.one(stream, peer).await;
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
    app.leaving.cancel();
    if left.is_err() {
        left = timeout(grace.saturating_sub(FOLLOWERS_GRACE), ended()).await;
    }
    if left.is_err() {
        app.closing.cancel();
        if timeout(FAREWELL, ended()).await.is_err() {
            tracing::warn!(
                connections = tasks.len(),
                "connections were cut at shutdown"
            );
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
    async fn one(&self, stream: TcpStream, peer: SocketAddr) {
        // Small answers must not wait for the peer's acknowledgements.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        match &self.acceptor {
            None => self.speak(stream, peer).await,
            Some(acceptor) => {
                match timeout(self.app.config.header_timeout, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => self.speak(stream, peer).await,
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "the TLS handshake failed"),
                    Err(_) => tracing::debug!(%peer, "the TLS handshake took too long"),
                }
            }
        }
    }

    async fn speak<S>(&self, stream: S, peer: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(Stalling::new(
            stream,
            self.app.config.write_stall,
            self.app.config.header_timeout,
        ));
        let service = hyper::service::service_fn(|request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Peer(peer.ip()));
            let mut router = self.router.clone();
            async move { Ok::<Response, Infallible>(answer(router.call(request).await)) }
        });
        let connection = self.http.serve_connection_with_upgrades(io, service);
        tokio::pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = self.app.draining.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%peer, error = %error, "a connection ended badly");
        }
    }
}

fn answer(result: Result<Response, Infallible>) -> Response {
    match result {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
