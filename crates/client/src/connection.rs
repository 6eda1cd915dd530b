//! Connections to one server: HTTP/1.1, kept alive, returned to the pool when their answer was read
//! to the end, dropped otherwise.

use async_recursion::async_recursion as boxed;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::tls::{self, Tls};
use crate::{CONNECT_TIMEOUT, ClientError, Outgoing};

/// Idle connections kept; more are closed.
const IDLE_MAX: usize = 128;

/// What is dialled.
enum Endpoint {
    Tcp(String, u16),
    Unix(PathBuf),
    /// Nothing: the server is in this program.
    Local(LocalServer),
}

/// A server in the same program: a request goes in, a response comes out, no socket between them.
pub type LocalServer = Arc<dyn Fn(Request<Outgoing>) -> LocalResponse + Send + Sync>;
pub type LocalResponse = Pin<Box<dyn Future<Output = Response<LocalBody>> + Send>>;
pub type LocalBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

pub(crate) struct Connections {
    url: String,
    place: Endpoint,
    authority: String,
    prefix: String,
    tls: Option<Tls>,
    idle: Arc<Mutex<Vec<SendRequest<Outgoing>>>>,
}

impl Connections {
    pub fn new(url: &str, ca_pem: Option<Vec<u8>>) -> Result<Self, ClientError> {
        let wrong =
            |what: &str| ClientError::Config(format!("'{url}' is not a server URL: {what}"));
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Self {
                url: url.to_owned(),
                place: Endpoint::Unix(path.into()),
                authority: "localhost".into(),
                prefix: String::new(),
                tls: None,
                idle: Arc::default(),
            });
        }
        let parsed: Uri = url.parse().map_err(|_| wrong("it cannot be parsed"))?;
        let secure = match parsed.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("it must begin with http:// or https://")),
        };
        let authority = parsed
            .authority()
            .ok_or_else(|| wrong("it names no host"))?;
        if parsed.query().is_some() || authority.as_str().contains('@') {
            return Err(wrong("it must not have a query or a user"));
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let port = authority
            .port_u16()
            .unwrap_or(if secure { 443 } else { 80 });
        let tls = if secure {
            Some(tls::connector(&host, ca_pem)?)
        } else {
            None
        };
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            authority: authority.as_str().to_owned(),
            prefix: parsed.path().trim_end_matches('/').to_owned(),
            place: Endpoint::Tcp(host, port),
            tls,
            idle: Arc::default(),
        })
    }

    pub fn local(server: LocalServer) -> Self {
        Self {
            url: "local".into(),
            place: Endpoint::Local(server),
            authority: "localhost".into(),
            prefix: String::new(),
            tls: None,
            idle: Arc::default(),
        }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn authority(&self) -> &str {
        &self.authority
    }

    pub fn target(&self, path_and_query: &str) -> String {
        format!("{}{path_and_query}", self.prefix)
    }

    #[boxed]
    pub async fn send(&self, request: Request<Outgoing>) -> Result<Response<Answer>, ClientError> {
        if let Endpoint::Local(server) = &self.place {
            let response = server(request).await;
            return Ok(response.map(|body| Answer {
                source: Source::Local(body),
                lease: None,
            }));
        }
        let (parts, body) = request.into_parts();
        let mut parts = Some(parts);
        let mut body = Some(body);
        // A kept connection may have been closed by the server just now. A request that was not
        // taken from it goes out again on a new one; one that may have been is not repeated.
        while let Some(mut kept) = self.take_idle() {
            if kept.ready().await.is_err() {
                continue;
            }
            let (Some(old_parts), Some(old_body)) = (parts.take(), body.take()) else {
                break;
            };
            let again = old_body.again().map(|again| (old_parts.clone(), again));
            let request = Request::from_parts(old_parts, old_body);
            match kept.try_send_request(request).await {
                Ok(response) => return Ok(self.answer(response, kept)),
                Err(mut error) => {
                    if let Some(unsent) = error.take_message() {
                        let (unsent_parts, unsent_body) = unsent.into_parts();
                        (parts, body) = (Some(unsent_parts), Some(unsent_body));
                        continue;
                    }
                    let error = error.into_error();
                    // The server closed the idle connection while the request was on its way:
                    // safe to repeat only where repeating cannot do harm.
                    if let Some((old, again)) = again
                        && error.is_incomplete_message()
                        && old.method.is_safe()
                    {
                        (parts, body) = (Some(old), Some(again));
                        continue;
                    }
                    return Err(transport(error));
                }
            }
        }
        let (Some(parts), Some(body)) = (parts, body) else {
            return Err(ClientError::Protocol("the request was lost"));
        };
        let mut fresh = self.connect().await?;
        let request = Request::from_parts(parts, body);
        let response = fresh.send_request(request).await.map_err(transport)?;
        Ok(self.answer(response, fresh))
    }

    fn answer(
        &self,
        response: Response<Incoming>,
        sender: SendRequest<Outgoing>,
    ) -> Response<Answer> {
        let idle = Arc::clone(&self.idle);
        response.map(|incoming| Answer {
            source: Source::Wire(incoming),
            lease: Some(Lease { sender, idle }),
        })
    }

    fn take_idle(&self) -> Option<SendRequest<Outgoing>> {
        let mut idle = self.idle.lock();
        while let Some(sender) = idle.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self) -> Result<SendRequest<Outgoing>, ClientError> {
        let failed = |source| ClientError::Connect {
            url: self.url.clone(),
            source,
        };
        let work = async {
            let (host, port) = match &self.place {
                Endpoint::Tcp(host, port) => (host.as_str(), *port),
                Endpoint::Unix(path) => {
                    let stream = UnixStream::connect(path).await.map_err(failed)?;
                    return shake(TokioIo::new(stream)).await;
                }
                Endpoint::Local(_) => {
                    return Err(ClientError::Protocol("a local server is not dialled"));
                }
            };
            let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            match &self.tls {
                None => shake(TokioIo::new(stream)).await,
                Some(tls) => shake(TokioIo::new(tls.connect(stream).await.map_err(failed)?)).await,
            }
        };
        timeout(CONNECT_TIMEOUT, work)
            .await
            .map_err(|_| failed(io::ErrorKind::TimedOut.into()))?
    }
}

async fn shake<S>(stream: S) -> Result<SendRequest<Outgoing>, ClientError>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(stream).await.map_err(ClientError::Http)?;
    // Ends by itself when the sender is dropped or the server closes.
    tokio::spawn(async move { connection.with_upgrades().await.ok() });
    Ok(sender)
}

fn transport(error: hyper::Error) -> ClientError {
    ClientError::Http(error)
}

struct Lease {
    sender: SendRequest<Outgoing>,
    idle: Arc<Mutex<Vec<SendRequest<Outgoing>>>>,
}

/// An answer's body. Read to its end, its connection serves the next request; dropped before, the
/// connection is closed, which the server takes for the caller having left.
pub struct Answer {
    source: Source,
    lease: Option<Lease>,
}

enum Source {
    Wire(Incoming),
    Local(LocalBody),
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.settle();
    }
}

impl Answer {
    fn settle(&mut self) {
        if !self.is_end_stream() {
            return;
        }
        if let Some(lease) = self.lease.take()
            && !lease.sender.is_closed()
        {
            let mut idle = lease.idle.lock();
            if idle.len() < IDLE_MAX {
                idle.push(lease.sender);
            }
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = ClientError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientError>>> {
        match &mut self.source {
            Source::Wire(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(ClientError::Http))),
            Source::Local(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(ClientError::Body))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Wire(body) => body.is_end_stream(),
            Source::Local(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Wire(body) => body.size_hint(),
            Source::Local(body) => body.size_hint(),
        }
    }
}
