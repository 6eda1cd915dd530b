//! Templates over HTTP: versions, tags, what sandboxes get of them, and who may see them.

use std::collections::BTreeMap;

use cove_api::ErrorCode;
use cove_api::sandbox::{CreateSandbox, Network, NetworkMode, ResourcesRequest};
use cove_api::snapshot::TakeSnapshot;
use cove_api::template::{CreateTemplate, ListTemplates, Template, TemplateDefaults};
use cove_api::tenancy::{CreateKey, CreateOrg, Scope};
use cove_api::volume::{CreateVolume, Mount};
use cove_client::{Client, Outgoing};
use http::Method;
use http::header::CONTENT_TYPE;

use super::harness::{Server, refused};

async fn snapshot(server: &Server, sandbox: &str, name: &str) -> String {
    server.sandbox(sandbox).await;
    let take = TakeSnapshot {
        name: Some(name.into()),
        memory: false,
        durable: false,
    };
    let client = &server.client;
    client.take_snapshot(sandbox, &take, None).await.unwrap().id
}

async fn template(client: &Client, name: &str, snapshot: &str) -> Template {
    let create = CreateTemplate {
        name: name.into(),
        snapshot: snapshot.into(),
        ..CreateTemplate::default()
    };
    client.create_template(&create, None).await.unwrap()
}

fn from(template: &str) -> CreateSandbox {
    CreateSandbox {
        template: Some(template.into()),
        ..CreateSandbox::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_has_versions_tags_and_defaults_that_a_create_may_override() {
    let server = Server::bare().await;
    let client = &server.client;
    let clean = snapshot(&server, "agent", "clean").await;
    let create = CreateTemplate {
        name: "web".into(),
        snapshot: "clean".into(),
        tags: vec!["stable".into(), "latest".into()],
        defaults: TemplateDefaults {
            resources: Some(ResourcesRequest {
                memory_mb: Some(128),
                ..ResourcesRequest::default()
            }),
            env: BTreeMap::from([("A".into(), "1".into()), ("B".into(), "1".into())]),
            network: Some(Network {
                mode: NetworkMode::Allowlist,
                allow: Some(vec!["example.org".into()]),
                ..Network::default()
            }),
            user: Some("nobody".into()),
            workdir: Some("/srv".into()),
            ..TemplateDefaults::default()
        },
        ..CreateTemplate::default()
    };
    let first = client.create_template(&create, Some("once")).await.unwrap();
    let again = client.create_template(&create, Some("once")).await.unwrap();
    assert_eq!(first, again);
    assert_eq!((first.version, &first.snapshot), (1, &clean));
    assert_eq!(first.tags, ["latest", "stable"]);
    let second = template(client, "web", "clean").await;
    assert_eq!(
        (second.version, second.tags.as_slice()),
        (2, &["latest".to_owned()][..])
    );

    for (reference, version) in [("web", 2), ("web:stable", 1), ("web:1", 1), (&first.id, 1)] {
        let found = client.template(reference).await.unwrap();
        assert_eq!(found.version, version, "{reference}");
    }
    let made = client
        .create_sandbox(&from("web:stable"), None)
        .await
        .unwrap();
    assert_eq!(made.from_snapshot.as_ref(), Some(&clean));
    assert_eq!(made.resources.memory_mb, 128);
    assert_eq!(
        made.network.allow.as_deref(),
        Some(&["example.org".to_owned()][..])
    );
    assert_eq!(
        (made.user.as_deref(), made.workdir.as_deref()),
        (Some("nobody"), Some("/srv"))
    );
    let asked = CreateSandbox {
        env: BTreeMap::from([("B".into(), "2".into())]),
        network: Some(Network::default().into()),
        workdir: Some("/tmp".into()),
        ..from("web:stable")
    };
    let other = client.create_sandbox(&asked, None).await.unwrap();
    assert_eq!(other.env["A"], "1");
    assert_eq!(other.env["B"], "2");
    assert_eq!(other.network.mode, NetworkMode::None);
    assert_eq!(other.workdir.as_deref(), Some("/tmp"));

    client.tag_template("web:1", "latest").await.unwrap();
    assert_eq!(client.template("web").await.unwrap().version, 1);
    for elsewhere in ["web:2", &second.id] {
        let (_, refusal) = refused(client.untag_template(elsewhere, "stable").await);
        assert_eq!(refusal.code, ErrorCode::NotFound);
    }
    client.untag_template(&first.id, "stable").await.unwrap();
    let (_, gone) = refused(client.template("web:stable").await);
    assert_eq!(gone.code, ErrorCode::NotFound);
    assert!(gone.hint.unwrap().contains("latest"));
    let listed = client.templates(&ListTemplates::default()).await.unwrap();
    assert_eq!(listed.items.len(), 2);

    let (status, several) = refused(client.delete_template("web", false).await);
    assert_eq!((status, several.code), (409, ErrorCode::Conflict));
    let (status, _) = refused(client.delete_template("web:1", true).await);
    assert_eq!(status, 422);
    assert_eq!(client.template("web:2").await.unwrap().version, 2);

    // A version that is there keeps its snapshot; deleting it keeps everything else.
    let (_, kept) = refused(client.delete_snapshot("clean").await);
    assert_eq!(kept.code, ErrorCode::InUse);
    client.delete_template("web:1", false).await.unwrap();
    let (_, kept) = refused(client.delete_snapshot("clean").await);
    assert_eq!(kept.code, ErrorCode::InUse);
    client.delete_template("web", false).await.unwrap();
    client.snapshot("clean").await.unwrap();
    client.sandbox(&made.id).await.unwrap();
    client.delete_snapshot("clean").await.unwrap();
    let (_, gone) = refused(client.create_sandbox(&from("web"), None).await);
    assert_eq!(gone.code, ErrorCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_finds_uses_or_changes_a_template() {
    let server = Server::bare().await;
    let client = &server.client;
    let clean = snapshot(&server, "agent", "clean").await;
    let ours = template(client, "web", "clean").await;
    let create = CreateOrg {
        name: "other".into(),
        quota: None,
    };
    let org = client.create_org(&create).await.unwrap();
    let key = CreateKey {
        name: "other".into(),
        scopes: vec![Scope::Admin],
        org: Some(org.id),
        expires_in_s: None,
        sandbox: None,
    };
    let key = client.create_key(&key).await.unwrap();
    let other = server.client_with(Some(&key.token));
    for reference in ["web", "web:1", "web:latest", ours.id.as_str()] {
        let refusals = [
            refused(other.template(reference).await).1,
            refused(other.delete_template(reference, false).await).1,
            refused(other.tag_template(reference, "x").await).1,
            refused(other.create_sandbox(&from(reference), None).await).1,
        ];
        for refusal in refusals {
            assert_eq!(refusal.code, ErrorCode::NotFound, "{refusal:?}");
        }
    }
    refused(other.untag_template("web", "latest").await);
    let stolen = CreateTemplate {
        name: "mine".into(),
        snapshot: clean,
        ..CreateTemplate::default()
    };
    let (_, stolen) = refused(other.create_template(&stolen, None).await);
    assert_eq!(stolen.code, ErrorCode::NotFound);
    let listed = other.templates(&ListTemplates::default()).await.unwrap();
    assert!(listed.items.is_empty());
    assert_eq!(client.template("web").await.unwrap(), ours);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_meant_is_refused_and_changes_nothing() {
    let server = Server::bare().await;
    let client = &server.client;
    snapshot(&server, "agent", "clean").await;
    for body in [
        r#"{"name":"web","snapshot":"clean","ready":1}"#,
        r#"{"name":"web","snapshot":"clean","defaults":{"image":"x"}}"#,
        r#"{"name":"web","snapshot":"clean","tags":["1"]}"#,
        r#"{"name":"web","snapshot":"clean","tags":["a/b"]}"#,
        r#"{"name":"Web","snapshot":"clean"}"#,
        r#"{"name":"web:x","snapshot":"clean"}"#,
        r#"{"name":"web","snapshot":"clean","memory":true}"#,
        r#"{"name":"web","snapshot":"clean","defaults":{"network":{"mode":"allowlist","allow":["!"]}}}"#,
        r#"{"name":"web"}"#,
    ] {
        let headers = [(CONTENT_TYPE, "application/json")];
        let sent = Outgoing::bytes(body.as_bytes().to_vec());
        let answer = client
            .send(Method::POST, "/v1/templates", &headers, sent)
            .await;
        assert_eq!(answer.unwrap().status().as_u16(), 422, "{body}");
    }
    for tags in [cove_limits::TEMPLATE_TAGS_MAX + 1, 200_000] {
        let create = CreateTemplate {
            tags: vec!["a".into(); tags],
            name: "web".into(),
            snapshot: "clean".into(),
            ..CreateTemplate::default()
        };
        let (status, refusal) = refused(client.create_template(&create, None).await);
        assert_eq!(status, 422, "{refusal:?}");
    }
    let listed = client.templates(&ListTemplates::default()).await.unwrap();
    assert!(listed.items.is_empty());
    template(client, "web", "clean").await;
    for wrong in [
        CreateSandbox {
            memory: true,
            ..from("web")
        },
        CreateSandbox {
            image: Some("debian".into()),
            ..from("web")
        },
        CreateSandbox {
            snapshot: Some("clean".into()),
            ..from("web")
        },
    ] {
        let (status, refusal) = refused(client.create_sandbox(&wrong, None).await);
        assert_eq!(status, 422, "{refusal:?}");
    }
    for wrong in [
        "web:", "web:-x", "web:2", "web:01", "../web", "WEB", ":", "we b",
    ] {
        let (_, refusal) = refused(client.create_sandbox(&from(wrong), None).await);
        assert_eq!(refusal.code, ErrorCode::NotFound, "{wrong}");
        let (_, refusal) = refused(client.delete_template(wrong, false).await);
        assert_eq!(refusal.code, ErrorCode::NotFound, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_create_finds_its_sandbox_after_the_names_moved_or_went() {
    let server = Server::bare().await;
    let client = &server.client;
    snapshot(&server, "agent", "clean").await;
    snapshot(&server, "other", "later").await;
    template(client, "web", "clean").await;
    let by_snapshot = CreateSandbox {
        snapshot: Some("later".into()),
        ..CreateSandbox::default()
    };
    let first = client
        .create_sandbox(&from("web"), Some("k"))
        .await
        .unwrap();
    let second = client
        .create_sandbox(&by_snapshot, Some("s"))
        .await
        .unwrap();
    let again = async |body: &CreateSandbox, key| client.create_sandbox(body, Some(key)).await;

    template(client, "web", "later").await;
    assert_eq!(again(&from("web"), "k").await.unwrap().id, first.id);
    client.delete_template("web", true).await.unwrap();
    assert_eq!(again(&from("web"), "k").await.unwrap().id, first.id);
    client.delete_snapshot("later").await.unwrap();
    assert_eq!(again(&by_snapshot, "s").await.unwrap().id, second.id);

    // Another request with the key is not the same, and another key finds nothing.
    let (_, reused) = refused(again(&CreateSandbox::default(), "k").await);
    assert_eq!(reused.code, ErrorCode::IdempotencyKeyReused);
    let (_, gone) = refused(again(&from("web"), "s").await);
    assert_eq!(gone.code, ErrorCode::NotFound);
    let (_, gone) = refused(again(&from("web"), "new").await);
    assert_eq!(gone.code, ErrorCode::NotFound);
    client.delete_sandbox(&first.id).await.unwrap();
    let (_, gone) = refused(again(&from("web"), "k").await);
    assert_eq!(gone.code, ErrorCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_come_from_a_template_only_if_it_names_them() {
    let server = Server::bare().await;
    let client = &server.client;
    let volume = CreateVolume {
        name: "cache".into(),
        ..CreateVolume::default()
    };
    let volume = client.create_volume(&volume, None).await.unwrap();
    let mount = |volume: &str| Mount {
        volume: volume.into(),
        path: "/data".into(),
        read_only: false,
    };
    let create = CreateSandbox {
        name: Some("agent".into()),
        no_new_privs: true,
        volumes: Some(vec![mount("cache")]),
        ..CreateSandbox::default()
    };
    client.create_sandbox(&create, None).await.unwrap();
    let take = TakeSnapshot {
        name: Some("clean".into()),
        memory: false,
        durable: false,
    };
    client.take_snapshot("agent", &take, None).await.unwrap();
    let plain = template(client, "plain", "clean").await;
    assert!(plain.no_new_privs && plain.volumes.is_empty());
    let made = client.create_sandbox(&from("plain"), None).await.unwrap();
    assert!(made.volumes.is_empty());

    let create = |volume: &str| CreateTemplate {
        name: "shared".into(),
        snapshot: "clean".into(),
        defaults: TemplateDefaults {
            volumes: vec![mount(volume)],
            ..TemplateDefaults::default()
        },
        ..CreateTemplate::default()
    };
    let (_, none) = refused(client.create_template(&create("none"), None).await);
    assert_eq!(none.code, ErrorCode::NotFound);
    let shared = client
        .create_template(&create("cache"), None)
        .await
        .unwrap();
    assert_eq!(shared.volumes, [mount(&volume.id)]);
    let made = client.create_sandbox(&from("shared"), None).await.unwrap();
    assert_eq!(made.volumes, [mount(&volume.id)]);
    let without = CreateSandbox {
        volumes: Some(Vec::new()),
        ..from("shared")
    };
    let made = client.create_sandbox(&without, None).await.unwrap();
    assert!(made.volumes.is_empty());
}
