//! A typed client for Cove's HTTP API, over one small connection pool.
//!
//! The command line and the tests speak to servers through this crate only. It never prints, reads
//! no environment and keeps no global state.
#![forbid(unsafe_code)]

mod approvals;
mod attach;
mod body;
mod builds;
mod code;
mod connection;
mod egress;
mod error;
mod files;
mod identity;
mod ports;
mod processes;
mod sandboxes;
mod secrets;
mod services;
mod snapshots;
mod ssh;
mod stream;
mod templates;
mod tenancy;
mod tls;
mod volumes;

use async_recursion::async_recursion as boxed;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use attach::{AttachMessage, Attachment};
pub use body::{Outgoing, Upload};
pub use connection::{Answer, LocalBody, LocalResponse, LocalServer};
pub use error::ClientError;
pub use ports::PortConnection;
pub use stream::{ByteStream, Lines, ServerEvents};

use connection::Connections;

/// How long a call whose answer is one JSON document may take, unless the call says otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(300);
/// How long connecting, TLS included, may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest JSON document taken from a server.
pub const DOCUMENT_MAX: usize = 64 * 1024 * 1024;

/// Where the server is and who asks.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// `http://host:port` or `https://host:port`, a path prefix allowed; or `unix:/path`.
    pub url: String,
    pub token: Option<String>,
    /// Certificates to trust for https, PEM; the system's when absent.
    pub ca_pem: Option<Vec<u8>>,
    /// Sent as `User-Agent`.
    pub agent: String,
}

impl ClientConfig {
    pub fn new(url: impl Into<String>, token: Option<String>) -> Self {
        let agent = concat!("cove/", env!("CARGO_PKG_VERSION")).to_owned();
        Self {
            url: url.into(),
            token,
            ca_pem: None,
            agent,
        }
    }
}

/// A server. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Client {
    connections: Arc<Connections>,
    authorization: Option<http::HeaderValue>,
    agent: http::HeaderValue,
}

impl Client {
    pub fn new(config: ClientConfig) -> Result<Self, ClientError> {
        let connections = Connections::new(&config.url, config.ca_pem)?;
        Self::over(connections, config.token.as_deref(), &config.agent)
    }

    /// A client of a server in the same program.
    pub fn local(server: LocalServer, token: &str, agent: &str) -> Result<Self, ClientError> {
        Self::over(Connections::local(server), Some(token), agent)
    }

    fn over(
        connections: Connections,
        token: Option<&str>,
        agent: &str,
    ) -> Result<Self, ClientError> {
        let bearer = |token| {
            let mut value =
                http::HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
                    ClientError::Config("the API key has characters that no key has".into())
                })?;
            value.set_sensitive(true);
            Ok::<_, ClientError>(value)
        };
        let agent = http::HeaderValue::try_from(agent)
            .map_err(|_| ClientError::Config("the agent name is not a header value".into()))?;
        Ok(Self {
            connections: Arc::new(connections),
            authorization: token.map(bearer).transpose()?,
            agent,
        })
    }

    /// Where requests go.
    pub fn url(&self) -> &str {
        self.connections.url()
    }

    /// One request, answered by whatever the server says, errors included.
    #[boxed]
    pub async fn send(
        &self,
        method: Method,
        path_and_query: &str,
        headers: &[(header::HeaderName, &str)],
        body: Outgoing,
    ) -> Result<Response<Answer>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(self.connections.target(path_and_query))
            .header(header::HOST, self.connections.authority())
            .header(header::USER_AGENT, self.agent.clone());
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization.clone());
        }
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request
            .body(body)
            .map_err(|error| ClientError::Config(format!("cannot build the request: {error}")))?;
        self.connections.send(request).await
    }

    /// As [`Client::send`], with every answer that is not a success turned into an error.
    #[boxed]
    pub async fn call(
        &self,
        method: Method,
        path_and_query: &str,
        headers: &[(header::HeaderName, &str)],
        body: Outgoing,
    ) -> Result<Response<Answer>, ClientError> {
        let response = self.send(method, path_and_query, headers, body).await?;
        if response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        Err(self.refusal(response).await)
    }

    /// A request with an optional JSON body and the whole of its answer; for servers that are not
    /// Cove's.
    #[boxed]
    pub async fn exchange(
        &self,
        method: Method,
        path_and_query: &str,
        body: Outgoing,
    ) -> Result<Vec<u8>, ClientError> {
        let headers: &[_] = if body.is_empty() { &[] } else { &JSON };
        let response = self.call(method, path_and_query, headers, body).await?;
        document(response).await.map(Vec::from)
    }

    async fn refusal(&self, response: Response<Answer>) -> ClientError {
        let status = response.status();
        let retry_after_s = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        match document(response).await {
            Ok(bytes) => match serde_json::from_slice::<cove_api::ErrorBody>(&bytes) {
                Ok(body) => ClientError::Refused {
                    status,
                    detail: Box::new(body.error),
                    retry_after_s,
                },
                Err(_) => ClientError::NotCove { status },
            },
            Err(error) => error,
        }
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path_and_query: &str,
        headers: &[(header::HeaderName, &str)],
        body: Outgoing,
    ) -> Result<T, ClientError> {
        let work = async {
            let response = self.call(method, path_and_query, headers, body).await?;
            let bytes = document(response).await?;
            serde_json::from_slice(&bytes).map_err(ClientError::Answer)
        };
        tokio::time::timeout(CALL_TIMEOUT, work)
            .await
            .map_err(|_| ClientError::TimedOut(CALL_TIMEOUT))?
    }

    async fn get<T: DeserializeOwned>(&self, path_and_query: &str) -> Result<T, ClientError> {
        self.json(Method::GET, path_and_query, &[], Outgoing::empty())
            .await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.json(Method::POST, path, &JSON, Outgoing::json(body)?)
            .await
    }

    /// A call whose success says nothing more.
    async fn nothing(
        &self,
        method: Method,
        path_and_query: &str,
        body: Outgoing,
    ) -> Result<(), ClientError> {
        let work = async {
            let headers: &[_] = if body.is_empty() { &[] } else { &JSON };
            let response = self.call(method, path_and_query, headers, body).await?;
            document(response).await.map(drop)
        };
        tokio::time::timeout(CALL_TIMEOUT, work)
            .await
            .map_err(|_| ClientError::TimedOut(CALL_TIMEOUT))?
    }
}

const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

/// The whole body, as long as it is not absurd.
async fn document(response: Response<Answer>) -> Result<Bytes, ClientError> {
    http_body_util::Limited::new(response.into_body(), DOCUMENT_MAX)
        .collect()
        .await
        .map(|collected| collected.to_bytes())
        .map_err(|error| match error.downcast::<ClientError>() {
            Ok(error) => *error,
            Err(error) => ClientError::Body(error),
        })
}

/// One segment of a path: everything but letters, digits and a few safe marks is escaped.
fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b':' => {
                out.push(byte as char);
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    // A segment of dots alone would be taken for a step in the path.
    if !out.is_empty() && out.bytes().all(|b| b == b'.') {
        out.replace('.', "%2E")
    } else {
        out
    }
}

fn with_query(path: &str, query: &impl Serialize) -> Result<String, ClientError> {
    let query = serde_urlencoded::to_string(query)
        .map_err(|error| ClientError::Config(format!("the query cannot be written: {error}")))?;
    Ok(if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cannot_leave_their_place() {
        assert_eq!(segment("sbx_abc"), "sbx_abc");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("ü"), "%C3%BC");
    }
}
