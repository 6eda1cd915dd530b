//! Over streamable HTTP, without sessions: every request stands by itself, and any server answers it.

use std::convert::Infallible;
use std::sync::Arc;

use ::http::{Request, Response};
use bytes::Bytes;
use cove_client::Client;
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use rmcp::ServerHandler;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{
    SessionManager, StreamableHttpServerConfig, StreamableHttpService,
};

use crate::CoveTools;

/// The largest message: as much as a command and its input over the HTTP API.
pub const MESSAGE_MAX: usize = cove_limits::EXEC_BODY_MAX;

/// Pages in a browser may speak to this only from the machine itself. A browser sends `Origin` with every
/// POST, also when a name was rebound to this machine's address; programs send none.
const ORIGINS: [&str; 6] = [
    "http://localhost:*",
    "http://127.0.0.1:*",
    "http://[::1]:*",
    "https://localhost:*",
    "https://127.0.0.1:*",
    "https://[::1]:*",
];

/// The layer below all MCP over HTTP here; tests mount other handlers on it.
pub fn service<S, M>(
    handler: impl Fn() -> S + Send + Sync + 'static,
    sessions: M,
    keep_sessions: bool,
) -> StreamableHttpService<S, M>
where
    S: ServerHandler,
    M: SessionManager,
{
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(keep_sessions)
        .with_json_response(true)
        .with_max_request_body_bytes(MESSAGE_MAX)
        // The server has names of its own that are not known here; who has no key gets nothing, whatever
        // the name.
        .disable_allowed_hosts()
        .with_allowed_origins(ORIGINS);
    StreamableHttpService::new(move || Ok(handler()), Arc::new(sessions), config)
}

/// Cove's tools. Cheap to clone.
#[derive(Clone)]
pub struct Endpoint(StreamableHttpService<CoveTools, NeverSessionManager>);

impl Default for Endpoint {
    fn default() -> Self {
        let tools = CoveTools::of_many();
        Self(service(
            move || tools.clone(),
            NeverSessionManager::default(),
            false,
        ))
    }
}

impl Endpoint {
    /// Answers one request of a caller, who was authenticated before; `client` acts with the caller's key.
    pub async fn answer(
        &self,
        mut request: Request<Full<Bytes>>,
        client: Client,
    ) -> Response<BoxBody<Bytes, Infallible>> {
        request.extensions_mut().insert(client);
        self.0.handle(request).await
    }
}
