//! Where the server is, seen by whoever asks: the toolbox has an absolute address.

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};
use axum::response::IntoResponse;
use cove_dialect::Front;
use serde_json::json;

use crate::MOUNT;
use crate::asking::{Caller, Names};
use crate::refusal::{Answer, Refusal};

/// The longest host and port taken from a request.
const AUTHORITY_MAX: usize = 262;

/// The server's own address as the caller dialled it.
pub struct ServerAddress(String);

impl ServerAddress {
    /// What goes before a path of the API.
    pub fn api(&self) -> String {
        format!("{}{MOUNT}", self.0)
    }

    /// What goes before a sandbox's id and a toolbox's path.
    pub fn toolbox(&self) -> String {
        format!("{}{MOUNT}/toolbox", self.0)
    }
}

impl FromRequestParts<Front> for ServerAddress {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, front: &Front) -> Result<Self, Refusal> {
        let authority = authority(&parts.headers, &parts.uri)
            .ok_or_else(|| Refusal::invalid("the request has no Host"))?;
        // A proxy that ends TLS says so; only its own caller gets what it said.
        let forwarded = parts.headers.get("x-forwarded-proto");
        let secure = front.secure || forwarded.is_some_and(|value| value == "https");
        let scheme = if secure { "https" } else { "http" };
        Ok(Self(format!("{scheme}://{authority}")))
    }
}

fn authority(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let given = match headers.get(header::HOST) {
        Some(host) => host.to_str().ok()?,
        None => uri.authority()?.as_str(),
    };
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    let fits = (1..=AUTHORITY_MAX).contains(&given.len()) && given.bytes().all(good);
    fits.then(|| given.to_owned())
}

pub async fn config(place: ServerAddress) -> Answer {
    // No analytics and no login pages: what is absent here the SDKs do without.
    Ok(axum::Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "oidc": { "issuer": "", "clientId": "", "audience": "", "provider": "" },
        "linkedAccountsEnabled": false,
        "announcements": {},
        "proxyTemplateUrl": "",
        "proxyToolboxUrl": place.toolbox(),
        "defaultSnapshot": cove_model::spec::DEFAULT_IMAGE,
        "dashboardUrl": "",
        "maxAutoArchiveInterval": 0,
        "maintananceMode": false,
        "environment": "cove",
    }))
    .into_response())
}

pub async fn toolbox(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(sandbox): Names<String>,
    place: ServerAddress,
) -> Answer {
    front.control.get_sandbox(&caller, &sandbox).await?;
    Ok(axum::Json(json!({ "url": place.toolbox() })).into_response())
}
