//! The one way out: resolves a host, checks every address, and dials exactly one that was checked. Every
//! connection of a pull comes from here, whoever named the host: the reference, a redirect or a
//! registry that says where its tokens are.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

use crate::names::Names;
use crate::reach::Reachable;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Addresses of one name that are tried.
const TRIES_MAX: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("{0}")]
    Name(String),
    #[error("{place} has the address {address}, which may not be reached")]
    OffLimits { place: String, address: String },
    #[error("{place} cannot be connected to: {reason}")]
    Connect { place: String, reason: String },
}

#[derive(Clone)]
pub struct Connector {
    names: Arc<Names>,
    reachable: Arc<Reachable>,
}

impl Connector {
    pub fn new(names: Names, reachable: Reachable) -> Self {
        Self {
            names: Arc::new(names),
            reachable: Arc::new(reachable),
        }
    }

    async fn dial(&self, uri: &Uri) -> Result<TcpStream, DialError> {
        let host = uri.host().unwrap_or_default();
        let default = if uri.scheme_str() == Some("http") {
            80
        } else {
            443
        };
        let port = uri.port_u16().unwrap_or(default);
        let place = format!("{host}:{port}");
        let addresses = self.names.addresses(host).await.map_err(DialError::Name)?;
        // One that may not be reached spoils the others: a name has no business with both kinds.
        for address in &addresses {
            if !self.reachable.permits(host, port, *address) {
                let address = address.to_string();
                return Err(DialError::OffLimits { place, address });
            }
        }
        let mut reason = "no address".to_owned();
        for address in addresses.into_iter().take(TRIES_MAX) {
            let target = SocketAddr::new(address, port);
            match timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => reason = format!("{target}: {error}"),
                Err(_) => reason = format!("{target}: no answer in time"),
            }
        }
        Err(DialError::Connect { place, reason })
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.dial(&uri).await.map(TokioIo::new) })
    }
}
