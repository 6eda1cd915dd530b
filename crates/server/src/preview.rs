//! Previews: servers inside sandboxes, reached by HTTP from outside, on a listener of their own.
//!
//! A request names a port of a sandbox by its host or path ([`url`]), shows something to be let in
//! ([`pass`]), and is carried over a connection the guest dials from inside ([`forward`]), so servers
//! bound to loopback are reached too. The API's origin is another one: no page served here can use it.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use cove_api::ErrorCode;
use cove_control::{Origin, Pass};
use cove_dialect::Kind;
use cove_model::SandboxId;

use crate::failure::{self, About, Failure};
use crate::guard::{Peer, new_request_id};
use crate::paid;
use crate::state::App;

mod e2b;
mod forward;
mod headers;
mod page;
mod pass;
mod url;

pub use pass::TOKEN_FIELD;
use url::Target;
pub use url::{PreviewUrl, PreviewUrlError};

/// Visits to one sandbox at once; further ones are refused, so that others have room.
pub const VISITS_MAX: usize = 512;
/// How long a browser keeps a link's cookie; the link itself may end before.
const COOKIE_S: u64 = cove_limits::LINK_MAX_S;

/// Every address and method goes to the same place.
pub fn router(app: App) -> Router {
    Router::new().fallback(answer).with_state(app)
}

async fn answer(State(app): State<App>, request: Request) -> Response {
    let started = Instant::now();
    let id = new_request_id();
    let method = request.method().clone();
    let asked = request.headers().clone();
    let outcome = visit(&app, request, &id).await;
    let (response, target) = match outcome {
        Ok((response, target)) => (response, target.to_string()),
        Err(failure) => {
            let theirs = e2b::refusal(&failure, &asked, app.config.previews.as_ref());
            let refusal = theirs.unwrap_or_else(|| page::refusal(failure, &asked, &id));
            (refusal, String::new())
        }
    };
    tracing::info!(
        target: "cove::http",
        request_id = id, %method, target, status = response.status().as_u16(),
        ms = format_args!("{:.2}", started.elapsed().as_secs_f64() * 1e3),
        "visit"
    );
    response
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.sandbox, self.port)
    }
}

async fn visit(
    app: &App,
    request: Request,
    request_id: &str,
) -> Result<(Response, Target), Failure> {
    let place = app.config.previews.as_ref().ok_or_else(nowhere)?;
    if request.method() == Method::CONNECT {
        let message = "a preview is not a proxy";
        return Err(Failure::new(ErrorCode::MethodNotAllowed, message));
    }
    let host = host(&request)?;
    let target = match place.of_host(host_name(&host)?) {
        Some((sandbox, port)) => Target {
            sandbox,
            port,
            prefix: None,
        },
        None => url::of_path(request.uri().path()).ok_or_else(nowhere)?,
    };
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let (mut parts, body) = request.into_parts();
    let shown = pass::take(&mut parts, place, &target);
    let tokens: Vec<&str> = shown.tokens.iter().map(String::as_str).collect();
    let pass = match (&shown.key, &shown.access) {
        (Some(key), _) => Pass::Key(key),
        (None, Some(token)) => Pass::Access(token),
        (None, None) => Pass::Tokens(&tokens),
    };
    let origin = Origin {
        source: peer.map(|peer| peer.to_string()),
        request_id: Some(request_id.to_owned()),
    };
    let place_taken = app.crowds.enter(app, &target.sandbox)?;
    let (access, admission) = app
        .control
        .visit(&target.sandbox, target.port, pass, origin)
        .await?;
    if let Some(token) = &shown.link {
        return Ok((keep_token(place, token, &parts.uri), target));
    }
    let slot = app
        .front
        .streams
        .enter(&access.sandbox().org, Kind::Visit)?;
    let stream = access
        .guest()
        .connect_port(target.port)
        .await
        .map_err(|error| unreachable_port(error, &target))?;
    let account = access.account().clone();
    let carried = forward::Carried {
        app: app.clone(),
        stream,
        kept: (access, place_taken, slot),
        admission,
    };
    let request = Request::from_parts(parts, body);
    let mut response = carried.send(request, &host, peer, place, &target).await?;
    paid::put_on(account, &mut response, false)?;
    Ok((response, target))
}

fn unreachable_port(error: cove_protocol::client::GuestError, target: &Target) -> Failure {
    let failure = failure::guest(error, About::Process);
    match failure.code {
        ErrorCode::PortClosed => Failure::new(
            ErrorCode::PortClosed,
            format!("nothing inside listens on port {}", target.port),
        )
        .hint("start the server in the sandbox and load this again"),
        _ => failure,
    }
}

/// The one host a request is for. Two that differ, or none, are nobody's.
fn host(request: &Request) -> Result<String, Failure> {
    let refuse = |message| Failure::new(ErrorCode::MalformedRequest, message);
    let mut named = request.headers().get_all(header::HOST).iter();
    let header = named.next();
    if named.next().is_some() {
        return Err(refuse("there is more than one Host header"));
    }
    let header = match header {
        Some(value) => Some(
            value
                .to_str()
                .map_err(|_| refuse("the Host header is not text"))?,
        ),
        None => None,
    };
    let authority = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    match (header, authority) {
        (Some(one), Some(other)) if one != other => {
            Err(refuse("the Host header and the address differ"))
        }
        (Some(host), _) | (None, Some(host)) => Ok(host.to_owned()),
        (None, None) => Err(refuse("the request names no host")),
    }
}

/// Without the port; what has anything else in it names nothing.
fn host_name(host: &str) -> Result<&str, Failure> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let odd = |byte: u8| byte.is_ascii_control() || b" /\\@?#,".contains(&byte);
    if name.is_empty() || name.bytes().any(odd) {
        let message = "the Host header is not a host";
        return Err(Failure::new(ErrorCode::MalformedRequest, message));
    }
    Ok(name)
}

fn nowhere() -> Failure {
    Failure::new(ErrorCode::NotFound, "this address is not a preview")
        .hint("`cove ports SANDBOX` shows the addresses of previews")
}

/// Lets the browser keep a link's token for this host, and hides it from the page and its history.
fn keep_token(place: &PreviewUrl, token: &str, clean: &Uri) -> Response {
    let name = pass::cookie_name(place.secure());
    let secure = if place.secure() { "; Secure" } else { "" };
    let cookie =
        format!("{name}={token}; Path=/; HttpOnly; SameSite=Lax; Max-Age={COOKIE_S}{secure}");
    // Slashes at the beginning would lead to another host.
    let path = clean.path_and_query().map_or("/", |path| path.as_str());
    let path = format!("/{}", path.trim_start_matches(['/', '\\']));
    let mut response = StatusCode::SEE_OTHER.into_response();
    for (name, value) in [
        (header::LOCATION, path.as_str()),
        (header::SET_COOKIE, cookie.as_str()),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// How many visits each sandbox has now.
#[derive(Default)]
pub struct Crowds(Mutex<HashMap<SandboxId, usize>>);

impl Crowds {
    fn table(&self) -> parking_lot::MutexGuard<'_, HashMap<SandboxId, usize>> {
        self.0.lock()
    }

    /// Sandboxes that are visited now.
    pub fn len(&self) -> usize {
        self.table().len()
    }

    pub fn enter(&self, app: &App, id: &SandboxId) -> Result<Visitor, Failure> {
        let mut table = self.table();
        let count = table.entry(id.clone()).or_default();
        if *count >= VISITS_MAX {
            let message = format!("the sandbox has {VISITS_MAX} visits under way");
            return Err(Failure {
                retry_after_s: Some(1),
                ..Failure::new(ErrorCode::LimitReached, message)
            });
        }
        *count += 1;
        Ok(Visitor {
            app: app.clone(),
            id: id.clone(),
        })
    }
}

/// One visit under way.
pub struct Visitor {
    app: App,
    id: SandboxId,
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let mut table = self.app.crowds.table();
        if let Some(count) = table.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                table.remove(&self.id);
            }
        }
    }
}
