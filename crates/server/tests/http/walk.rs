//! Every route of the table, walked.

use std::path::Path;

use cove_api::route::{Access, Operation, PLANNED, ROUTES, Route, Verb};
use cove_api::{ErrorBody, ErrorCode};
use cove_client::{Client, Outgoing};
use http_body_util::BodyExt;

use super::harness::Server;

pub fn filled(path: &str, id: &str) -> String {
    path.replace("{id}", id)
        .replace("{process}", "prc_aaaaaaaaaaaaaaaaaaaa")
        .replace("{image}", "img_aaaaaaaaaaaaaaaaaaaa")
        .replace("{job}", "nothing")
        .replace("{key}", "key_aaaaaaaaaaaaaaaaaaaa")
        .replace("{org}", "org_aaaaaaaaaaaaaaaaaaaa")
        .replace("{snapshot}", "snap_aaaaaaaaaaaaaaaaaaaa")
        .replace("{secret}", "sec_aaaaaaaaaaaaaaaaaaaa")
        .replace("{approval}", "apr_aaaaaaaaaaaaaaaaaaaa")
        .replace("{template}", "tpl_aaaaaaaaaaaaaaaaaaaa")
        .replace("{build}", "bld_aaaaaaaaaaaaaaaaaaaa")
        .replace("{tag}", "latest")
        .replace("{port}", "80")
        .replace("{code}", "not_found")
}

pub async fn ask(client: &Client, verb: Verb, path: &str) -> (u16, Vec<u8>) {
    let method = verb.as_str().parse().unwrap();
    let response = client
        .send(method, path, &[], Outgoing::empty())
        .await
        .unwrap();
    let status = response.status().as_u16();
    let streams = response.headers().get("content-type").is_some_and(|kind| {
        matches!(
            kind.to_str(),
            Ok("text/event-stream" | "application/x-ndjson")
        )
    });
    if streams {
        return (status, Vec::new());
    }
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, bytes.to_vec())
}

pub fn error_of(body: &[u8]) -> cove_api::ErrorDetail {
    let body: ErrorBody = serde_json::from_slice(body)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(body)));
    assert!(
        body.error.request_id.starts_with("req_"),
        "{}",
        body.error.request_id
    );
    assert_eq!(body.error.docs, cove_api::error::page_path(body.error.code));
    body.error
}

fn needs_key(route: &&Route) -> bool {
    route.access != Access::Public
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_but_the_public_ones_asks_for_a_key() {
    let server = Server::bare().await;
    for token in [
        None,
        Some("nonsense"),
        Some("cove_0000000000000000000000000000000000000000000000000000000000000000"),
    ] {
        let stranger = server.client_with(token);
        for route in ROUTES.iter().filter(needs_key) {
            let (status, body) = ask(&stranger, route.verb, &filled(route.path, "x")).await;
            assert_eq!(
                status, 401,
                "{:?} {} with {token:?}",
                route.verb, route.path
            );
            assert_eq!(error_of(&body).code.as_str(), "unauthenticated");
        }
        for (verb, path, _) in PLANNED {
            let (status, _) = ask(&stranger, *verb, &filled(path, "x")).await;
            assert_eq!(status, 401, "{verb:?} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_built_yet_says_so_and_never_succeeds() {
    let server = Server::bare().await;
    for (verb, path, what) in PLANNED {
        let (status, body) = ask(&server.client, *verb, &filled(path, "x")).await;
        assert_eq!(status, 501, "{verb:?} {path}");
        let error = error_of(&body);
        assert_eq!(error.code.as_str(), "unsupported");
        assert!(error.message.contains(what), "{}", error.message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_is_served_and_lists_every_route() {
    let server = Server::bare().await;
    let stranger = server.client_with(None);
    let (status, body) = ask(&stranger, Verb::Get, "/openapi.json").await;
    assert_eq!(status, 200);
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    for route in ROUTES {
        let verb = route.verb.as_str().to_ascii_lowercase();
        let operation = &document["paths"][route.path][&verb];
        assert_eq!(
            operation["operationId"],
            route.operation.as_str(),
            "{} {verb}",
            route.path
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_refuses_every_other_method_and_query() {
    let server = Server::bare().await;
    for route in ROUTES {
        let path = filled(route.path, "x");
        for verb in Verb::ALL {
            let known = ROUTES
                .iter()
                .any(|other| other.path == route.path && other.verb == verb)
                || PLANNED
                    .iter()
                    .any(|(planned, path, _)| *planned == verb && *path == route.path);
            if !known {
                let (status, body) = ask(&server.client, verb, &path).await;
                assert_eq!(status, 405, "{verb:?} {path}");
                assert_eq!(error_of(&body).code.as_str(), "method_not_allowed");
            }
        }
        let (status, body) = ask(&server.client, route.verb, &format!("{path}?surprise=1")).await;
        assert!(
            (400..500).contains(&status),
            "{:?} {path} took a surprise: {status}",
            route.verb
        );
        error_of(&body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_is_refused_where_it_would_mean_nothing() {
    let server = Server::bare().await;
    let name = http::HeaderName::from_static("idempotency-key");
    for route in ROUTES
        .iter()
        .filter(|route| route.mutates() && !route.idempotent)
    {
        let method = route.verb.as_str().parse().unwrap();
        let headers = [(name.clone(), "abc")];
        let path = filled(route.path, "x");
        let response = server
            .client
            .send(method, &path, &headers, Outgoing::empty())
            .await
            .unwrap();
        assert_eq!(response.status(), 422, "{:?} {path}", route.verb);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_figures_answer_on_an_empty_server() {
    let server = Server::bare().await;
    for route in ROUTES {
        let plain = route.verb == Verb::Get
            && !route.path.contains('{')
            && route.operation != Operation::Events;
        if plain {
            let (status, _) = ask(&server.client, Verb::Get, route.path).await;
            assert_eq!(status, 200, "{}", route.path);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_finds_requests_and_the_host() {
    let server = Server::bare().await;
    server.sandbox("counted").await;
    let text = server.client.prometheus().await.unwrap();
    assert!(
        text.contains("cove_http_requests_total{operation=\"sandbox.create\",status=\"2xx\"} 1"),
        "{text}"
    );
    assert!(text.contains("cove_sandboxes 1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_that_strangers_make_up_are_counted_as_one() {
    let server = Server::bare().await;
    let stranger = server.client_with(None);
    let long = "LONG".repeat(1000);
    let made_up = (0..20).map(|number| format!("QQQ{number}"));
    let made_up: Vec<String> = made_up.chain([long]).collect();
    // Of each dialect: a route, one that refuses whatever it is asked, and one that is not there.
    let paths = [
        "/e2b/health",
        "/e2b/templates/tags",
        "/e2b/nowhere",
        "/files",
        "/daytona/sandbox",
        "/daytona/toolbox/box/lsp/start",
        "/daytona/nowhere",
    ];
    for method in &made_up {
        for path in paths {
            let method = method.parse().unwrap();
            let asked = stranger.send(method, path, &[], Outgoing::bytes(Vec::new()));
            let status = asked.await.unwrap().status();
            assert!(status.is_client_error(), "{path}: {status}");
        }
    }
    let text = server.client.prometheus().await.unwrap();
    assert!(!text.contains("QQQ") && !text.contains("LONG"), "{text}");
    let counted = format!(
        "cove_http_requests_total{{operation=\"other /e2b/health\",status=\"4xx\"}} {}",
        made_up.len()
    );
    assert!(text.contains(&counted), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_names_its_page_and_the_page_is_there_for_everybody() {
    let server = Server::bare().await;
    let stranger = server.client_with(None);
    let (_, body) = ask(&stranger, Verb::Get, "/v1/sandboxes").await;
    let error = error_of(&body);
    assert_eq!(error.docs, "/docs/errors/unauthenticated");
    let (status, page) = ask(&stranger, Verb::Get, &error.docs).await;
    assert_eq!(status, 200);
    let page = String::from_utf8(page).unwrap();
    assert!(page.starts_with("# `unauthenticated` (HTTP 401)"), "{page}");
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    for &code in ErrorCode::ALL {
        let (status, page) = ask(&stranger, Verb::Get, &cove_api::error::page_path(code)).await;
        assert_eq!(status, 200, "{code} has no page");
        let file = std::fs::read(pages.join(format!("{code}.md"))).unwrap();
        assert!(page == file, "the page of {code} is another one");
    }
    let (status, body) = ask(&stranger, Verb::Get, "/docs/errors/nothing").await;
    assert_eq!(status, 404);
    assert_eq!(error_of(&body).code.as_str(), "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_body_or_query_is_explained_without_the_words_of_the_program() {
    let server = Server::bare().await;
    for (body, told) in [
        (
            r#"{"resources":{"cpu":"two"}}"#,
            "resources.cpu must be a number, not a string",
        ),
        (
            r#"{"nmae":"x"}"#,
            "unknown field nmae; known fields: image, ",
        ),
        (
            r#"{"network":{"mode":"all"}}"#,
            "network.mode must be one of none, allowlist, open, not \"all\"",
        ),
        (r#"{"labels":{"a":1}}"#, "labels.a must be a string, not 1"),
        (r#"{"env":["A=b"]}"#, "env must be an object, not a list"),
        ("[]", "it must be an object, not a list"),
    ] {
        let response = server
            .client
            .send(
                http::Method::POST,
                "/v1/sandboxes",
                &[(http::header::CONTENT_TYPE, "application/json")],
                Outgoing::bytes(body),
            )
            .await
            .unwrap();
        assert_eq!(response.status().as_u16(), 422, "{body}");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let message = error_of(&bytes).message;
        assert!(message.contains(told), "{body}: {message}");
        for word in ["struct", "sequence", "u64", "f64", "at line", "variant"] {
            assert!(!message.contains(word), "{body}: {message}");
        }
    }
    for (query, told) in [
        ("limit=many", "limit must be a whole number"),
        ("state=asleep", "state must be one of "),
        ("colour=red", "unknown field colour; known fields: "),
    ] {
        let (status, body) =
            ask(&server.client, Verb::Get, &format!("/v1/sandboxes?{query}")).await;
        assert_eq!(status, 422, "{query}");
        let message = error_of(&body).message;
        assert!(message.contains(told), "{query}: {message}");
    }
}
