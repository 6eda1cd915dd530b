//! From requests to typed values: who asks, the query, the body.

use axum::extract::{FromRequest, FromRequestParts, Path, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use cove_control::{Principal, Scope};
use cove_dialect::{Front, Seen, Tab};
use serde::de::DeserializeOwned;

use crate::refusal::Refusal;

/// Bytes of a JSON body. Code to run travels in one.
const BODY_MAX: usize = 8 * 1024 * 1024;
/// What the routes call the sandbox they are about.
const SANDBOX: &str = "sandbox";

/// The authenticated caller.
pub struct Caller(pub Principal);

impl FromRequestParts<Front> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, front: &Front) -> Result<Self, Refusal> {
        let token = bearer(&parts.headers).ok_or_else(|| {
            let message = "send the API key as `Authorization: Bearer <key>`; the SDKs take it from DAYTONA_API_KEY";
            Refusal::new(401, "UNAUTHORIZED", message)
        })?;
        Ok(Self(front.caller(&parts.extensions, token).await?))
    }
}

/// The token, where there is exactly one.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    match value.to_str().ok()?.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim()),
        _ => None,
    }
}

/// The query string, every field of it known.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Front> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Front) -> Result<Self, Refusal> {
        let query = parts.uri.query().unwrap_or("");
        serde_urlencoded::from_str(query)
            .map(Self)
            .map_err(|error| {
                Refusal::invalid(format!(
                    "the query is invalid: {}",
                    cove_dialect::wording::plain("", &error)
                ))
            })
    }
}

/// The names in a path. One that is not even text names nothing.
pub struct Names<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<Front> for Names<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, front: &Front) -> Result<Self, Refusal> {
        match Path::<T>::from_request_parts(parts, front).await {
            Ok(Path(names)) => Ok(Self(names)),
            Err(_) => Err(Refusal::invalid("the path is invalid")),
        }
    }
}

/// A JSON body; an absent one is an empty object.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Front> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, front: &Front) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let tab = parts.extensions.get::<Tab>().cloned().unwrap_or_default();
        let known = async {
            let seen = parts.extensions.get::<Seen>().cloned();
            let named = RawPathParams::from_request_parts(&mut parts, front).await;
            if let (Some(principal), Ok(named)) =
                (seen.as_ref().and_then(|seen| seen.0.get()), named)
            {
                let sandbox = named.iter().find(|(name, _)| *name == SANDBOX);
                let sandbox = sandbox.map(|(_, value)| value);
                front
                    .control
                    .expect(principal, Scope::Read, sandbox)
                    .await?;
            }
            Ok::<_, Refusal>(())
        };
        let held = front.whole(&tab, body, BODY_MAX, known).await?;
        let bytes: &[u8] = match held.is_empty() {
            true => b"{}",
            false => &held,
        };
        serde_json::from_slice(bytes).map(Self).map_err(|error| {
            Refusal::invalid(format!(
                "the body is invalid: {}",
                cove_dialect::wording::plain("", &error)
            ))
        })
    }
}
