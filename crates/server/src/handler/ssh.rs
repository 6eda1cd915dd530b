//! Ways in over SSH: tokens, public keys, and where the gateway is.

use axum::extract::State;
use axum::http::StatusCode;
use cove_api::ssh::{AddSshKey, CreateSshToken, SshAccess, SshHost, SshKey};
use cove_api::{ErrorCode, NoQuery, PageQuery, Timestamp};
use cove_control::SshTokenRequest;
use cove_model::KeyId;
use cove_model::spec::SECONDS_MAX;
use time::{Duration, OffsetDateTime};

use super::{Answer, nothing, ok, page_request, with_status};
use crate::config::SshPlace;
use crate::convert;
use crate::extract::{Caller, Json, JsonOr, Names, Query};
use crate::failure::Failure;
use crate::state::App;

/// The port clients take when none is given.
const USUAL_PORT: u16 = 22;

impl SshPlace {
    fn command(&self, user: &str) -> String {
        match self.port {
            USUAL_PORT => format!("ssh {user}@{}", self.host),
            port => format!("ssh -p {port} {user}@{}", self.host),
        }
    }

    fn known_hosts(&self) -> String {
        match self.port {
            USUAL_PORT => format!("{} {}", self.host, self.host_key),
            port => format!("[{}]:{port} {}", self.host, self.host_key),
        }
    }
}

pub async fn host(
    State(app): State<App>,
    _caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let Some(place) = &app.config.ssh else {
        return ok(SshHost::default());
    };
    ok(SshHost {
        available: true,
        known_hosts: Some(place.known_hosts()),
        host: Some(place.host.clone()),
        port: Some(place.port),
        host_key: Some(place.host_key.clone()),
        fingerprint: Some(place.fingerprint.clone()),
    })
}

pub async fn token(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    JsonOr(request): JsonOr<CreateSshToken>,
) -> Answer {
    let place = app.config.ssh.as_ref().ok_or_else(|| {
        Failure::new(ErrorCode::Unsupported, "this server has no SSH gateway")
            .hint("start it with --ssh-listen ADDRESS")
    })?;
    let request = SshTokenRequest {
        expires_s: request.expires_s,
        login_s: request.login_s,
    };
    let made = app
        .control
        .ssh_token(&caller.principal, &id, request)
        .await?;
    let user = made.sandbox.to_string();
    let access = SshAccess {
        command: place.command(&user),
        known_hosts: place.known_hosts(),
        token: made.token,
        expires_at: made.expires_at.into(),
        user,
        host: place.host.clone(),
        port: place.port,
        host_key: place.host_key.clone(),
        fingerprint: place.fingerprint.clone(),
    };
    with_status(StatusCode::CREATED, access)
}

pub async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
) -> Answer {
    app.control
        .revoke_ssh_tokens(&caller.principal, &id)
        .await?;
    nothing()
}

pub async fn list_keys(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Answer {
    let page = page_request(query)?;
    let keys = app.control.list_ssh_keys(&caller.principal, &page).await?;
    ok(convert::page(keys, shown))
}

pub async fn add_key(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<AddSshKey>,
) -> Answer {
    let expires_at = match body.expires_in_s {
        None => None,
        Some(seconds) if (1..=SECONDS_MAX).contains(&seconds) => {
            Some(OffsetDateTime::now_utc() + Duration::seconds(seconds.cast_signed()))
        }
        Some(_) => {
            return Err(Failure::invalid(format!(
                "expires_in_s must be between 1 and {SECONDS_MAX}"
            )));
        }
    };
    let request = cove_control::AddSshKey {
        name: body.name,
        public_key: body.public_key,
        expires_at,
    };
    let key = app.control.add_ssh_key(&caller.principal, request).await?;
    with_status(StatusCode::CREATED, shown(key))
}

pub async fn remove_key(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(key): Names<String>,
) -> Answer {
    let id: KeyId = key
        .parse()
        .map_err(|_| cove_control::ControlError::not_found("SSH key", &key))?;
    app.control.remove_ssh_key(&caller.principal, &id).await?;
    nothing()
}

fn shown(key: cove_control::SshKey) -> SshKey {
    SshKey {
        id: key.id.to_string(),
        name: key.name,
        public_key: key.public_key,
        fingerprint: key.fingerprint,
        created_at: key.created_at.into(),
        expires_at: key.expires_at.map(Timestamp),
    }
}
