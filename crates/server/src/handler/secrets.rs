//! Secrets: what goes in and what is known of them, never what they are.

use axum::extract::State;
use axum::http::StatusCode;
use cove_api::secret::{RotatedSecretKeys, Secret, SecretUser, SetSecret};
use cove_api::{NoQuery, Page, PageQuery, Timestamp};
use cove_control::Zeroizing;
use cove_model::secret::{SecretBinding, SecretHost};

use super::{Answer, nothing, ok, page_request, with_status};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query};
use crate::failure::Failure;
use crate::state::App;

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Answer {
    let page = page_request(query)?;
    let secrets = app.control.list_secrets(&caller.principal, &page).await?;
    ok(convert::page(secrets, shown))
}

pub async fn set(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<SetSecret>,
) -> Answer {
    let value = Zeroizing::new(body.value);
    let invalid = |error: cove_model::SpecError| Failure::invalid(error.to_string());
    let hosts = body.hosts.iter().map(|text| text.parse::<SecretHost>());
    let binding = SecretBinding {
        hosts: hosts.collect::<Result<_, _>>().map_err(invalid)?,
        usage: body.usage.parse().map_err(invalid)?,
        ask: body.ask,
    };
    let request = cove_control::SetSecret {
        name: body.name,
        value,
        binding,
    };
    let secret = app.control.set_secret(&caller.principal, request).await?;
    with_status(StatusCode::CREATED, shown(secret))
}

pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(name): Names<String>,
) -> Answer {
    app.control.remove_secret(&caller.principal, &name).await?;
    nothing()
}

pub async fn uses(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(name): Names<String>,
) -> Answer {
    let uses = app.control.secret_uses(&caller.principal, &name).await?;
    let user = |used: cove_control::SecretUsage| SecretUser {
        sandbox: used.sandbox.to_string(),
        uses: used.count,
        last_used_at: used.last_used_at.into(),
    };
    ok(Page {
        items: uses.into_iter().map(user).collect(),
        next_cursor: None,
    })
}

pub async fn rotate(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let organisations = app.control.rotate_secret_keys(&caller.principal).await?;
    ok(RotatedSecretKeys { organisations })
}

fn shown(secret: cove_control::SecretRecord) -> Secret {
    Secret {
        id: secret.id.to_string(),
        name: secret.name,
        version: secret.version,
        hosts: secret
            .binding
            .hosts
            .iter()
            .map(ToString::to_string)
            .collect(),
        usage: secret.binding.usage.to_string(),
        ask: secret.binding.ask,
        created_at: secret.created_at.into(),
        updated_at: secret.updated_at.into(),
        last_used_at: secret.last_used_at.map(Timestamp),
        uses: secret.uses,
    }
}
