//! Identity tokens of sandboxes, and the issuer's two public documents.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use cove_api::NoQuery;
use cove_api::identity::{
    CreateIdentityToken, IdentityKey, IdentityKeys, IdentityToken, OpenIdConfiguration,
    RotateIdentityKeys,
};
use cove_control::{IdentityTokenRequest, Jwks, Rotation};

use super::{Answer, ok, with_status};
use crate::extract::{Caller, Json, JsonOr, Names, Query};
use crate::state::App;

/// How long verifiers may keep the documents. Much less than a key is published before it signs.
const KEPT: &str = "public, max-age=300";

pub async fn token(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(id): Names<String>,
    Json(body): Json<CreateIdentityToken>,
) -> Answer {
    let request = IdentityTokenRequest {
        audience: body.audience,
        expires_s: body.expires_s,
    };
    let made = app
        .control
        .identity_token(&caller.principal, &id, request)
        .await?;
    let token = IdentityToken {
        token: made.token,
        expires_at: made.expires_at.into(),
        issuer: made.issuer,
        subject: made.subject,
        audience: made.audience,
    };
    with_status(StatusCode::CREATED, token)
}

pub async fn rotate(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    JsonOr(body): JsonOr<RotateIdentityKeys>,
) -> Answer {
    let how = match body.at_once {
        true => Rotation::AtOnce,
        false => Rotation::Overlapping,
    };
    let keys = app
        .control
        .rotate_identity_keys(&caller.principal, how)
        .await?;
    ok(shown(keys))
}

pub async fn discovery(State(app): State<App>, Query(NoQuery {}): Query<NoQuery>) -> Answer {
    let found = app.control.identity_discovery();
    kept(OpenIdConfiguration {
        issuer: found.issuer,
        jwks_uri: found.jwks_uri,
        response_types_supported: found.response_types_supported,
        subject_types_supported: found.subject_types_supported,
        id_token_signing_alg_values_supported: found.id_token_signing_alg_values_supported,
        claims_supported: found.claims_supported,
    })
}

pub async fn keys(State(app): State<App>, Query(NoQuery {}): Query<NoQuery>) -> Answer {
    kept(shown(app.control.identity_keys().await?))
}

fn kept(document: impl serde::Serialize) -> Answer {
    let mut answer = ok(document)?;
    let kept = HeaderValue::from_static(KEPT);
    answer.headers_mut().insert(header::CACHE_CONTROL, kept);
    Ok(answer)
}

fn shown(keys: Jwks) -> IdentityKeys {
    let keys = keys.keys.into_iter().map(|key| IdentityKey {
        kty: key.kty,
        usage: key.usage,
        alg: key.alg,
        kid: key.kid,
        n: key.n,
        e: key.e,
    });
    IdentityKeys {
        keys: keys.collect(),
    }
}
