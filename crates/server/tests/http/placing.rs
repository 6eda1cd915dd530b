//! Zones, labels and taints on the wire: who may set them, and what a sandbox may ask for.

use std::sync::Arc;

use cove_client::{Client, Outgoing};
use cove_control::testing::{JoinToken, NodeKey};
use cove_control::{ControlConfig, HostKeys, JoinNode};
use cove_model::{HostId, HostTraits};
use cove_server::ServerConfig;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::harness::Server;

async fn send(client: &Client, method: &str, path: &str, body: Value) -> (u16, Value) {
    let headers = vec![(CONTENT_TYPE, "application/json")];
    let body = Outgoing::bytes(serde_json::to_vec(&body).unwrap());
    let method = method.parse().unwrap();
    let answer = client.send(method, path, &headers, body).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn create(client: &Client, placement: Value) -> (u16, Value) {
    send(
        client,
        "POST",
        "/v1/sandboxes",
        json!({ "placement": placement }),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placement_is_shown_as_it_was_asked_for_and_refused_where_no_host_meets_it() {
    let server = Server::bare().await;
    let client = &server.client;
    let (status, made) = create(client, json!({"strategy": "pack"})).await;
    assert_eq!(
        (status, &made["placement"]),
        (201, &json!({"strategy": "pack"}))
    );
    let (_, plain) = send(client, "POST", "/v1/sandboxes", json!({})).await;
    assert_eq!(plain.get("placement"), None);
    let (status, refused) = create(client, json!({"labels": {"gpu": "h100"}})).await;
    assert_eq!(status, 409);
    assert_eq!(refused["error"]["code"], "unfit_host");
    assert_eq!(refused["error"]["message"], "no host has label gpu=h100");
    assert_eq!(refused["error"].get("retry_after_s"), None);
    for bad in [
        json!({"host": "node-1"}),
        json!({"labels": {"gpu": null}}),
        json!({"labels": {"a b": "c"}}),
        json!({"zone": ""}),
        json!({"zone": "a".repeat(64)}),
        json!({"tolerate": "team"}),
        json!({"tolerate": ["1", "2", "3", "4", "5", "6", "7", "8", "9"]}),
        json!({"strategy": "random"}),
    ] {
        let (status, refused) = create(client, bad.clone()).await;
        assert_eq!(status, 422, "{bad}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_alone_says_what_an_organisation_may_tolerate() {
    let server = Server::bare().await;
    let (_, tenant) = server.tenant("team").await;
    let orgs = server.client.orgs(&Default::default()).await.unwrap().items;
    let org = orgs.iter().find(|org| org.name == "team").unwrap();
    let path = format!("/v1/orgs/{}", org.id);
    let asked = || json!({"tolerate": ["lab"]});
    let (status, refused) = create(&tenant, asked()).await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (403, &json!("forbidden"))
    );
    let permission = || json!({"tolerations": {"lab": true, "other": false}});
    let (status, _) = send(&tenant, "PATCH", &path, permission()).await;
    assert_eq!(status, 403);
    for bad in [
        json!({}),
        json!({"tolerations": {}}),
        json!({"tolerations": ["lab"]}),
        json!({"tolerations": {"a b": true}}),
        json!({"tolerations": {"lab": true}, "quota": {"sandboxes": 1}}),
    ] {
        let (status, refused) = send(&server.client, "PATCH", &path, bad.clone()).await;
        assert_eq!(status, 422, "{bad}: {refused}");
    }
    let (status, changed) = send(&server.client, "PATCH", &path, permission()).await;
    assert_eq!((status, &changed["tolerations"]), (200, &json!(["lab"])));
    assert_eq!(changed["quota"]["sandboxes"], org.quota.sandboxes);
    let (status, made) = create(&tenant, asked()).await;
    assert_eq!((status, &made["placement"]), (201, &asked()));
    let away = json!({"tolerations": {"lab": false}});
    let (_, changed) = send(&server.client, "PATCH", &path, away).await;
    assert_eq!(changed.get("tolerations"), None);
    let (status, _) = create(&tenant, asked()).await;
    assert_eq!(status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_joins_with_its_traits_and_the_operator_changes_them() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let key = HostKeys::load_or_make(&folder.path().join("fleet.key")).unwrap();
    let config = ControlConfig {
        fleet_key: Some(Arc::new(key)),
        ..ControlConfig::default()
    };
    let server = Server::start(ServerConfig::default(), config, false).await;
    let client = &server.client;
    let (_, token) = send(client, "POST", "/v1/nodes/tokens", json!({})).await;
    let token = JoinToken::parse(token["token"].as_str().unwrap()).unwrap();
    let traits = HostTraits {
        zone: "a".into(),
        labels: [("gpu".into(), "h100".into())].into(),
        taints: ["lab".into()].into(),
    };
    let own = NodeKey::generate().unwrap();
    let request = JoinNode::make(&token, &HostId::random(), "n1", "127.0.0.1:1", traits, &own);
    let body = |zone: &str| {
        json!({
            "token": request.token, "host": request.host, "name": "n1", "address": request.address,
            "public_key": request.public_key, "zone": zone, "labels": {"gpu": "h100"},
            "taints": ["lab"], "proof": request.proof,
        })
    };
    let (status, _) = send(client, "POST", "/v1/nodes/join", body("b")).await;
    assert_eq!(status, 403, "its proof is for another zone");
    let (status, joined) = send(client, "POST", "/v1/nodes/join", body("a")).await;
    assert_eq!(status, 201, "{joined}");
    let shown = |node: &Value| json!([node["zone"], node["labels"], node["taints"]]);
    let node = serde_json::to_value(client.node("n1").await.unwrap()).unwrap();
    assert_eq!(shown(&node), json!(["a", {"gpu": "h100"}, ["lab"]]));

    let patch =
        || json!({"zone": "b", "labels": {"gpu": null, "disk": "ssd"}, "taints": {"spot": true}});
    let (_, tenant) = server.tenant("tenant").await;
    let (status, _) = send(&tenant, "PATCH", "/v1/nodes/n1", patch()).await;
    assert_eq!(status, 403);
    for bad in [
        json!({"cordoned": true, "zone": "b"}),
        json!({"labels": {"": "x"}}),
        json!({"labels": {"x": ""}}),
        json!({"taints": ["spot"]}),
        json!({"taints": {"-x": true}}),
        json!({"region": "b"}),
    ] {
        let (status, refused) = send(client, "PATCH", "/v1/nodes/n1", bad.clone()).await;
        assert_eq!(status, 422, "{bad}: {refused}");
    }
    let (status, node) = send(client, "PATCH", "/v1/nodes/n1", patch()).await;
    assert_eq!(status, 200);
    assert_eq!(shown(&node), json!(["b", {"disk": "ssd"}, ["lab", "spot"]]));
    let nothing =
        json!({"zone": "", "labels": {"disk": null}, "taints": {"lab": false, "spot": false}});
    let (_, node) = send(client, "PATCH", "/v1/nodes/n1", nothing).await;
    assert_eq!(shown(&node), json!([null, null, null]));
    let (status, _) = send(client, "PATCH", "/v1/nodes/n2", patch()).await;
    assert_eq!(status, 404);
}
