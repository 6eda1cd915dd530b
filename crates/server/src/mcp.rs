//! The Model Context Protocol at `/mcp`. Each tool is requests to this server's own router, made in this
//! process with the caller's key: they are authenticated, bounded, paid for, logged and audited as if they
//! had come over a connection.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use cove_api::ErrorCode;
use cove_client::{Client, LocalServer};
use cove_control::Charge;
use cove_dialect::{Front, Peer, Tab};
use cove_mcp::http::{DOCUMENT_MAX, Endpoint, MESSAGE_MAX, VALUES_MAX, values};
use http_body_util::{BodyExt, Full};
use tower_service::Service;

use crate::extract::bearer;
use crate::failure::{Failure, Told};
use crate::guard::REQUEST_ID;
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
    // What the tools ask of the rest is decided there, route by route.
    let principal = front.bound_caller(&parts.extensions, &token).await?;
    let tab = parts.extensions.get::<Tab>().cloned().unwrap_or_default();
    let known = std::future::ready(Ok::<_, Failure>(()));
    let bytes = front.whole(&tab, body, MESSAGE_MAX, known).await?;
    let count = values(&bytes);
    if count > VALUES_MAX {
        let message =
            format!("the message has {count} JSON values, the limit is {VALUES_MAX} values");
        return Err(Failure::invalid(message));
    }
    // A call pays for the most it can hold before it begins, and its message once more for its arguments.
    // What it gets from the API's own routes is not paid for again.
    let mut charge = front.control.budget().account(&principal).charge();
    charge.take(mounted.endpoint.holds(&bytes) + bytes.len())?;
    let paid = Arc::new(charge);
    let server = local(
        mounted.rest.clone(),
        parts.extensions.get::<Peer>().copied(),
    );
    let client = Client::local(server, &token, AGENT)
        .map_err(|error| Failure::invalid(error.to_string()))?;
    let request = Request::from_parts(parts, Full::new(bytes));
    let kept = Arc::clone(&paid);
    let response = mounted.endpoint.answer(request, client, paid).await;
    // The charge also lasts as long as the body, which may be a stream of notices with the answer at its end.
    Ok(response.map(|body| Body::new(body.map_err(move |never| with(&kept, never)))))
}

/// Keeps `_paid` with the closure that this is called in.
fn with(_paid: &Arc<Charge>, never: Infallible) -> Infallible {
    never
}

/// This server without a connection. Requests come from where the MCP request came from.
fn local(rest: Router, peer: Option<Peer>) -> LocalServer {
    Arc::new(move |request| {
        let mut rest = rest.clone();
        let mut request = request.map(Body::new);
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        let method = request.method().clone();
        Box::pin(async move {
            let response = match rest.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            let response = within_limit(response, &method);
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        })
    })
}

/// A document that a tool cannot hold is not given to it. Streams are taken piece by piece.
fn within_limit(response: Response, method: &Method) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let size = response.body().size_hint().lower();
    if !is_json || size <= DOCUMENT_MAX as u64 {
        return response;
    }
    let done = match *method {
        Method::GET => "",
        _ => "the call succeeded, but ",
    };
    let message =
        format!("{done}the answer has {size} bytes, and a tool takes at most {DOCUMENT_MAX}");
    let failure = Failure::new(ErrorCode::LimitReached, message)
        .hint("ask for less with `limit`, or use the HTTP API");
    let id = response.headers().get(&REQUEST_ID);
    let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
    let mut refused = failure.into_response();
    match refused.extensions_mut().remove::<Told>() {
        Some(told) => {
            let mut full = told.body(id);
            *full.status_mut() = refused.status();
            full
        }
        None => refused,
    }
}
