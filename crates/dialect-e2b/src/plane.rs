//! The plane: making, finding and ending sandboxes, asked with an API key.

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::{HeaderMap, StatusCode, Uri, request::Parts};
use axum::response::{IntoResponse, Response};
use cove_control::{ControlError, Principal};
use cove_dialect::Tab;
use cove_model::SandboxId;
use serde::de::DeserializeOwned;

use crate::Dialect;
use crate::naming;
use crate::refusal::{Api, Kind, Refusal};

pub mod builds;
pub mod ids;
pub mod network;
pub mod sandboxes;
pub mod settings;
pub mod shapes;
pub mod snapshots;
pub mod steps;
pub mod templates;
pub mod volumes;

const API_KEY: &str = "x-api-key";
/// Bytes of a request to the plane.
const BODY_MAX: usize = 1024 * 1024;

pub type Answer = Result<Response, Api>;

/// The holder of the API key.
pub struct Caller(pub Principal);

impl FromRequestParts<Dialect> for Caller {
    type Rejection = Api;

    async fn from_request_parts(parts: &mut Parts, dialect: &Dialect) -> Result<Self, Api> {
        let key = one(&parts.headers, API_KEY).ok_or_else(|| {
            Refusal::new(
                Kind::Unauthenticated,
                "there is no API key; set E2B_API_KEY to a key of this server",
            )
        })?;
        let principal = dialect.front.caller(&parts.extensions, key).await?;
        Ok(Self(principal))
    }
}

/// A header that is there exactly once.
pub fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    match values.next() {
        None => value.to_str().ok(),
        Some(_) => None,
    }
}

/// The sandbox a path names. What cannot be an id names none.
pub struct Which(pub SandboxId);

impl FromRequestParts<Dialect> for Which {
    type Rejection = Api;

    async fn from_request_parts(parts: &mut Parts, dialect: &Dialect) -> Result<Self, Api> {
        let named = Path::<String>::from_request_parts(parts, dialect).await;
        let text = named.map(|Path(text)| text).unwrap_or_default();
        let id = naming::meant(&text);
        Ok(Self(id.ok_or_else(|| {
            ControlError::not_found("sandbox", &text)
        })?))
    }
}

/// A JSON body, every field of it known; nothing at all is like `{}`.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Dialect> for Json<T> {
    type Rejection = Api;

    async fn from_request(request: Request, dialect: &Dialect) -> Result<Self, Api> {
        let tab = request
            .extensions()
            .get::<Tab>()
            .cloned()
            .unwrap_or_default();
        let known = async { Ok::<_, Refusal>(()) };
        let body = request.into_body();
        let held = dialect.front.whole(&tab, body, BODY_MAX, known).await?;
        let bytes: &[u8] = match held.is_empty() {
            true => b"{}",
            false => &held,
        };
        let value = serde_json::from_slice(bytes).map_err(|error| {
            Refusal::invalid(format!(
                "the body is invalid: {}",
                cove_dialect::wording::plain("", &error)
            ))
        })?;
        Ok(Self(value))
    }
}

/// The query, every field of it known.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Dialect> for Query<T> {
    type Rejection = Api;

    async fn from_request_parts(parts: &mut Parts, _: &Dialect) -> Result<Self, Api> {
        let query = parts.uri.query().unwrap_or("");
        let value = serde_urlencoded::from_str(query).map_err(|error| {
            Refusal::invalid(format!(
                "the query is invalid: {}",
                cove_dialect::wording::plain("", &error)
            ))
        })?;
        Ok(Self(value))
    }
}

/// Parts of E2B's own contract that Cove has nothing for, by how their paths begin.
const ABSENT: [(&str, &str); 8] = [
    ("/templates", "this request about templates"),
    ("/v2/templates", "this request about templates"),
    ("/v3/templates", "this request about templates"),
    ("/volumes", "this request about volumes"),
    ("/volumecontent", "this request about volumes"),
    (
        "/secrets",
        "secrets: make them with `cove secret` and create the sandbox with the native interface; this request",
    ),
    ("/sandboxes", "this request about sandboxes"),
    ("/v2/sandboxes", "this request about sandboxes"),
];

/// Everything that is no route. Only key holders learn more than that.
pub async fn elsewhere(_: Caller, uri: Uri) -> Response {
    let path = uri.path();
    let absent = ABSENT.iter().find(|(prefix, _)| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    match absent {
        Some((_, what)) => Refusal::unsupported(what).api(),
        None => {
            let shown: String = path.chars().take(128).collect();
            let message = format!("there is no route '{}'", shown.escape_debug());
            Refusal::new(Kind::NotFound, message).api()
        }
    }
}

pub fn nothing() -> Answer {
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub fn with_status(status: StatusCode, body: impl serde::Serialize) -> Answer {
    Ok((status, axum::Json(body)).into_response())
}
