//! MCP over HTTP, attacked: by pages in browsers, by keys that may not, by other organisations, by size.

use std::path::Path;

use axum::extract::Request;
use cove_api::PageQuery;
use cove_api::file::ReadFile;
use cove_api::tenancy::{CreateKey, Scope};
use cove_client::{Client, Outgoing};
use cove_control::budget::MEMORY;
use cove_control::{Origin, Principal};
use cove_limits::EXEC_BODY_MAX;
use http::{HeaderName, Method, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::harness::Server;
use super::shares::until;

async fn post(client: &Client, headers: &[(HeaderName, &str)], body: Vec<u8>) -> (u16, Value) {
    let mut all = vec![
        (header::CONTENT_TYPE, "application/json"),
        (header::ACCEPT, "application/json, text/event-stream"),
    ];
    all.extend_from_slice(headers);
    let response = client.send(Method::POST, "/mcp", &all, Outgoing::bytes(body));
    let response = response.await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

fn message(tool: &str, arguments: Value) -> Vec<u8> {
    let params = json!({ "name": tool, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
        .to_string()
        .into_bytes()
}

/// The result of a tool, and whether it was refused.
async fn call(client: &Client, tool: &str, arguments: Value) -> (bool, Value) {
    let (status, answer) = post(client, &[], message(tool, arguments)).await;
    assert_eq!(status, 200, "{answer}");
    let result = &answer["result"];
    (result["isError"] == true, result.clone())
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_work_and_leave_the_records_that_the_api_leaves() {
    let server = Server::with_guest().await;
    let sandbox = server.sandbox("box").await;
    let arguments = json!({ "sandbox": "box", "command": "echo hello" });
    let (refused, result) = call(&server.client, "run", arguments).await;
    assert!(!refused, "{result}");
    assert_eq!(result["structuredContent"]["stdout"], "hello\n");
    assert_eq!(result["structuredContent"]["exit_code"], 0);
    let trail = server.client.audit(&PageQuery::default()).await.unwrap();
    let exec = trail
        .items
        .iter()
        .find(|record| record.action.contains("exec"));
    let exec = exec.unwrap_or_else(|| panic!("{trail:?}"));
    assert_eq!(
        exec.target.as_deref(),
        Some(sandbox.id.as_str()),
        "{exec:?}"
    );
    assert_eq!(exec.source.as_deref(), Some("127.0.0.1"), "{exec:?}");
    assert!(exec.key.is_some() && exec.request_id.is_some(), "{exec:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_answered_without_a_good_key() {
    let server = Server::bare().await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }).to_string();
    let wrong = format!("cove_{}", "0".repeat(64));
    for token in [None, Some(wrong.as_str())] {
        let client = server.client_with(token);
        let (status, answer) = post(&client, &[], list.clone().into_bytes()).await;
        assert_eq!(status, 401, "{answer}");
        assert_eq!(answer["error"]["code"], "unauthenticated");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_origins_are_refused_even_with_a_good_key() {
    let server = Server::bare().await;
    let own = format!("http://{}", server.address);
    for (origin, expected) in [
        ("http://evil.example.com", 403),
        // A name that was rebound to this machine looks like the same origin to its browser.
        ("http://evil.example.com:7070", 403),
        ("http://localhost.evil.example.com", 403),
        ("http://127.0.0.1.evil.example.com", 403),
        ("null", 403),
        ("http://localhost:6274", 200),
        (own.as_str(), 200),
    ] {
        for host in ["evil.example.com", "localhost"] {
            let host = if expected == 200 { "localhost" } else { host };
            let headers = [
                (header::ORIGIN, origin),
                (HeaderName::from_static("x-forwarded-host"), host),
            ];
            let body = message("sandbox_create", json!({}));
            let (status, answer) = post(&server.client, &headers, body).await;
            assert_eq!(status, expected, "{origin}: {answer}");
        }
    }
    // Only those that were let through made one.
    let made = server
        .client
        .list_sandboxes(&Default::default())
        .await
        .unwrap();
    assert_eq!(made.items.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_only_reads_cannot_change_anything_through_tools() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let create = CreateKey {
        name: "reader".into(),
        scopes: vec![Scope::Read],
        expires_in_s: None,
        org: None,
        sandbox: None,
    };
    let token = server.client.create_key(&create).await.unwrap().token;
    let reader = server.client_with(Some(&token));
    let (refused, result) = call(&reader, "sandbox_find", json!({ "sandbox": "box" })).await;
    assert!(!refused, "{result}");
    for (tool, arguments) in [
        ("sandbox_create", json!({})),
        ("sandbox_delete", json!({ "sandbox": "box" })),
        ("run", json!({ "sandbox": "box", "command": "true" })),
        ("code", json!({ "sandbox": "box", "code": "1" })),
        (
            "file_write",
            json!({ "sandbox": "box", "path": "/tmp/cove-x", "text": "x" }),
        ),
        (
            "file_search",
            json!({ "sandbox": "box", "path": "/tmp", "name": "x" }),
        ),
        (
            "process_signal",
            json!({ "sandbox": "box", "process": "x" }),
        ),
        ("port_share", json!({ "sandbox": "box", "port": 80 })),
        ("snapshot_create", json!({ "sandbox": "box" })),
        ("sandbox_fork", json!({ "sandbox": "box" })),
        (
            "sandbox_rollback",
            json!({ "sandbox": "box", "snapshot": "x" }),
        ),
    ] {
        let (refused, result) = call(&reader, tool, arguments).await;
        assert!(refused, "{tool}: {result}");
        let code = &result["structuredContent"]["error"]["code"];
        assert_eq!(code, "forbidden", "{tool}: {result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_another_organisation_look_like_none() {
    let server = Server::with_guest().await;
    let mine = server.sandbox("box").await;
    let (_, other) = server.tenant("others").await;
    for which in [
        mine.id.as_str(),
        "box",
        "sbx_aaaaaaaaaaaaaaaaaaaa",
        "../../keys",
    ] {
        for (tool, arguments) in [
            ("sandbox_find", json!({ "sandbox": which })),
            ("sandbox_delete", json!({ "sandbox": which })),
            ("run", json!({ "sandbox": which, "command": "id" })),
            (
                "file_read",
                json!({ "sandbox": which, "path": "/etc/passwd" }),
            ),
            ("process_list", json!({ "sandbox": which })),
            ("sandbox_fork", json!({ "sandbox": which })),
        ] {
            let (refused, result) = call(&other, tool, arguments).await;
            assert!(
                refused && !result.to_string().contains("root:"),
                "{tool}: {result}"
            );
            let code = &result["structuredContent"]["error"]["code"];
            assert_eq!(code, "not_found", "{tool} {which}: {result}");
        }
    }
    let (_, found) = call(&other, "sandbox_find", json!({})).await;
    assert_eq!(found["structuredContent"]["sandboxes"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_are_unknown_or_of_another_type_are_refused_and_change_nothing() {
    let server = Server::bare().await;
    for (arguments, words) in [
        (json!({ "nmae": "x" }), "unknown field `nmae`"),
        (json!({ "name": 7 }), "invalid type"),
        (json!({ "name": "x", "env": { "A": 1 } }), "invalid type"),
        (json!({ "name": "Not A Name" }), "name"),
        (json!({ "cpu": -1 }), "cpu"),
    ] {
        let (refused, result) = call(&server.client, "sandbox_create", arguments).await;
        assert!(refused && text(&result).contains(words), "{result}");
    }
    let (status, answer) = post(&server.client, &[], message("no_such_tool", json!({}))).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (200, &json!(-32602)),
        "{answer}"
    );
    let made = server
        .client
        .list_sandboxes(&Default::default())
        .await
        .unwrap();
    assert!(made.items.is_empty(), "{made:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_over_the_limit_are_refused_before_they_are_read() {
    let server = Server::bare().await;
    let command = "x".repeat(EXEC_BODY_MAX);
    let body = message("run", json!({ "sandbox": "box", "command": command }));
    let (status, answer) = post(&server.client, &[], body).await;
    assert_eq!(status, 413, "{answer}");
    assert_eq!(answer["error"]["code"], "payload_too_large");
    // One below the limit of messages and above that of a command is refused by the API's own limit.
    let command = "x".repeat(cove_limits::COMMAND_BYTES_MAX + 1);
    server.sandbox("box").await;
    let arguments = json!({ "sandbox": "box", "command": command });
    let (refused, result) = call(&server.client, "run", arguments).await;
    assert!(refused, "{result}");
    let code = &result["structuredContent"]["error"]["code"];
    assert_eq!(code, "invalid_request", "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_protocol_eras_are_spoken_and_no_session_is_kept() {
    let server = Server::bare().await;
    for version in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } });
        let (status, answer) = post(&server.client, &[], hello.to_string().into_bytes()).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
    }
    // The newest has no handshake: every request says who speaks.
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {} });
    let list =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": { "_meta": meta } });
    let headers = [
        (
            HeaderName::from_static("mcp-protocol-version"),
            "2026-07-28",
        ),
        (HeaderName::from_static("mcp-method"), "tools/list"),
    ];
    let (status, answer) = post(&server.client, &headers, list.to_string().into_bytes()).await;
    assert_eq!(status, 200, "{answer}");
    assert!(
        answer["result"]["tools"].as_array().unwrap().len() > 10,
        "{answer}"
    );
    let response = server
        .client
        .send(Method::GET, "/mcp", &[], Outgoing::empty());
    let response = response.await.unwrap();
    assert_eq!(response.status(), 405);
    assert!(!response.headers().contains_key("mcp-session-id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_pays_for_what_it_may_hold_before_it_runs() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let stranger = Principal {
        org: cove_model::OrgId::random(),
        key: None,
        scopes: Vec::new(),
        home: false,
        sandbox: None,
        origin: Origin::default(),
    };
    let mut others = server.budget.account(&stranger).charge();
    others.force(MEMORY.total);
    let arguments = json!({ "sandbox": "box", "command": "echo ran > ran.txt" });
    let (status, answer) = post(&server.client, &[], message("run", arguments.clone())).await;
    assert_eq!(status, 429, "{answer}");
    assert_eq!(answer["error"]["code"], "limit_reached");
    let processes = server.client.processes("box").await.unwrap();
    assert!(processes.items.is_empty(), "nothing ran: {processes:?}");
    drop(others);
    let (refused, result) = call(&server.client, "run", arguments).await;
    assert!(!refused, "{result}");
    until("all was given back", || server.budget.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_is_gone_holds_nothing_and_the_command_goes_on() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let arguments = json!({ "sandbox": "box", "command": "sleep 987", "wait_s": 600 });
    let client = server.client.clone();
    let caller = tokio::spawn(async move { post(&client, &[], message("run", arguments)).await });
    let sleeping = async || {
        let processes = server.client.processes("box").await.unwrap().items;
        let mut running = processes.into_iter().filter(|one| one.exit.is_none());
        running.find(|one| one.argv.join(" ").contains("sleep 987"))
    };
    let deadline = tokio::time::Instant::now() + super::harness::DEADLINE;
    let process = loop {
        if let Some(process) = sleeping().await {
            break process;
        }
        assert!(tokio::time::Instant::now() < deadline, "it never ran");
        tokio::task::yield_now().await;
    };
    assert!(server.budget.held() > 1024 * 1024, "the call is paid for");
    caller.abort();
    until("all was given back", || server.budget.held() == 0).await;
    until("no request is under way", || server.streams.holders() == 0).await;
    assert!(sleeping().await.is_some(), "the command goes on");
    let killed = server.client.signal("box", &process.id, "KILL").await;
    killed.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_bounded_and_say_how_to_get_the_rest() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("large.txt");
    std::fs::write(&path, "x".repeat(3 * 1024 * 1024)).unwrap();
    let read = |max: u64| json!({ "sandbox": "box", "path": path, "max_bytes": max });
    let (refused, result) = call(&server.client, "file_read", read(1024 * 1024)).await;
    assert!(refused && text(&result).contains("offset"), "{result}");
    let (refused, result) = call(&server.client, "file_read", read(256 * 1024)).await;
    assert!(!refused);
    assert!(text(&result).ends_with("go on with offset 262144]"));
    assert!(result["structuredContent"]["text"].is_null(), "only once");
    assert!(result.to_string().len() < 300 * 1024);
    // An image that is too large for an answer comes as the part of a file that it is.
    let picture = dir.path().join("large.png");
    std::fs::copy(&path, &picture).unwrap();
    let arguments = json!({ "sandbox": "box", "path": picture });
    let (refused, result) = call(&server.client, "file_read", arguments).await;
    assert!(!refused);
    assert!(text(&result).ends_with("go on with offset 65536]"));
    for (command, max, expected) in [("true", 1024 * 1024, true), ("yes", 128 * 1024, false)] {
        let command = format!("{command} | head -c 2000000");
        let arguments = json!({ "sandbox": "box", "command": command, "max_output_bytes": max });
        let (refused, result) = call(&server.client, "run", arguments).await;
        assert_eq!(refused, expected, "{max}");
        assert!(result.to_string().len() < 400 * 1024);
    }
    let arguments = json!({ "sandbox": "box", "path": dir.path(), "text": "x", "limit": 2000 });
    let (refused, result) = call(&server.client, "file_search", arguments).await;
    assert!(!refused, "{result}");
    assert_eq!(result["structuredContent"]["more"], true, "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_would_make_a_file_grow_without_limit_is_refused() {
    let server = Server::with_guest().await;
    server.sandbox("box").await;
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = dir.path().join("seed.txt");
    std::fs::write(&path, "x".repeat(64 * 1024)).unwrap();
    let arguments = json!({ "sandbox": "box", "path": path, "old_text": "x",
        "new_text": "y".repeat(1024), "all": true });
    let (refused, result) = call(&server.client, "file_edit", arguments).await;
    assert!(
        refused && text(&result).contains("nothing was changed"),
        "{result}"
    );
    let kept = ReadFile {
        path: path.display().to_string(),
        user: None,
    };
    let mut kept = server.client.read_file("box", &kept, None).await.unwrap();
    let mut bytes = 0;
    while let Some(piece) = kept.next().await.unwrap() {
        bytes += piece.len();
    }
    assert_eq!(bytes, 64 * 1024);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_very_many_values_is_refused_before_it_is_read() {
    let server = Server::bare().await;
    let many = vec![0; 1024 * 1024];
    let (status, answer) = post(&server.client, &[], message("run", json!({ "x": many }))).await;
    assert_eq!(status, 422, "{answer}");
    assert_eq!(answer["error"]["code"], "invalid_request");
    // A large file has few of them.
    let body = message(
        "run",
        json!({ "sandbox": "box", "command": "[,".repeat(65536) }),
    );
    let (status, answer) = post(&server.client, &[], body).await;
    assert_eq!(status, 200, "{answer}");
}

async fn forwarded(
    address: std::net::SocketAddr,
    token: String,
    request: Request,
) -> http::Response<axum::body::Body> {
    const PASSED: [&str; 6] = [
        "content-type",
        "accept",
        "origin",
        "mcp-protocol-version",
        "mcp-method",
        "mcp-name",
    ];
    let (parts, body) = request.into_parts();
    let config = cove_client::ClientConfig::new(format!("http://{address}"), Some(token));
    let body = body.collect().await.unwrap().to_bytes();
    let headers: Vec<_> = PASSED
        .into_iter()
        .filter_map(|name| {
            let value = parts.headers.get(name)?.to_str().ok()?;
            Some((HeaderName::from_static(name), value))
        })
        .collect();
    let client = Client::new(config).unwrap();
    let sent = client.send(parts.method, "/mcp", &headers, Outgoing::bytes(body));
    sent.await.unwrap().map(axum::body::Body::new)
}

/// What a server lacks that failed a check of the suite: a tool of the suite's own, or a capability that it does not
/// offer. Absent: it failed for another reason.
fn missing_fixture(reason: &str, tools: &Value, capabilities: &Value) -> Option<String> {
    if let Some((_, method)) = reason.split_once("MCP error -32601: ") {
        let capability = method.split('/').next()?;
        return capabilities[capability]
            .is_null()
            .then(|| method.to_owned());
    }
    let (_, rest) = ["there is no tool '", "Tool '"]
        .iter()
        .find_map(|words| reason.split_once(words))?;
    let (tool, _) = rest.split_once('\'')?;
    let tools = tools.as_array().unwrap();
    let is_own = tools.iter().any(|one| one["name"] == tool);
    (!is_own).then(|| tool.to_owned())
}

/// How many scenarios the suite says that it ran.
fn scenarios(said: &[u8]) -> usize {
    let said = String::from_utf8_lossy(said);
    said.matches("=== Running scenario: ").count()
}

/// The suite cannot send a key, so a front adds it. Which scenarios ask for fixtures is read from how they fail.
#[tokio::test(flavor = "multi_thread")]
async fn the_product_fails_only_scenarios_of_the_official_suite_that_need_a_fixture() {
    let server = Server::bare().await;
    let (address, token) = (server.address, server.token.clone());
    let front = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", front.local_addr().unwrap());
    let forward = move |request: Request| {
        let token = token.clone();
        async move { forwarded(address, token, request).await }
    };
    let router = axum::Router::new().fallback(forward);
    let served = tokio::spawn(async move { axum::serve(front, router).await });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/mcp-conformance");
    let results = tempfile::tempdir().unwrap();
    let mut suite = std::process::Command::new(script);
    suite.arg(url).arg(results.path());
    let output = tokio::task::spawn_blocking(move || suite.output());
    let output = output.await.unwrap().unwrap();
    served.abort();
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let (_, listed) = post(&server.client, &[], list.to_string().into_bytes()).await;
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let begin = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let (_, begun) = post(&server.client, &[], begin.to_string().into_bytes()).await;
    let (tools, capabilities) = (&listed["result"]["tools"], &begun["result"]["capabilities"]);
    assert!(capabilities["tools"].is_object(), "{begun}");

    let (mut passed, mut without) = (0, 0);
    for entry in std::fs::read_dir(results.path()).unwrap() {
        let path = entry.unwrap().path();
        let checks = std::fs::read(path.join("checks.json")).unwrap();
        let checks: Vec<Value> = serde_json::from_slice(&checks).unwrap();
        let mut is_missing = false;
        for check in checks.iter().filter(|check| check["status"] == "FAILURE") {
            let reason = check["errorMessage"].as_str().unwrap_or_default();
            let missing = missing_fixture(reason, tools, capabilities);
            assert!(missing.is_some(), "{}: {check}", path.display());
            is_missing = true;
        }
        match is_missing {
            true => without += 1,
            false => passed += 1,
        }
    }
    assert!(passed > 4 && without > 0, "{output:?}");
    assert_eq!(passed + without, scenarios(&output.stdout), "{output:?}");
}
