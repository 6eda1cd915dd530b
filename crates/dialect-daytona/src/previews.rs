//! Links to ports inside. A port is opened to everybody only for sandboxes that were made public, and
//! when its link is asked for.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cove_control::{SandboxPatch, ShareRequest};
use cove_dialect::{Front, PreviewPlace};
use cove_model::SandboxId;
use serde::Deserialize;
use serde_json::json;

use crate::asking::{Caller, Names, Query};
use crate::convert::{self, PUBLIC};
use crate::refusal::{Answer, Refusal};
use crate::server_address::ServerAddress;

/// Where a signed link has its token; the preview proxy knows it by this name.
const TOKEN_FIELD: &str = "cove_token";
/// A standard link is good for this long.
const LINK_S: u64 = 24 * 3600;
/// Daytona's own, when nothing is said.
const SIGNED_S: u64 = 60;

fn place(front: &Front) -> Result<&PreviewPlace, Refusal> {
    front.previews.as_ref().ok_or_else(|| {
        Refusal::unsupported("this server has no previews; start it with --preview-listen ADDRESS")
    })
}

fn number(text: &str) -> Result<u16, Refusal> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| Refusal::invalid("port must be a number between 1 and 65535"))
}

fn url(place: &PreviewPlace, id: &SandboxId, port: u16) -> String {
    let scheme = if place.secure { "https" } else { "http" };
    let label = id.as_str().replace('_', "-");
    format!("{scheme}://{port}-{label}.{}", place.authority)
}

pub async fn link(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, port)): Names<(String, String)>,
) -> Answer {
    let (place, port) = (place(&front)?, number(&port)?);
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    let public = sandbox.spec.labels.contains_key(PUBLIC);
    let id = sandbox.id.as_str();
    if public {
        let request = ShareRequest {
            public: true,
            expires_s: None,
        };
        front.control.share_port(&caller, id, port, request).await?;
    }
    let request = ShareRequest {
        public: false,
        expires_s: Some(LINK_S),
    };
    // A link's token is there for public ports too: the SDKs want one.
    let token = match public {
        true => String::new(),
        false => {
            let share = front.control.share_port(&caller, id, port, request).await?;
            share.token.unwrap_or_default()
        }
    };
    let answer = json!({
        "sandboxId": sandbox.id.as_str(),
        "url": url(place, &sandbox.id, port),
        "token": token,
    });
    Ok(axum::Json(answer).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Expiry {
    expires_in_seconds: Option<u64>,
}

pub async fn signed(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, port)): Names<(String, String)>,
    Query(query): Query<Expiry>,
) -> Answer {
    let (place, port) = (place(&front)?, number(&port)?);
    let request = ShareRequest {
        public: false,
        expires_s: Some(query.expires_in_seconds.unwrap_or(SIGNED_S)),
    };
    let share = front
        .control
        .share_port(&caller, &id, port, request)
        .await?;
    let token = share.token.unwrap_or_default();
    let url = url(place, &share.sandbox, port);
    let answer = json!({
        "sandboxId": share.sandbox.as_str(),
        "port": port,
        "token": token,
        "url": format!("{url}/?{TOKEN_FIELD}={token}"),
    });
    Ok(axum::Json(answer).into_response())
}

/// Links carry all there is to know of them, so one cannot be ended by itself: all of its port's are.
pub async fn expire(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, port, _)): Names<(String, String, String)>,
) -> Answer {
    front
        .control
        .unshare_port(&caller, &id, number(&port)?)
        .await?;
    Ok(StatusCode::OK.into_response())
}

pub async fn publish(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, public)): Names<(String, String)>,
    server: ServerAddress,
) -> Answer {
    let public = match public.as_str() {
        "true" => true,
        "false" => false,
        _ => return Err(Refusal::invalid("public must be true or false")),
    };
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    let id = sandbox.id.as_str();
    let mut labels = sandbox.spec.labels.clone();
    match public {
        true => labels.insert(PUBLIC.into(), "1".into()),
        false => labels.remove(PUBLIC),
    };
    let patch = SandboxPatch {
        labels: Some(labels),
        expected_generation: Some(sandbox.generation),
        ..SandboxPatch::default()
    };
    let changed = front.control.update_sandbox(&caller, id, patch).await?;
    if !public {
        for port in front.control.public_ports(&sandbox.id).await? {
            front.control.unshare_port(&caller, id, port).await?;
        }
    }
    Ok(axum::Json(convert::sandbox(changed, server.toolbox())).into_response())
}
