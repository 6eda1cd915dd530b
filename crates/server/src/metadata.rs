//! The metadata endpoint: what answers inside sandboxes at `http://cove.internal:16910/`.
//!
//! Control gets each connection from the host together with the sandbox it came from; nothing in a request
//! changes that. One request per connection. What a program was tricked into sending is refused: a request
//! needs a header that browsers and forwarding programs do not add by themselves, the right `Host`, and none
//! of the headers that forwarding programs leave.

use async_recursion::async_recursion as boxed;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use cove_api::ErrorCode;
use cove_control::{Control, GuestStream, IdentityTokenRequest};
use cove_model::identity::{METADATA_ADDRESS, METADATA_NAME, METADATA_PORT};
use cove_model::{Grant, SandboxId};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, FORWARDED, HOST, HeaderValue, VIA};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Told};
use crate::guard;

/// The header that every request needs, with this value.
pub const HEADER: &str = "cove-metadata";
const HEADER_VALUE: &str = "true";
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// For all of a visit; a snapshot of a large disk takes longest.
const VISIT_TIMEOUT: Duration = Duration::from_secs(120);
const HEADERS_MAX: usize = 64;
/// The least that hyper takes.
const BUFFER_MAX: usize = 16 * 1024;
const BODY_MAX: usize = 64 * 1024;

/// Serves until `shutdown`.
#[boxed]
pub async fn serve_metadata(control: Control, shutdown: CancellationToken) {
    let server = control.clone();
    let visit = move |id: SandboxId, stream: GuestStream| {
        let control = server.clone();
        async move { one(control, id, stream).await }
    };
    control.receive_visitors(shutdown, visit).await;
}

async fn one(control: Control, id: SandboxId, stream: GuestStream) {
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let (control, id) = (control.clone(), id.clone());
        async move {
            let mut response = match answer(&control, &id, request).await {
                Ok(response) => response,
                Err(failure) => told(failure),
            };
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
            Ok::<Response, Infallible>(response)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        // Simple clients close their half when they have asked.
        .half_close(true)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // Whoever does not speak HTTP or goes away is of no interest.
    let _ = tokio::time::timeout(VISIT_TIMEOUT, connection).await;
}

fn told(failure: Failure) -> Response {
    let mut response = failure.into_response();
    let Some(told) = response.extensions_mut().remove::<Told>() else {
        return response;
    };
    let (parts, _) = response.into_parts();
    let body = told.body(&guard::new_request_id()).into_body();
    let mut response = Response::from_parts(parts, body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response.headers_mut().remove(CONTENT_LENGTH);
    response
}

fn refused(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::Forbidden, message)
}

/// Whether the request was made by a program inside for this endpoint, and not passed on for somebody.
fn check<B>(request: &Request<B>) -> Result<(), Failure> {
    let headers = request.headers();
    let forwarded = headers.keys().find(|name| {
        *name == FORWARDED
            || *name == VIA
            || name.as_str().starts_with("x-forwarded-")
            || name.as_str() == "x-real-ip"
    });
    if let Some(name) = forwarded {
        return Err(refused(format!(
            "requests with the header {name} are refused"
        )));
    }
    if request.uri().scheme().is_some() || request.uri().authority().is_some() {
        return Err(refused("requests to a proxy are refused"));
    }
    let mut hosts = headers.get_all(HOST).iter();
    let address = METADATA_ADDRESS.to_string();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().unwrap_or_default(),
        _ => "",
    };
    let port = format!(":{METADATA_PORT}");
    let host = host.strip_suffix(&port).unwrap_or(host);
    if host != METADATA_NAME && host != address {
        return Err(refused(format!("the header Host must be {METADATA_NAME}")));
    }
    let mut marks = headers.get_all(HEADER).iter();
    match (marks.next(), marks.next()) {
        (Some(value), None) if value == HEADER_VALUE => Ok(()),
        _ => Err(refused(format!(
            "the request needs the header '{HEADER}: {HEADER_VALUE}'"
        ))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenQuery {
    audience: String,
    expires_s: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Snapshot {
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Labels {
    labels: BTreeMap<String, String>,
}

fn query<T: serde::de::DeserializeOwned>(uri: &hyper::Uri) -> Result<T, Failure> {
    let parsed = axum::extract::Query::<T>::try_from_uri(uri);
    let parsed = parsed.map_err(|error| Failure::invalid(error.body_text()))?;
    Ok(parsed.0)
}

async fn body<T: serde::de::DeserializeOwned>(body: Incoming) -> Result<T, Failure> {
    let collected = Limited::new(body, BODY_MAX).collect();
    let collected = tokio::time::timeout(BODY_TIMEOUT, collected).await;
    let bytes = collected
        .map_err(|_| Failure::new(ErrorCode::TimedOut, "the body did not arrive in time"))?
        .map_err(|_| Failure::invalid("cannot read the body, or it is too long"))?
        .to_bytes();
    let bytes = if bytes.is_empty() { &b"{}"[..] } else { &bytes };
    serde_json::from_slice(bytes).map_err(|error| Failure::invalid(error.to_string()))
}

fn reply(status: StatusCode, value: &Value) -> Result<Response, Failure> {
    let response = Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .header("cache-control", "no-store")
        .body(Body::from(value.to_string()));
    response.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
}

/// What a sandbox must have been granted before the rest of its request is read.
fn needed(method: &Method, path: &str) -> Option<Grant> {
    Some(match (method, path) {
        (&Method::POST, "/v1/snapshot") => Grant::Snapshot,
        (&Method::POST, "/v1/fork") => Grant::Fork,
        (&Method::POST, "/v1/keep-awake") => Grant::KeepAwake,
        (&Method::PUT, "/v1/labels") => Grant::Label,
        (&Method::POST, "/v1/end") => Grant::End,
        _ => return None,
    })
}

async fn answer(
    control: &Control,
    id: &SandboxId,
    request: Request<Incoming>,
) -> Result<Response, Failure> {
    check(&request)?;
    let (head, content) = request.into_parts();
    let path = head.uri.path().to_owned();
    if path != "/v1/token" {
        let NoFields {} = query(&head.uri)?;
    }
    if let Some(grant) = needed(&head.method, &path) {
        control.require_grant(id, grant).await?;
    }
    match (&head.method, path.as_str()) {
        (&Method::GET, "/v1/whoami") => {
            let me = control.who_am_i(id).await?;
            let spec = &me.record.spec;
            let grants: Vec<_> = me.identity.grants.iter().map(|g| g.as_str()).collect();
            let value = json!({
                "id": me.record.id.as_str(),
                "org": me.record.org.as_str(),
                "name": spec.name,
                "subject": me.subject,
                "image": spec.image,
                "labels": spec.labels,
                "task": me.identity.task,
                "on_behalf_of": me.identity.on_behalf_of,
                "grants": grants,
                "from_snapshot": me.record.origin.as_ref().map(|id| id.as_str().to_owned()),
            });
            reply(StatusCode::OK, &value)
        }
        (&Method::GET, "/v1/token") => {
            let asked: TokenQuery = query(&head.uri)?;
            let request = IdentityTokenRequest {
                audience: asked.audience,
                expires_s: asked.expires_s,
            };
            let made = control.my_token(id, request).await?;
            let value = json!({
                "token": made.token,
                "expires_at": cove_api::Timestamp::from(made.expires_at),
                "issuer": made.issuer,
                "subject": made.subject,
                "audience": made.audience,
            });
            reply(StatusCode::OK, &value)
        }
        (&Method::GET, "/v1/quota") => {
            let (limits, lifetime_left_s) = control.my_limits(id).await?;
            let value = json!({
                "cpu": limits.cpu,
                "memory_mb": limits.memory_mb,
                "memory_max_mb": limits.memory_max_mb,
                "disk_mb": limits.disk_mb,
                "pids": limits.pids,
                "lifetime_left_s": lifetime_left_s,
            });
            reply(StatusCode::OK, &value)
        }
        (&Method::POST, "/v1/snapshot") => {
            let Snapshot { name } = body(content).await?;
            let made = control.snapshot_myself(id, name).await?;
            reply(StatusCode::CREATED, &json!({ "id": made.as_str() }))
        }
        (&Method::POST, "/v1/fork") => {
            let NoFields {} = body(content).await?;
            let made = control.fork_myself(id).await?;
            reply(StatusCode::CREATED, &json!({ "id": made.as_str() }))
        }
        (&Method::POST, "/v1/keep-awake") => {
            let NoFields {} = body(content).await?;
            control.keep_myself_awake(id).await?;
            reply(StatusCode::OK, &json!({}))
        }
        (&Method::PUT, "/v1/labels") => {
            let Labels { labels } = body(content).await?;
            control.label_myself(id, labels).await?;
            reply(StatusCode::OK, &json!({}))
        }
        (&Method::POST, "/v1/end") => {
            let NoFields {} = body(content).await?;
            control.end_myself(id).await?;
            reply(StatusCode::ACCEPTED, &json!({}))
        }
        _ => Err(Failure::new(
            ErrorCode::NotFound,
            format!("there is no {} {path}", head.method),
        )
        .hint("GET /v1/whoami, /v1/token?audience=…, /v1/quota; POST /v1/snapshot, /v1/fork, /v1/keep-awake, /v1/end; PUT /v1/labels")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(headers: &[(&str, &str)], uri: &str) -> bool {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap()).is_ok()
    }

    const GOOD: [(&str, &str); 2] = [("host", "cove.internal"), ("cove-metadata", "true")];

    #[test]
    fn a_request_of_a_program_inside_passes() {
        assert!(asked(&GOOD, "/v1/whoami"));
        for host in [
            "cove.internal:16910",
            "169.254.100.100",
            "169.254.100.100:16910",
        ] {
            assert!(asked(&[("host", host), GOOD[1]], "/v1/whoami"), "{host}");
        }
    }

    #[test]
    fn what_was_passed_on_or_lured_is_refused() {
        assert!(!asked(&GOOD[..1], "/v1/whoami"), "no header");
        assert!(!asked(&GOOD[1..], "/v1/whoami"), "no host");
        for (name, value) in [
            ("x-forwarded-for", "10.0.0.1"),
            ("X-Forwarded-Host", "a"),
            ("x-forwarded-anything", ""),
            ("forwarded", "for=a"),
            ("via", "1.1 proxy"),
            ("x-real-ip", "10.0.0.1"),
            ("host", "evil.example"),
            ("cove-metadata", "true"),
        ] {
            assert!(
                !asked(&[GOOD[0], GOOD[1], (name, value)], "/v1/whoami"),
                "{name}"
            );
        }
        for host in [
            "evil.example",
            "localhost",
            "127.0.0.1",
            "cove.internal.evil.example",
            "cove.internal:8080",
            "cove.internal:80",
            "",
        ] {
            assert!(!asked(&[("host", host), GOOD[1]], "/v1/whoami"), "{host}");
        }
        assert!(!asked(&[GOOD[0], ("cove-metadata", "1")], "/v1/whoami"));
        assert!(
            !asked(&GOOD, "http://cove.internal/v1/whoami"),
            "absolute form"
        );
    }
}
