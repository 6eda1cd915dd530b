//! What happens around every request, before and after its handler: an id, bounds, one log line,
//! figures, and the promise that a panic stays one request's problem.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cove_api::ErrorCode;
use cove_api::route::{Body as RouteBody, Route};
pub use cove_dialect::Peer;
use cove_dialect::{RequestId, Seen, Tab};
use cove_limits::{HEADERS_MAX, HEADERS_MAX_BYTES, URI_MAX};
use futures_util::FutureExt;

use crate::admitted;
use crate::failure::{Failure, Told};
use crate::metrics::Asked;
use crate::paid;
use crate::state::App;
use crate::unread::Unread;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const ID_CHARS: usize = 20;
/// Characters of a path and of a method in the log.
const PATH_SHOWN: usize = 256;
const METHOD_SHOWN: usize = 16;

pub fn new_request_id() -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bits: u128 = rand::random();
    let random = (0..ID_CHARS).map(|i| ALPHABET[((bits >> (5 * i)) & 31) as usize] as char);
    "req_".chars().chain(random).collect()
}

/// The outermost layer.
pub async fn around(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = new_request_id();
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(PATH_SHOWN).collect();
    let shown: String = method.as_str().chars().take(METHOD_SHOWN).collect();
    let seen = Seen::default();
    request.extensions_mut().insert(RequestId(id.clone()));
    request.extensions_mut().insert(seen.clone());
    // What is read of the request is held until its handler is done with it.
    let tab = Tab::default();
    request.extensions_mut().insert(tab.clone());
    let in_flight = app.metrics.begin();
    let unread = Unread::watch(&mut request);

    let mut response = match bounded(&request) {
        Err(failure) => failure.into_response(),
        Ok(()) => {
            let handled = admitted::answer(&app.control, &seen, next.run(request));
            match AssertUnwindSafe(handled).catch_unwind().await {
                Ok(response) => response,
                Err(panic) => panicked(&id, &*panic).into_response(),
            }
        }
    };
    drop(tab);
    if let Some(principal) = seen.0.get() {
        let account = app.control.budget().account(principal);
        let may_refuse = method == Method::GET;
        if let Err(over) = paid::put_on(account, &mut response, may_refuse) {
            let asked = response.extensions_mut().remove::<Asked>();
            response = Failure::from(over).into_response();
            if let Some(asked) = asked {
                response.extensions_mut().insert(asked);
            }
        }
    }
    let asked = response.extensions_mut().remove::<Asked>();
    let asked = asked.unwrap_or(Asked::Nothing);
    if let Some(told) = response.extensions_mut().remove::<Told>() {
        response = told_response(response, told, &id, &method);
    }
    if let Some(unread) = unread {
        let wait = app.config.unread_wait;
        unread.discard(&mut response, wait).await;
    }
    let value = HeaderValue::from_str(&id).expect("ids are letters and digits");
    response.headers_mut().insert(REQUEST_ID, value);

    let status = response.status().as_u16();
    let elapsed = started.elapsed();
    app.metrics.end(in_flight, &asked, status, elapsed);
    let caller = seen.shown();
    if response.status().is_client_error() && !app.refused_lines.admits(&caller) {
        return response;
    }
    tracing::info!(
        target: "cove::http",
        request_id = id, method = shown, path, status,
        operation = asked.as_str(),
        caller,
        ms = format_args!("{:.2}", elapsed.as_secs_f64() * 1e3),
        "request"
    );
    response
}

/// Fills in the body of a failure and logs what its caller does not get.
fn told_response(empty: Response, told: Told, id: &str, method: &Method) -> Response {
    if empty.status().is_server_error() && told.code != ErrorCode::Unsupported {
        tracing::warn!(
            request_id = id,
            code = told.code.as_str(),
            message = told.message,
            cause = told.cause.as_deref().unwrap_or(""),
            "request failed"
        );
    }
    let (parts, _) = empty.into_parts();
    let mut response = told.body(id);
    *response.status_mut() = parts.status;
    response.headers_mut().extend(parts.headers);
    if *method == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    response
}

fn panicked(id: &str, panic: &(dyn Any + Send)) -> Failure {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    tracing::error!(request_id = id, panic = text, "a handler panicked");
    Failure::new(ErrorCode::Internal, "something went wrong in the server")
        .hint("the server's log has more under this request id")
}

fn bounded(request: &Request) -> Result<(), Failure> {
    let uri = request.uri();
    let length = uri.path().len() + uri.query().map_or(0, |query| query.len() + 1);
    if length > URI_MAX {
        let message = format!("the path and query have {length} bytes, the limit is {URI_MAX}");
        return Err(Failure::new(ErrorCode::UriTooLong, message));
    }
    let headers = request.headers();
    let bytes: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    if headers.len() > HEADERS_MAX || bytes > HEADERS_MAX_BYTES {
        let message = format!(
            "the request has {} headers with {bytes} bytes, the limits are {HEADERS_MAX} and {HEADERS_MAX_BYTES}",
            headers.len()
        );
        return Err(Failure::new(ErrorCode::HeadersTooLarge, message));
    }
    Ok(())
}

/// The layer of a dialect: says for the outermost one which of its routes answers. A path matches
/// whatever the method, and clients make methods up.
pub async fn dialect(request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let asked = matched.map(|path| Asked::dialect(request.method(), path.as_str()));
    let mut response = next.run(request).await;
    if let Some(asked) = asked {
        response.extensions_mut().insert(asked);
    }
    response
}

/// The layer of one route: holds the request to what the table says of it.
pub async fn route(
    State(route): State<&'static Route>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match fits(route, request.headers()) {
        Err(failure) => failure.into_response(),
        Ok(()) => {
            request.extensions_mut().insert(route);
            next.run(request).await
        }
    };
    response
        .extensions_mut()
        .insert(Asked::Operation(route.operation));
    response
}

/// Checks what the headers show.
fn fits(route: &Route, headers: &HeaderMap) -> Result<(), Failure> {
    let length = match headers.get(header::CONTENT_LENGTH) {
        None => 0,
        Some(value) => value
            .to_str()
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
            .ok_or_else(|| {
                Failure::new(
                    ErrorCode::MalformedRequest,
                    "Content-Length is not a number",
                )
            })?,
    };
    if matches!(route.body, RouteBody::None) {
        if length > 0 || headers.contains_key(header::TRANSFER_ENCODING) {
            return Err(Failure::invalid("this route takes no body"));
        }
    } else if length > route.body_max as u64 {
        return Err(too_large(route));
    }
    if headers.contains_key(IDEMPOTENCY_KEY) && route.mutates() && !route.idempotent {
        return Err(Failure::invalid("this route takes no Idempotency-Key")
            .hint("repeating this request is not recognised as a repeat; leave the header out"));
    }
    if headers.contains_key(header::CONTENT_ENCODING) && !matches!(route.body, RouteBody::None) {
        let message = "encoded bodies are not supported";
        return Err(Failure::new(ErrorCode::UnsupportedMediaType, message)
            .hint("send the body as it is, without Content-Encoding"));
    }
    Ok(())
}

pub fn too_large(route: &Route) -> Failure {
    let message = format!(
        "the body is over this route's limit of {} bytes",
        route.body_max
    );
    Failure::new(ErrorCode::PayloadTooLarge, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use cove_control::testing::MemoryRunner;
    use cove_control::{Control, ControlConfig, SystemClock};
    use http_body_util::BodyExt;
    use tower_service::Service;

    use super::*;
    use crate::config::ServerConfig;

    async fn app() -> (App, tempfile::TempDir) {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let store = cove_store::open_sqlite(&dir.path().join("test.db"))
            .await
            .unwrap();
        let clock = Arc::new(SystemClock);
        let runner = MemoryRunner::new(clock.clone());
        let control = Control::new(ControlConfig::default(), store, runner, clock);
        (App::new(control, ServerConfig::default()), dir)
    }

    #[tokio::test]
    async fn a_panic_is_one_request_s_problem_and_has_an_id() {
        async fn broken() {
            panic!("on purpose");
        }
        let (app, _dir) = app().await;
        let mut router: Router = Router::new()
            .route("/broken", get(broken))
            .route("/whole", get(async || "fine"))
            .layer(from_fn_with_state(app.clone(), around))
            .with_state(app);
        let mut ask = async |path: &str| {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            router.call(request).await.unwrap()
        };
        let response = ask("/broken").await;
        assert_eq!(response.status(), 500);
        let id = response.headers()[&REQUEST_ID].to_str().unwrap().to_owned();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: cove_api::ErrorBody = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (body.error.code, body.error.request_id),
            (ErrorCode::Internal, id)
        );
        assert!(!body.error.message.contains("on purpose"));
        assert_eq!(ask("/whole").await.status(), 200);
    }

    #[test]
    fn request_ids_are_the_server_s_own_and_never_the_same() {
        let (one, two) = (new_request_id(), new_request_id());
        assert_ne!(one, two);
        assert_eq!(one.len(), "req_".len() + ID_CHARS);
    }
}
