//! Requests that are not as they should be, each refused in the contract's form and without effect.

use std::time::Duration;

use cove_api::sandbox::{CreateSandbox, ListSandboxes, PatchSandbox, State, StopSandbox};
use cove_client::Outgoing;
use cove_control::ControlConfig;
use cove_server::ServerConfig;
use http::{HeaderName, Method, header};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::{DEADLINE, Server, refused, shell};
use super::previews::read_head;
use super::walk::error_of;

async fn post(
    server: &Server,
    path: &str,
    kind: Option<&str>,
    body: impl Into<bytes::Bytes>,
) -> (u16, cove_api::ErrorDetail) {
    let headers: Vec<_> = kind
        .map(|kind| (header::CONTENT_TYPE, kind))
        .into_iter()
        .collect();
    let response = server
        .client
        .send(Method::POST, path, &headers, Outgoing::bytes(body))
        .await
        .unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, error_of(&bytes))
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_bodies_are_told_apart() {
    let server = Server::bare().await;
    let json = Some("application/json");
    for (kind, body, status, code) in [
        (json, r#"{"#, 400, "malformed_request"),
        (json, "", 400, "malformed_request"),
        (json, r#"{"image":1}"#, 422, "invalid_request"),
        (json, r#"{"unknown":1}"#, 422, "invalid_request"),
        (json, r#"[]"#, 422, "invalid_request"),
        (json, r#"{"name":"Not A Name"}"#, 422, "invalid_request"),
        (json, r#"{"resources":{"cpu":1e9}}"#, 422, "invalid_request"),
        (Some("text/plain"), "{}", 415, "unsupported_media_type"),
        (None, "{}", 415, "unsupported_media_type"),
    ] {
        let (got, error) = post(&server, "/v1/sandboxes", kind, body).await;
        assert_eq!(
            (got, error.code.as_str()),
            (status, code),
            "{kind:?} {body}: {}",
            error.message
        );
    }
    assert!(
        server
            .client
            .list_sandboxes(&ListSandboxes::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_parts_are_refused_by_their_own_codes() {
    let server = Server::bare().await;
    let json = Some("application/json");
    let (status, error) = post(
        &server,
        "/v1/sandboxes",
        json,
        vec![b' '; cove_limits::JSON_BODY_MAX + 1],
    )
    .await;
    assert_eq!((status, error.code.as_str()), (413, "payload_too_large"));

    let long = format!("/v1/sandboxes/{}", "a".repeat(cove_limits::URI_MAX));
    let (status, error) = post(&server, &long, json, "{}").await;
    assert_eq!((status, error.code.as_str()), (414, "uri_too_long"));

    let headers = [(
        HeaderName::from_static("x-long"),
        &*"v".repeat(cove_limits::HEADERS_MAX_BYTES),
    )];
    let response = server
        .client
        .send(Method::GET, "/healthz", &headers, Outgoing::empty())
        .await
        .unwrap();
    assert_eq!(response.status(), 431);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(error_of(&bytes).code.as_str(), "headers_too_large");

    let (status, error) = post(&server, "/v1/sandboxes/x/start", json, "{}").await;
    assert_eq!((status, error.code.as_str()), (422, "invalid_request"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_only_says_its_length_while_it_comes_is_still_bounded() {
    let server = Server::bare().await;
    let endless = tokio::io::repeat(b' ');
    let body = Outgoing::Upload(cove_client::Upload::new(endless, None));
    let headers = [(header::CONTENT_TYPE, "application/json")];
    let sent = server
        .client
        .send(Method::POST, "/v1/sandboxes", &headers, body)
        .await;
    // The answer may come, or the connection may be cut while we still send; it must not go on.
    if let Ok(response) = sent {
        assert_eq!(response.status(), 413);
    }
    server.client.health().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn repeats_with_an_idempotency_key_make_one_sandbox() {
    let server = Server::bare().await;
    let create = CreateSandbox::default();
    let first = server
        .client
        .create_sandbox(&create, Some("once"))
        .await
        .unwrap();
    let again = server
        .client
        .create_sandbox(&create, Some("once"))
        .await
        .unwrap();
    assert_eq!(first.id, again.id);
    let other = CreateSandbox {
        name: Some("other".into()),
        ..CreateSandbox::default()
    };
    let (status, error) = refused(server.client.create_sandbox(&other, Some("once")).await);
    assert_eq!(
        (status, error.code.as_str()),
        (409, "idempotency_key_reused")
    );
    for bad in [
        &*"k".repeat(cove_limits::IDEMPOTENCY_KEY_MAX + 1),
        "two words",
    ] {
        let (status, _) = refused(server.client.create_sandbox(&create, Some(bad)).await);
        assert_eq!(status, 422);
    }
    assert_eq!(
        server
            .client
            .list_sandboxes(&ListSandboxes::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_goes_through_its_life_over_http() {
    let server = Server::bare().await;
    let made = server.sandbox("one").await;
    assert_eq!(made.state, State::Running);
    assert_eq!(server.client.sandbox("one").await.unwrap().id, made.id);
    let patch = PatchSandbox {
        name: Some(Some("two".into())),
        ..PatchSandbox::default()
    };
    let renamed = server.client.patch_sandbox(&made.id, &patch).await.unwrap();
    assert_eq!(renamed.name.as_deref(), Some("two"));
    assert_eq!(refused(server.client.sandbox("one").await).0, 404);
    let unnamed = PatchSandbox {
        name: Some(None),
        ..PatchSandbox::default()
    };
    assert_eq!(
        server
            .client
            .patch_sandbox(&made.id, &unnamed)
            .await
            .unwrap()
            .name,
        None
    );
    let stale = PatchSandbox {
        expected_generation: Some(1),
        ..unnamed
    };
    assert_eq!(
        refused(server.client.patch_sandbox(&made.id, &stale).await)
            .1
            .code
            .as_str(),
        "stale"
    );
    let stopped = server
        .client
        .stop_sandbox(&made.id, &StopSandbox::default())
        .await
        .unwrap();
    assert_eq!(stopped.state, State::Stopped);
    assert_eq!(stopped.stopped_at, Some(stopped.updated_at));
    let (status, error) = refused(server.client.exec(&made.id, &shell("true")).await);
    assert_eq!((status, error.code.as_str()), (409, "conflict"));
    assert!(error.hint.is_some(), "{error:?}");
    let started = server.client.start_sandbox(&made.id).await.unwrap();
    assert_eq!((started.state, started.stopped_at), (State::Running, None));
    server.client.delete_sandbox(&made.id).await.unwrap();
    assert_eq!(refused(server.client.delete_sandbox(&made.id).await).0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages_and_cursors_are_checked() {
    let server = Server::bare().await;
    for index in 0..5 {
        server.sandbox(&format!("box-{index}")).await;
    }
    let mut query = ListSandboxes {
        limit: Some(2),
        ..ListSandboxes::default()
    };
    let mut seen = Vec::new();
    loop {
        let page = server.client.list_sandboxes(&query).await.unwrap();
        assert!(page.items.len() <= 2);
        seen.extend(page.items.into_iter().map(|sandbox| sandbox.id));
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 5);
    for query in [
        ListSandboxes {
            cursor: Some("made-up".into()),
            ..ListSandboxes::default()
        },
        ListSandboxes {
            limit: Some(0),
            ..ListSandboxes::default()
        },
        ListSandboxes {
            limit: Some(1001),
            ..ListSandboxes::default()
        },
        ListSandboxes {
            labels: Some("no-equals".into()),
            ..ListSandboxes::default()
        },
    ] {
        assert_eq!(
            refused(server.client.list_sandboxes(&query).await).0,
            422,
            "{query:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_room_says_what_is_short_and_when_to_come_back() {
    let server = Server::bare().await;
    server.runner.limit_memory(512);
    let error = server
        .client
        .create_sandbox(&CreateSandbox::default(), None)
        .await
        .unwrap_err();
    let cove_client::ClientError::Refused {
        status,
        detail,
        retry_after_s,
    } = error
    else {
        panic!("not a refusal: {error:?}");
    };
    assert_eq!(
        (status.as_u16(), detail.code.as_str()),
        (503, "no_capacity")
    );
    assert!(detail.message.contains("memory"), "{}", detail.message);
    assert!(retry_after_s.is_some());
}

/// Python's clients send the headers and the body apart, and use the connection again.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_of_use_after_a_refusal_that_came_before_the_body() {
    // However late the body comes on a busy machine.
    let config = ServerConfig {
        unread_wait: 10 * DEADLINE,
        ..ServerConfig::default()
    };
    let server = Server::start(config, ControlConfig::default(), false).await;
    for path in ["/v1/sandboxes", "/v1/nowhere", "/daytona/secret"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        for _ in 0..3 {
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all(b"{}").await.unwrap();
            let answer = read_head(&mut stream).await;
            assert!(
                answer.starts_with("http/1.1 4") || answer.starts_with("http/1.1 5"),
                "{path}: {answer}"
            );
            assert!(!answer.contains("connection: close"), "{path}: {answer}");
            let length = answer.split("content-length: ").nth(1).unwrap();
            let length = length.split("\r\n").next().unwrap().parse().unwrap();
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.unwrap();
        }
    }
    // A body that does not come is not waited for, and the answer says that the connection ends.
    let server = Server::bare().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_head(&mut stream).await;
    assert!(answer.contains("connection: close"), "{answer}");
}
