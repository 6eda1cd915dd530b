//! The Model Context Protocol at `/mcp`. Each tool is requests to this server's own router, made in this
//! process with the caller's key: they are authenticated, bounded, paid for, logged and audited as if they
//! had come over a connection.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use cove_client::{Client, LocalServer};
use cove_dialect::{Front, Peer, Tab};
use cove_mcp::http::{Endpoint, MESSAGE_MAX};
use http_body_util::{BodyExt, Full};
use tower_service::Service;

use crate::extract::bearer;
use crate::failure::Failure;
use crate::state::App;

pub const PATH: &str = "/mcp";

/// What the server's own tools name themselves in requests.
const AGENT: &str = concat!("cove-mcp/", env!("CARGO_PKG_VERSION"));

#[derive(Clone)]
struct Mounted {
    front: Front,
    endpoint: Endpoint,
    /// Everything else that this server answers.
    rest: Router,
}

pub fn router(app: App, rest: Router) -> Router {
    let mounted = Mounted {
        front: app.front.clone(),
        endpoint: Endpoint::default(),
        rest,
    };
    Router::new().route(PATH, any(answer)).with_state(mounted)
}

async fn answer(State(mounted): State<Mounted>, request: Request) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let token = bearer(&parts.headers)?.to_owned();
    let front = &mounted.front;
    front.caller(&parts.extensions, &token).await?;
    let tab = parts.extensions.get::<Tab>().cloned().unwrap_or_default();
    let known = std::future::ready(Ok::<_, Failure>(()));
    let bytes = front.whole(&tab, body, MESSAGE_MAX, known).await?;
    let server = local(
        mounted.rest.clone(),
        parts.extensions.get::<Peer>().copied(),
    );
    let client = Client::local(server, &token, AGENT)
        .map_err(|error| Failure::invalid(error.to_string()))?;
    let request = Request::from_parts(parts, Full::new(bytes));
    let response = mounted.endpoint.answer(request, client).await;
    Ok(response.map(Body::new).into_response())
}

/// This server without a connection. Requests come from where the MCP request came from.
fn local(rest: Router, peer: Option<Peer>) -> LocalServer {
    Arc::new(move |request| {
        let mut rest = rest.clone();
        let mut request = request.map(Body::new);
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        Box::pin(async move {
            let response = match rest.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        })
    })
}
