//! Random requests against every route: whatever comes in, the server answers in its form, soon, and
//! a refused request changed nothing. Nothing is inside these sandboxes: random commands must not run
//! on the machine of the tests.

use cove_api::route::{ROUTES, Verb};
use cove_api::sandbox::ListSandboxes;
use cove_client::Outgoing;
use http::{HeaderName, HeaderValue};
use http_body_util::BodyExt;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

use super::harness::{DEADLINE, Server};

/// Requests tried against each route.
const TRIES: usize = 24;
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("box".to_owned()),
        Just("..".to_owned()),
        Just("sbx_aaaaaaaaaaaaaaaaaaaa".to_owned()),
        Just("\u{0}".to_owned()),
        Just("'; DROP TABLE sandboxes; --".to_owned()),
        "[a-z]{1,8}",
        "\\PC{0,40}",
        Just("x".repeat(5000)),
    ]
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        text().prop_map(Into::into),
    ];
    let field = prop_oneof![
        Just("name"),
        Just("image"),
        Just("resources"),
        Just("cpu"),
        Just("memory_mb"),
        Just("env"),
        Just("labels"),
        Just("command"),
        Just("argv"),
        Just("path"),
        Just("signal"),
        Just("cols"),
        Just("type"),
        Just("scopes"),
        Just("quota"),
        Just("network"),
        Just("mode"),
        Just("stdin_base64"),
        Just("timeout_ms"),
        Just("lifecycle"),
        Just("from"),
        Just("to"),
        Just("reference"),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::vec((field.clone(), inner), 0..6).prop_map(|fields| {
                serde_json::Value::Object(
                    fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
                )
            }),
        ]
    })
}

#[derive(Debug, Clone)]
enum Body {
    Nothing,
    Json(serde_json::Value),
    Bytes(Vec<u8>),
}

#[derive(Debug, Clone)]
struct Attack {
    names: Vec<String>,
    query: Vec<(String, String)>,
    body: Body,
    kind: Option<String>,
    accept: Option<String>,
    extra: Vec<(String, String)>,
}

fn attack() -> impl Strategy<Value = Attack> {
    let body = prop_oneof![
        2 => Just(Body::Nothing),
        4 => json().prop_map(Body::Json),
        1 => prop::collection::vec(any::<u8>(), 0..2000).prop_map(Body::Bytes),
    ];
    let key = prop_oneof![
        Just("path".to_owned()),
        Just("limit".to_owned()),
        Just("cursor".to_owned()),
        Just("labels".to_owned()),
        Just("stdout_from".to_owned()),
        Just("after".to_owned()),
        Just("depth".to_owned()),
        Just("state".to_owned()),
        text(),
    ];
    let kind = prop::option::of(prop_oneof![
        4 => Just("application/json".to_owned()),
        1 => Just("application/octet-stream".to_owned()),
        1 => "[ -~]{0,30}",
    ]);
    let accept = prop::option::of(prop_oneof![
        Just("application/json".to_owned()),
        Just("*/*;q=nonsense".to_owned()),
        "[ -~]{0,30}",
    ]);
    let extra = prop::collection::vec(
        (
            prop_oneof![
                Just("range"),
                Just("last-event-id"),
                Just("idempotency-key"),
                Just("x-request-id"),
                Just("upgrade")
            ],
            "[ -~]{0,40}",
        ),
        0..3,
    )
    .prop_map(|pairs| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect());
    (
        prop::collection::vec(text(), 2),
        prop::collection::vec((key, text()), 0..3),
        body,
        kind,
        accept,
        extra,
    )
        .prop_map(|(names, query, body, kind, accept, extra)| Attack {
            names,
            query,
            body,
            kind,
            accept,
            extra,
        })
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn target(path: &str, attack: &Attack) -> String {
    let mut names = attack.names.iter().cycle();
    let parts: Vec<String> = path
        .split('/')
        .map(|part| match part.starts_with('{') {
            true => escaped(names.next().expect("there are names")),
            false => part.to_owned(),
        })
        .collect();
    let mut target = parts.join("/");
    for (index, (key, value)) in attack.query.iter().enumerate() {
        target.push(if index == 0 { '?' } else { '&' });
        target.push_str(&format!("{}={}", escaped(key), escaped(value)));
    }
    target
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_breaks_the_server_and_no_refused_one_changes_anything() {
    let server = Server::bare().await;
    server.sandbox("box").await;
    let mut runner = TestRunner::new(Config::default());
    for route in ROUTES {
        for _ in 0..TRIES {
            let attack = attack().new_tree(&mut runner).unwrap().current();
            one(&server, route.verb, &target(route.path, &attack), &attack).await;
        }
    }
    server.client.health().await.unwrap();
}

async fn one(server: &Server, verb: Verb, target: &str, attack: &Attack) {
    // A request may rightly wake what an earlier one put to rest; here nothing rests.
    server.client.resume_sandbox("box").await.ok();
    let before = books(server).await;
    let body = match &attack.body {
        Body::Nothing => Outgoing::empty(),
        Body::Json(value) => Outgoing::bytes(value.to_string()),
        Body::Bytes(bytes) => Outgoing::bytes(bytes.clone()),
    };
    let mut headers: Vec<(HeaderName, &str)> = Vec::new();
    let named = [("content-type", &attack.kind), ("accept", &attack.accept)];
    for (name, value) in named {
        if let Some(value) = value {
            headers.push((HeaderName::from_static(name), value));
        }
    }
    for (name, value) in &attack.extra {
        headers.push((HeaderName::from_bytes(name.as_bytes()).unwrap(), value));
    }
    headers.retain(|(_, value)| HeaderValue::from_str(value).is_ok());
    let method = verb.as_str().parse().unwrap();
    let sent = server.client.send(method, target, &headers, body);
    // Any one answer, streams not counted.
    let response = tokio::time::timeout(DEADLINE, sent)
        .await
        .unwrap_or_else(|_| panic!("{verb:?} {target} hangs: {attack:?}"));
    let Ok(response) = response else {
        // The client itself may refuse to send such a thing; the server must still be there.
        server.client.health().await.unwrap();
        return;
    };
    let status = response.status().as_u16();
    assert!(
        status < 500 || matches!(status, 501 | 502),
        "{verb:?} {target} gave {status}: {attack:?}"
    );
    if status >= 400 {
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        super::walk::error_of(&bytes);
        assert_eq!(
            books(server).await,
            before,
            "{verb:?} {target} gave {status} and changed something"
        );
    }
}

/// What a refused request must not change.
async fn books(server: &Server) -> String {
    let sandboxes = server
        .client
        .list_sandboxes(&ListSandboxes::default())
        .await
        .unwrap();
    let keys = server
        .client
        .keys(&cove_api::PageQuery::default())
        .await
        .unwrap();
    let orgs = server
        .client
        .orgs(&cove_api::PageQuery::default())
        .await
        .unwrap();
    let sandboxes: Vec<_> = sandboxes
        .items
        .iter()
        .map(|sandbox| (&sandbox.id, sandbox.generation))
        .collect();
    let keys: Vec<_> = keys
        .items
        .iter()
        .map(|key| (&key.id, key.revoked_at))
        .collect();
    let orgs: Vec<_> = orgs.items.iter().map(|org| (&org.id, &org.quota)).collect();
    format!("{sandboxes:?} {keys:?} {orgs:?}")
}
