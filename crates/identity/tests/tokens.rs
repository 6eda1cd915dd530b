//! Tokens as a verifier sees them, with a stock library, over the life of the keys.
// A test says what it expects by failing.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;

use cove_identity::{
    Claims, CoveClaims, Issuer, KeySet, OVERLAP_S, PUBLISH_AHEAD_S, ROTATE_AFTER_S, Rotation,
};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};

const NOW: i64 = 1_800_000_000;

fn claims(now: i64) -> Claims {
    let issuer = Issuer::parse("https://cove.example").unwrap();
    Claims {
        iss: issuer.url().into(),
        sub: issuer.subject("org_a", "sbx_b"),
        aud: "vault".into(),
        iat: now,
        nbf: now,
        exp: now + 300,
        jti: "j".into(),
        cove: CoveClaims::default(),
    }
}

fn signed(keys: &KeySet, now: i64) -> String {
    keys.signing(now).unwrap().sign(&claims(now)).unwrap()
}

/// As a stock verifier with this list of keys does it. The clock is left out: it is the machine's.
fn accepts(keys: &KeySet, token: &str, audience: &str, issuer: &str) -> bool {
    let kid = decode_header(token).unwrap().kid.unwrap();
    let Some(jwk) = keys.jwks().keys.into_iter().find(|jwk| jwk.kid == kid) else {
        return false;
    };
    let key = DecodingKey::from_rsa_components(&jwk.n, &jwk.e).unwrap();
    let mut validation = Validation::new(Algorithm::RS256);
    validation.validate_exp = false;
    validation.set_audience(&[audience]);
    validation.set_issuer(&[issuer]);
    decode::<Claims>(token, &key, &validation).is_ok()
}

const ISSUER: &str = "https://cove.example";

#[test]
fn a_stock_library_accepts_a_token_for_its_audience_and_no_other() {
    let mut keys = KeySet::default();
    keys.tend(NOW).unwrap();
    let token = signed(&keys, NOW);
    assert!(accepts(&keys, &token, "vault", ISSUER));
    assert!(!accepts(&keys, &token, "other", ISSUER));
    assert!(!accepts(&keys, &token, "vault", "https://evil.example"));
    // Another claim under the same signature.
    let parts: Vec<&str> = token.split('.').collect();
    let other = claims(NOW + 1);
    let forged = keys.signing(NOW).unwrap().sign(&other).unwrap();
    let forged: Vec<&str> = forged.split('.').collect();
    let mixed = format!("{}.{}.{}", parts[0], forged[1], parts[2]);
    assert!(!accepts(&keys, &mixed, "vault", ISSUER));
}

#[test]
fn keys_are_published_before_they_sign_and_after_they_signed() {
    let mut keys = KeySet::default();
    keys.tend(NOW).unwrap();
    let first = keys.signing(NOW).unwrap().kid().to_owned();
    assert!(!keys.is_due(NOW + PUBLISH_AHEAD_S));

    let later = NOW + ROTATE_AFTER_S;
    assert!(keys.is_due(later));
    keys.tend(later).unwrap();
    assert_eq!(keys.jwks().keys.len(), 2);
    assert_eq!(keys.signing(later).unwrap().kid(), first);
    let old = signed(&keys, later + PUBLISH_AHEAD_S - 1);

    let switched = later + PUBLISH_AHEAD_S;
    assert_ne!(keys.signing(switched).unwrap().kid(), first);
    // The last token of the old key is good until its end.
    keys.tend(switched + OVERLAP_S).unwrap();
    assert!(accepts(&keys, &old, "vault", ISSUER));
    keys.tend(switched + OVERLAP_S + 1).unwrap();
    assert!(!accepts(&keys, &old, "vault", ISSUER));
    assert_eq!(keys.jwks().keys.len(), 1);

    // A clock that goes back to before every key still has one that signs.
    assert!(keys.signing(0).is_some());
}

#[test]
fn keys_that_others_know_are_withdrawn_at_once() {
    let mut keys = KeySet::default();
    keys.tend(NOW).unwrap();
    let old = signed(&keys, NOW);
    keys.rotate(NOW, Rotation::AtOnce).unwrap();
    assert!(!accepts(&keys, &old, "vault", ISSUER));
    assert!(accepts(&keys, &signed(&keys, NOW), "vault", ISSUER));
}

#[test]
fn keys_are_kept_in_a_file_for_the_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("identity.keys");
    assert!(KeySet::load(&path).unwrap().signing(NOW).is_none());
    let mut keys = KeySet::default();
    keys.tend(NOW).unwrap();
    keys.save(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = KeySet::load(&path).unwrap();
    assert_eq!(again.jwks(), keys.jwks());
    assert!(accepts(&keys, &signed(&again, NOW), "vault", ISSUER));

    // Nothing private is in what is shown.
    let shown = serde_json::to_string(&keys.jwks()).unwrap();
    assert!(!shown.contains("\"d\"") && !format!("{keys:?}").contains("pkcs8"));

    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let refused = KeySet::load(&path).unwrap_err().to_string();
    assert!(refused.contains("0600"), "{refused}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&path, "{}").unwrap();
    KeySet::load(&path).unwrap_err();
}
