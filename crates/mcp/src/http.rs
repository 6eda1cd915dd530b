//! Over streamable HTTP, without sessions: every request stands by itself, and any server answers it.

use std::any::Any;
use std::borrow::Cow;
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

use serde::Deserialize;

use crate::CoveTools;

/// The largest message: as much as a command and its input over the HTTP API.
pub const MESSAGE_MAX: usize = cove_limits::EXEC_BODY_MAX;
/// JSON values in one message. Each takes many times its text once it is read.
pub const VALUES_MAX: usize = 16 * 1024;
/// The largest JSON document that a tool may get from the API it runs in.
pub const DOCUMENT_MAX: usize = 512 * 1024;
/// What a message other than a call of a tool holds in memory: the list of tools at most.
const OTHER_HOLDS: usize = 128 * 1024;

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
pub struct Endpoint {
    tools: CoveTools,
    service: StreamableHttpService<CoveTools, NeverSessionManager>,
}

/// What is paid for a request, in its extensions: whoever works on it has it there, so it is given back when
/// the last of them has ended.
#[derive(Clone)]
struct Paid(#[expect(dead_code)] Arc<dyn Any + Send + Sync>);

impl Default for Endpoint {
    fn default() -> Self {
        let tools = CoveTools::of_many();
        let handler = tools.clone();
        let service = service(
            move || handler.clone(),
            NeverSessionManager::default(),
            false,
        );
        Self { tools, service }
    }
}

impl Endpoint {
    /// Bytes of memory that answering this message takes at most, besides the message.
    pub fn holds(&self, message: &[u8]) -> usize {
        match serde_json::from_slice::<Message>(message) {
            Ok(message) if message.method != "tools/call" => OTHER_HOLDS,
            Ok(message) => self.tools.holds(Some(&message.params.name)),
            // Whatever it is, it is not more than this.
            Err(_) => self.tools.holds(None),
        }
    }

    /// Answers one request of a caller, who was authenticated before; `client` acts with the caller's key.
    /// `paid` is dropped when nothing works on the request any more.
    pub async fn answer(
        &self,
        mut request: Request<Full<Bytes>>,
        client: Client,
        paid: Arc<dyn Any + Send + Sync>,
    ) -> Response<BoxBody<Bytes, Infallible>> {
        request.extensions_mut().insert(client);
        request.extensions_mut().insert(Paid(paid));
        self.service.handle(request).await
    }
}

/// What must be known of a message before it is read.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow, default)]
    params: Params<'a>,
}

#[derive(Deserialize, Default)]
struct Params<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

/// At least as many as there are JSON values in a message, without reading it into memory.
pub fn values(message: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (1, false, false);
    for byte in message {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b':' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}
