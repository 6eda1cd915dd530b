//! Ways in over SSH. Daytona's tokens stand in the place of the user name: `ssh TOKEN@HOST`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use cove_control::SshTokenRequest;
use cove_dialect::Front;
use serde::Deserialize;
use serde_json::json;
use time::OffsetDateTime;

use crate::asking::{Caller, Names, Query};
use crate::convert::{self, time_text};
use crate::refusal::{Answer, Refusal};
use crate::server_address::ServerAddress;

/// Where the Python SDK puts the token to revoke.
const MISPLACED: &str = "x-daytona-organization-id";
const MINUTES_DEFAULT: u64 = 60;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Expiry {
    expires_in_minutes: Option<u64>,
}

pub async fn create(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Expiry>,
) -> Answer {
    let place = front.ssh.as_ref().ok_or_else(|| {
        Refusal::unsupported("this server has no SSH gateway; start it with --ssh-listen ADDRESS")
    })?;
    let minutes = query.expires_in_minutes.unwrap_or(MINUTES_DEFAULT);
    let request = SshTokenRequest {
        expires_s: Some(minutes.saturating_mul(60)),
        login_s: None,
    };
    let made = front.control.ssh_token(&caller, &id, request).await?;
    let now = time_text(OffsetDateTime::now_utc());
    // The signature alone: it tells one token from another and opens nothing.
    let name = made.token.rsplit('.').next().unwrap_or_default();
    let answer = json!({
        "id": name.chars().take(16).collect::<String>(),
        "sandboxId": made.sandbox.as_str(),
        "sshCommand": place.command(&made.token),
        "expiresAt": time_text(made.expires_at),
        "createdAt": now,
        "updatedAt": now,
        "token": made.token,
    });
    Ok(axum::Json(answer).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validate {
    token: String,
}

pub async fn validate(
    State(front): State<Front>,
    Caller(caller): Caller,
    Query(query): Query<Validate>,
) -> Answer {
    let found = front.control.ssh_token_sandbox(&caller, &query.token);
    let found = found.await?;
    let answer = json!({
        "valid": found.is_some(),
        "sandboxId": found.as_ref().map_or("", |id| id.as_str()),
    });
    Ok(axum::Json(answer).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Revoke {
    token: Option<String>,
}

/// Tokens carry all there is to know of them, so one cannot be ended by itself: all of its sandbox's are. One of
/// another sandbox ends nothing.
pub async fn revoke(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<Revoke>,
    headers: HeaderMap,
    place: ServerAddress,
) -> Answer {
    let control = &front.control;
    let sandbox = control.get_sandbox(&caller, &id).await?;
    let misplaced = headers.get(MISPLACED).and_then(|value| value.to_str().ok());
    let misplaced = misplaced.filter(|value| *value != caller.org.as_str());
    let named = query.token.as_deref().or(misplaced);
    let of = named.and_then(|token| token.split('.').next());
    if of.is_some_and(|of| of != sandbox.id.as_str()) {
        return Err(Refusal::new(
            404,
            "NOT_FOUND",
            "the sandbox has no such token",
        ));
    }
    let id = sandbox.id.as_str();
    control.revoke_ssh_tokens(&caller, id).await?;
    Ok(axum::Json(convert::sandbox(sandbox, place.toolbox())).into_response())
}
