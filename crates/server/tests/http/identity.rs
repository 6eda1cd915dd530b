//! Identity tokens over the API: who may have one, for whom, and what checks them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cove_api::identity::{CreateIdentityToken, IdentityToken, RotateIdentityKeys};
use cove_api::tenancy::{CreateKey, Scope};
use cove_client::Outgoing;
use serde_json::{Value, json};

use super::harness::{Server, refused};

fn audience(audience: &str) -> CreateIdentityToken {
    CreateIdentityToken {
        audience: audience.into(),
        expires_s: None,
    }
}

/// Header and claims, unchecked; what checks them is in `crates/identity` and `scripts/test-identity`.
fn read(token: &IdentityToken) -> (Value, Value) {
    let part = |part: &str| {
        let bytes = URL_SAFE_NO_PAD.decode(part).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    };
    let parts: Vec<&str> = token.token.split('.').collect();
    assert_eq!(parts.len(), 3);
    (part(parts[0]), part(parts[1]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_says_which_sandbox_it_is_and_for_whom() {
    let server = Server::bare().await;
    let sandbox = server.sandbox("box").await;
    let made = server
        .client
        .identity_token("box", &audience("vault"))
        .await;
    let made = made.unwrap();
    let (header, claims) = read(&made);
    let keys = server.client_with(None).identity_keys().await.unwrap();
    assert_eq!(header["alg"], "RS256");
    assert_eq!(header["kid"], keys.keys[0].kid);
    let issuer = server.client_with(None).identity_issuer().await.unwrap();
    assert_eq!(claims["iss"], issuer.issuer);
    assert_eq!(
        issuer.jwks_uri,
        format!("{}/.well-known/jwks.json", issuer.issuer)
    );
    assert_eq!(claims["aud"], "vault");
    let org = claims["cove"]["org"].as_str().unwrap();
    let subject = format!("spiffe://localhost/org/{org}/sandbox/{}", sandbox.id);
    assert_eq!(claims["sub"], subject);
    assert_eq!(made.subject, subject);
    assert_eq!(claims["cove"]["sandbox"], sandbox.id);
    assert_eq!(claims["cove"]["name"], "box");
    let life = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert_eq!(life, 300);
    // No two are alike.
    let again = server
        .client
        .identity_token("box", &audience("vault"))
        .await;
    assert_ne!(read(&again.unwrap()).1["jti"], claims["jti"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn audiences_and_lifetimes_that_are_none_are_refused() {
    let server = Server::bare().await;
    server.sandbox("box").await;
    for bad in ["", "a b", "a\tb", "ä", &"a".repeat(513)] {
        let (status, _) = refused(server.client.identity_token("box", &audience(bad)).await);
        assert_eq!(status, 422, "{bad:?}");
    }
    for expires_s in [0, 901, u64::MAX] {
        let create = CreateIdentityToken {
            audience: "vault".into(),
            expires_s: Some(expires_s),
        };
        let (status, _) = refused(server.client.identity_token("box", &create).await);
        assert_eq!(status, 422, "{expires_s}");
    }
    // Several audiences, claims of the caller's choice and misspelt fields are no requests at all.
    for body in [
        json!({"audience": ["vault", "other"]}),
        json!({"audience": "vault", "sub": "spiffe://localhost/org/other"}),
        json!({"audience": "vault", "expires": 60}),
        json!({}),
    ] {
        let sent = server.client.send(
            http::Method::POST,
            "/v1/sandboxes/box/identity",
            &[(http::header::CONTENT_TYPE, "application/json")],
            Outgoing::json(&body).unwrap(),
        );
        let status = sent.await.unwrap().status().as_u16();
        assert!((400..500).contains(&status), "{body}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_for_whoever_may_work_in_the_sandbox() {
    let server = Server::bare().await;
    server.sandbox("box").await;
    let (_, stranger) = server.tenant("others").await;
    let (status, error) = refused(stranger.identity_token("box", &audience("vault")).await);
    assert_eq!((status, error.code.as_str()), (404, "not_found"));
    for (scope, allowed) in [(Scope::Read, false), (Scope::Use, true)] {
        let key = CreateKey {
            name: "narrow".into(),
            scopes: vec![scope],
            expires_in_s: None,
            org: None,
            sandbox: None,
        };
        let key = server.client.create_key(&key).await.unwrap();
        let client = server.client_with(Some(&key.token));
        let made = client.identity_token("box", &audience("vault")).await;
        match allowed {
            true => drop(made.unwrap()),
            false => assert_eq!(refused(made).0, 403),
        }
        // Keys are the operator's.
        let rotate = RotateIdentityKeys::default();
        let (status, _) = refused(client.rotate_identity_keys(&rotate).await);
        assert_eq!(status, 403);
    }
    let rotate = RotateIdentityKeys::default();
    assert_eq!(refused(stranger.rotate_identity_keys(&rotate).await).0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_is_published_first_and_a_known_one_withdrawn() {
    let server = Server::bare().await;
    server.sandbox("box").await;
    let before = server
        .client
        .identity_token("box", &audience("vault"))
        .await;
    let old = read(&before.unwrap()).0["kid"].clone();
    let overlapping = RotateIdentityKeys { at_once: false };
    let keys = server
        .client
        .rotate_identity_keys(&overlapping)
        .await
        .unwrap();
    assert_eq!(keys.keys.len(), 2);
    let after = server
        .client
        .identity_token("box", &audience("vault"))
        .await;
    assert_eq!(read(&after.unwrap()).0["kid"], old);
    let at_once = RotateIdentityKeys { at_once: true };
    let keys = server.client.rotate_identity_keys(&at_once).await.unwrap();
    assert_eq!(keys.keys.len(), 1);
    assert_ne!(keys.keys[0].kid, old);
    let after = server
        .client
        .identity_token("box", &audience("vault"))
        .await;
    assert_eq!(read(&after.unwrap()).0["kid"], keys.keys[0].kid);
    // Nothing private is ever shown.
    let shown = serde_json::to_value(server.client.identity_keys().await.unwrap()).unwrap();
    for key in shown["keys"].as_array().unwrap() {
        let fields: Vec<&String> = key.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["alg", "e", "kid", "kty", "n", "use"]);
    }
}
