//! Keys that are bound to one sandbox: what they open, and that nothing else exists for them.

use cove_api::ErrorCode;
use cove_api::PageQuery;
use cove_api::route::{Access, Body, ROUTES, Verb};
use cove_api::sandbox::ListSandboxes;
use cove_api::tenancy::{CreateKey, Scope};
use cove_client::{Client, Outgoing};
use http::{HeaderName, Method, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::harness::{Server, refused, shell};

fn key(scope: Scope, sandbox: &str) -> CreateKey {
    CreateKey {
        name: "bound".into(),
        scopes: vec![scope],
        expires_in_s: None,
        org: None,
        sandbox: Some(sandbox.into()),
    }
}

/// A client with a key for this sandbox, and its token.
async fn bound(server: &Server, sandbox: &str) -> (Client, String) {
    let made = server.client.create_key(&key(Scope::Manage, sandbox)).await;
    let token = made.unwrap().token;
    (server.client_with(Some(&token)), token)
}

fn method(verb: Verb) -> Method {
    verb.as_str().parse().unwrap()
}

async fn ask(
    client: &Client,
    method: Method,
    path: &str,
    headers: &[(HeaderName, &str)],
    body: Option<&str>,
) -> (u16, Value) {
    let outgoing = match body {
        Some(_) => Outgoing::bytes(b"{}".to_vec()),
        None => Outgoing::empty(),
    };
    let mut all = headers.to_vec();
    all.extend(body.map(|media_type| (header::CONTENT_TYPE, media_type)));
    let response = client.send(method, path, &all, outgoing).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_key_uses_its_sandbox() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    server.sandbox("other").await;
    let (client, _) = bound(&server, "box").await;
    for which in ["box", sandbox.id.as_str()] {
        let result = client.exec(which, &shell("echo hello")).await.unwrap();
        assert_eq!(result.exit.exit_code, 0);
        assert_eq!(client.sandbox(which).await.unwrap().id, sandbox.id);
    }
    // Its list is its sandbox, where that fits.
    let all = client.list_sandboxes(&ListSandboxes::default()).await;
    let ids: Vec<_> = all.unwrap().items.into_iter().map(|one| one.id).collect();
    assert_eq!(ids, std::slice::from_ref(&sandbox.id));
    let query = ListSandboxes {
        name: Some("other".into()),
        ..ListSandboxes::default()
    };
    assert!(
        client
            .list_sandboxes(&query)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let keys = server.client.keys(&PageQuery::default()).await.unwrap();
    let listed = keys.items.iter().find(|key| key.name == "bound").unwrap();
    assert_eq!(listed.sandbox.as_deref(), Some(sandbox.id.as_str()));
    // A sandbox that gets the name later is another one.
    client.delete_sandbox("box").await.unwrap();
    server.sandbox("box").await;
    let (status, _) = refused(client.sandbox("box").await);
    assert_eq!(status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_key_is_for_a_sandbox_that_is_there_and_never_an_admin() {
    let server = Server::bare().await;
    server.sandbox("box").await;
    let (_, tenant) = server.tenant("others").await;
    server.sandbox_of(&tenant, "theirs").await;
    for missing in ["nosuch", "theirs"] {
        let (status, detail) = refused(server.client.create_key(&key(Scope::Use, missing)).await);
        assert_eq!(
            (status, detail.code),
            (404, ErrorCode::NotFound),
            "{missing}"
        );
    }
    let (_, detail) = refused(server.client.create_key(&key(Scope::Admin, "box")).await);
    assert_eq!(detail.code, ErrorCode::InvalidRequest);
}

/// The attack: every route there is, with a bound key.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_its_sandbox_exists_for_a_bound_key() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let other = server.sandbox("other").await;
    let (client, _) = bound(&server, "box").await;
    let (mut refused_routes, mut missing) = (0, 0);
    for route in ROUTES {
        if route.access == Access::Public {
            continue;
        }
        let filled = |sandbox: &str| {
            let path = route.path.replace("{id}", sandbox).replace("{port}", "80");
            let mut parts = path.split('/').map(|part| match part.starts_with('{') {
                true => "other",
                false => part,
            });
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |path, part| path + "/" + part)
        };
        let told = format!("{} {}", route.verb.as_str(), route.path);
        let body = match route.body {
            Body::None => None,
            Body::Json(_) | Body::OptionalJson(_) => Some("application/json"),
            Body::Raw(media_type) => Some(media_type),
        };
        let send = async |sandbox: &str| {
            let path = filled(sandbox);
            ask(&client, method(route.verb), &path, &[], body).await
        };
        if !route.bound {
            let (status, answer) = send("box").await;
            assert_eq!(status, 403, "{told}: {answer}");
            assert_eq!(answer["error"]["code"], "forbidden", "{told}: {answer}");
            refused_routes += 1;
            continue;
        }
        if !route.path.contains("{id}") {
            continue;
        }
        // The same answer as for one that never was.
        for which in ["other", other.id.as_str()] {
            let (nothing, answer) = (send("nosuch").await, send(which).await);
            missing += usize::from(answer.0 == 404);
            assert!(answer.0 >= 400, "{told}: {answer:?}");
            assert_eq!(answer.0, nothing.0, "{told}: {answer:?} {nothing:?}");
            let message = |answer: &Value| {
                let error = &answer["error"];
                let text = error["message"].as_str().unwrap_or_default();
                (error["code"].clone(), text.replace(which, "nosuch"))
            };
            assert_eq!(message(&answer.1), message(&nothing.1), "{told}");
        }
    }
    assert!(refused_routes > 40, "{refused_routes}");
    assert!(missing > 40, "{missing}");
    // All of it is still there.
    server.client.sandbox("other").await.unwrap();
    let ran = server.client.exec("other", &shell("true")).await.unwrap();
    assert_eq!(ran.exit.exit_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_key_opens_no_dialect_and_only_its_sandbox_over_mcp() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    server.sandbox("other").await;
    let (client, token) = bound(&server, "box").await;
    let key = HeaderName::from_static("x-api-key");
    for (method, path) in [
        (Method::GET, "/e2b/v2/sandboxes"),
        (Method::POST, "/e2b/sandboxes"),
        (Method::GET, "/daytona/sandbox"),
        (Method::POST, "/daytona/sandbox"),
        (Method::POST, "/daytona/toolbox/box/process/execute"),
        (Method::POST, "/daytona/toolbox/other/process/execute"),
    ] {
        let headers = [(key.clone(), token.as_str())];
        let (status, answer) = ask(&client, method, path, &headers, Some("application/json")).await;
        assert_eq!(status, 403, "{path}: {answer}");
    }
    let call = async |tool: &str, arguments: Value| {
        let params = json!({ "name": tool, "arguments": arguments });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let headers = [
            (header::CONTENT_TYPE, "application/json"),
            (header::ACCEPT, "application/json, text/event-stream"),
        ];
        let body = Outgoing::bytes(body.to_string().into_bytes());
        let response = client.send(Method::POST, "/mcp", &headers, body);
        let body = response.await.unwrap().into_body();
        let bytes = body.collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        (answer["result"]["isError"] == true, answer)
    };
    let run = |sandbox: &str| json!({ "sandbox": sandbox, "command": "echo hello" });
    let (failed, answer) = call("run", run("box")).await;
    assert!(!failed, "{answer}");
    let (failed, answer) = call("run", run("other")).await;
    assert!(failed, "{answer}");
    assert!(
        answer.to_string().contains("there is no sandbox"),
        "{answer}"
    );
}
