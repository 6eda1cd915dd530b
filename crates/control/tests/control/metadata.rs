//! What sandboxes do to themselves by the metadata endpoint, and what they cannot.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cove_control::{ControlConfig, ErrorCode, IdentityTokenRequest, Sandbox, SandboxPatch};
use cove_model::{Grant, IdentitySpec, SandboxId};
use serde_json::Value;

use crate::support::{Plane, idle, quick};

fn label(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

async fn made(plane: &Plane, grants: &[Grant], life: Option<u64>) -> Sandbox {
    let mut spec = idle("agent", None, None, life);
    spec.labels = BTreeMap::from([label("team", "blue"), label("daytona:public", "true")]);
    spec.identity = Some(IdentitySpec {
        grants: grants.to_vec(),
        ..IdentitySpec::default()
    });
    plane.create(&plane.root, spec).await.unwrap().sandbox
}

fn vault() -> IdentityTokenRequest {
    IdentityTokenRequest {
        audience: "vault".into(),
        expires_s: None,
    }
}

async fn claims(plane: &Plane, id: &SandboxId) -> Value {
    let token = plane.control.my_token(id, vault()).await.unwrap().token;
    let claims = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
}

#[tokio::test]
async fn a_copy_that_a_sandbox_makes_is_granted_nothing_and_ends_no_later() {
    let plane = Plane::new().await;
    let parent = made(&plane, &[Grant::Fork, Grant::Label], Some(600)).await;
    let control = &plane.control;
    plane.clock.advance(Duration::from_secs(400));
    let (_, left) = control.my_limits(&parent.id).await.unwrap();
    assert_eq!(left, Some(200));
    let child = control.fork_myself(&parent.id).await.unwrap();
    let child = control.who_am_i(&child).await.unwrap();
    assert!(child.identity.grants.is_empty(), "{:?}", child.identity);
    let life = child.record.spec.lifecycle.max_lifetime_s;
    assert!(life.is_some_and(|left| left <= 200), "{life:?}");
    // Labels that the parent may have set itself would be signed for the child.
    assert_eq!(
        child.record.spec.labels,
        BTreeMap::from([label("daytona:public", "true")])
    );
    let refused = control.fork_myself(&child.record.id).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    // With its time over it makes none any more.
    plane.clock.advance(Duration::from_secs(300));
    let refused = control.fork_myself(&parent.id).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
}

#[tokio::test]
async fn a_sandbox_neither_touches_reserved_labels_nor_has_its_own_signed() {
    let plane = Plane::new().await;
    let control = &plane.control;
    let sandbox = made(&plane, &[Grant::Label], None).await;
    let own = BTreeMap::from([label("role", "admin")]);
    control.label_myself(&sandbox.id, own).await.unwrap();
    let now = control.who_am_i(&sandbox.id).await.unwrap();
    let expected = BTreeMap::from([label("role", "admin"), label("daytona:public", "true")]);
    assert_eq!(now.record.spec.labels, expected);
    let reserved = BTreeMap::from([label("daytona:public", "false")]);
    let refused = control.label_myself(&sandbox.id, reserved).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidRequest);
    let said = claims(&plane, &sandbox.id).await;
    assert!(said["cove"]["labels"].is_null(), "{said}");
    assert_eq!(said["cove"]["labels_omitted"], true);
    // Those of a sandbox that cannot change them are its owner's words.
    let unnamed = SandboxPatch {
        name: Some(None),
        ..SandboxPatch::default()
    };
    let renamed = control.update_sandbox(&plane.root, sandbox.id.as_str(), unnamed);
    renamed.await.unwrap();
    let fixed = made(&plane, &[], None).await;
    let said = claims(&plane, &fixed.id).await;
    assert_eq!(said["cove"]["labels"]["team"], "blue");
}

#[tokio::test]
async fn changes_are_limited_and_what_was_not_granted_costs_none() {
    let plane = Plane::new().await;
    let control = &plane.control;
    let sandbox = made(&plane, &[Grant::Label, Grant::KeepAwake], None).await;
    for _ in 0..20 {
        let refused = control.snapshot_myself(&sandbox.id, None).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::Forbidden);
    }
    let mut codes = Vec::new();
    for _ in 0..20 {
        let done = control.label_myself(&sandbox.id, BTreeMap::new()).await;
        codes.extend(done.err().map(|error| error.code));
    }
    assert_eq!(codes, vec![ErrorCode::RateLimited; 15]);
    control.keep_myself_awake(&sandbox.id).await.unwrap();
    plane.clock.advance(Duration::from_secs(1));
    let again = control.label_myself(&sandbox.id, BTreeMap::new()).await;
    again.unwrap();
}

#[tokio::test]
async fn the_list_of_keys_makes_none_and_a_failure_is_not_repeated_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("later");
    let mut config: ControlConfig = quick();
    config.identity.key_file = Some(place.join("identity.keys"));
    let plane = Plane::with(config).await;
    let control = &plane.control;
    let sandbox = made(&plane, &[], None).await;
    std::fs::create_dir(&place).unwrap();
    assert!(control.identity_keys().await.unwrap().keys.is_empty());
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    std::fs::remove_dir(&place).unwrap();
    control.my_token(&sandbox.id, vault()).await.unwrap_err();
    // It would succeed now, and is not tried.
    std::fs::create_dir(&place).unwrap();
    control.my_token(&sandbox.id, vault()).await.unwrap_err();
    assert!(control.identity_keys().await.unwrap().keys.is_empty());
    plane.clock.advance(Duration::from_secs(61));
    control.my_token(&sandbox.id, vault()).await.unwrap();
    assert_eq!(control.identity_keys().await.unwrap().keys.len(), 1);
}
