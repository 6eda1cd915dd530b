//! Links to one file of a sandbox, signed by whoever holds the sandbox's signing key.
//!
//! The key is a token of the control plane for this purpose, mixed with a number that rotating it changes. It ends with
//! the API key that asked for it, and so do all links.

use axum::extract::{FromRequestParts, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cove_control::{Principal, SandboxPatch, Scope};
use cove_dialect::Front;
use cove_model::SandboxId;
use hmac::{Hmac, Mac};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::asking::{Caller, Names, Query};
use crate::refusal::{Answer, Refusal};

const PURPOSE: &str = "daytona-files";
/// How often the key was rotated.
const ROTATIONS: &str = "daytona:file-links";
const VERSION: &str = "v1_";

/// The query of a download or an upload, with a key or by a link.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileAt {
    pub path: String,
    #[serde(default)]
    expires: Option<i64>,
    #[serde(default)]
    signature: Option<String>,
}

/// What the SDKs sign with.
fn signing_key(token: &str, rotations: &str) -> String {
    let hash = Sha256::digest(format!("{token}\n{rotations}"));
    URL_SAFE_NO_PAD.encode(hash)
}

fn is_signed(key: &str, method: &str, at: &FileAt, expires: i64, signature: &[u8]) -> bool {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key.as_bytes()) else {
        return false;
    };
    mac.update(format!("v1:files:{method}:{}:{expires}", at.path).as_bytes());
    mac.verify_slice(signature).is_ok()
}

fn not_valid() -> Refusal {
    Refusal::new(
        401,
        "UNAUTHORIZED",
        "the link is not valid or has expired; make a new one",
    )
}

/// Who reads or writes one file: the holder of a key, or of a link to this file.
pub struct FileCaller(pub Principal);

impl FromRequestParts<Front> for FileCaller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, front: &Front) -> Result<Self, Refusal> {
        if parts.headers.contains_key(header::AUTHORIZATION) {
            let Caller(caller) = Caller::from_request_parts(parts, front).await?;
            return Ok(Self(caller));
        }
        let Query(at) = Query::<FileAt>::from_request_parts(parts, front).await?;
        let (Some(signature), Some(expires)) = (&at.signature, at.expires) else {
            // Says how to send a key.
            let Caller(caller) = Caller::from_request_parts(parts, front).await?;
            return Ok(Self(caller));
        };
        let Names(id) = Names::<String>::from_request_parts(parts, front).await?;
        let id: SandboxId = id.parse().map_err(|_| not_valid())?;
        let signature = signature.strip_prefix(VERSION).ok_or_else(not_valid)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| not_valid())?;
        let is_over = expires != 0 && expires <= OffsetDateTime::now_utc().unix_timestamp();
        if is_over || expires < 0 {
            return Err(not_valid());
        }
        let control = &front.control;
        let rotations = control.signed_label(&id, ROTATIONS).await?;
        let rotations = rotations.unwrap_or_default();
        let method = parts.method.as_str();
        let fits = |token: &str| {
            let key = signing_key(token, &rotations);
            is_signed(&key, method, &at, expires, &signature)
        };
        let token = control.token_at(&id, PURPOSE, fits).await?;
        let token = token.ok_or_else(not_valid)?;
        let origin = Front::origin(&parts.extensions);
        let holder = control.token_holder(&id, &token, PURPOSE, origin).await?;
        front.note(&parts.extensions, &holder)?;
        Ok(Self(holder))
    }
}

async fn key_of(front: &Front, caller: &Principal, which: &str) -> Result<String, Refusal> {
    let sandbox = front.control.get_sandbox(caller, which).await?;
    let token = front.control.access_token(caller, &sandbox.id, PURPOSE)?;
    let rotations = sandbox.spec.labels.get(ROTATIONS);
    Ok(signing_key(&token, rotations.map_or("", String::as_str)))
}

pub async fn key(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    Ok(axum::Json(key_of(&front, &caller, &id).await?).into_response())
}

/// Ends every link to files of the sandbox.
pub async fn rotate(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    front
        .control
        .expect(&caller, Scope::Manage, Some(sandbox.id.as_str()))
        .await?;
    let mut labels = sandbox.spec.labels.clone();
    labels.insert(ROTATIONS.into(), format!("{:016x}", rand::random::<u64>()));
    let patch = SandboxPatch {
        labels: Some(labels),
        expected_generation: Some(sandbox.generation),
        ..SandboxPatch::default()
    };
    let id = sandbox.id.as_str();
    front.control.update_sandbox(&caller, id, patch).await?;
    Ok(axum::Json(key_of(&front, &caller, id).await?).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_good_for_its_own_method_path_and_time() {
        let at = |path: &str| FileAt {
            path: path.to_owned(),
            expires: None,
            signature: None,
        };
        let mut mac = Hmac::<Sha256>::new_from_slice(b"key").unwrap();
        mac.update(b"v1:files:GET:a/b:7");
        let signature = mac.finalize().into_bytes();
        assert!(is_signed("key", "GET", &at("a/b"), 7, &signature));
        assert!(!is_signed("other", "GET", &at("a/b"), 7, &signature));
        assert!(!is_signed("key", "POST", &at("a/b"), 7, &signature));
        assert!(!is_signed("key", "GET", &at("a/c"), 7, &signature));
        assert!(!is_signed("key", "GET", &at("a/b"), 8, &signature));
        assert!(!is_signed("key", "GET", &at("a/b"), 7, &signature[..31]));
        assert_ne!(signing_key("t", ""), signing_key("t", "1"));
    }
}
