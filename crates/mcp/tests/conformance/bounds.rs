//! What tools keep of an API that sends without end.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use cove_client::{Client, LocalServer};
use cove_mcp::http::{Endpoint, values};
use futures_util::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

const RESULTS: usize = 1000;
const RESULT_BYTES: usize = 30 * 1024;

/// A run of code with many results; counts those that were taken.
fn with_results(kind: &'static str, taken: &Arc<AtomicUsize>) -> LocalServer {
    let taken = Arc::clone(taken);
    Arc::new(move |_| {
        let taken = Arc::clone(&taken);
        let results = (0..RESULTS).map(move |_| {
            taken.fetch_add(1, Ordering::Relaxed);
            let data = json!({ kind: "x".repeat(RESULT_BYTES) });
            json!({ "type": "result", "result": { "data": data, "main": false } })
        });
        let end = json!({ "type": "end", "context": "c", "timed_out": false, "context_ended": false,
            "truncated": false, "duration_ms": 1 });
        let lines = results
            .chain([end])
            .map(|event| Ok::<_, Infallible>(format!("{event}\n")));
        let body = axum::body::Body::from_stream(stream::iter(lines));
        let body = body.map_err(Into::into).boxed_unsync();
        Box::pin(async move { Response::new(body) })
    })
}

async fn call(server: LocalServer, tool: &str, arguments: Value) -> (usize, Value) {
    let params = json!({ "name": tool, "arguments": arguments });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = Request::post("/mcp")
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("host", "localhost")
        .body(Full::new(Bytes::from(message.to_string())))
        .unwrap();
    let client = Client::local(server, "token", "test").unwrap();
    let endpoint = Endpoint::default();
    let answer = endpoint.answer(request, client, Arc::new(())).await;
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (body.len(), serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn results_of_code_beyond_the_limit_are_left_out_and_the_answer_says_so() {
    for kind in ["text/plain", "image/png"] {
        let taken = Arc::default();
        let arguments = json!({ "sandbox": "box", "code": "1" });
        let (bytes, answer) = call(with_results(kind, &taken), "code", arguments).await;
        let result = &answer["result"];
        assert_eq!(result["isError"], false, "{answer}");
        assert_eq!(taken.load(Ordering::Relaxed), RESULTS, "all were followed");
        assert!(bytes < 1200 * 1024, "{kind}: {bytes} bytes");
        let left_out = result["structuredContent"]["results_left_out"].as_u64();
        assert!(left_out.unwrap() > RESULTS as u64 / 2, "{left_out:?}");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("results left out"), "{}", text.len());
    }
}

#[test]
fn a_message_is_charged_for_the_tool_it_calls_and_in_doubt_for_the_largest() {
    let endpoint = Endpoint::default();
    let holds = |text: &str| endpoint.holds(text.as_bytes());
    let most = holds("");
    let run = holds(r#"{"method":"tools/call","params":{"name":"run"}}"#);
    assert!(run > 0 && run < most);
    assert!(holds(r#"{"method":"tools/list"}"#) < run);
    let escaped = r#"{"method":"tools\/call","params":{"name":"c\u006fde"}}"#;
    let plain = r#"{"method":"tools/call","params":{"name":"code"}}"#;
    assert_eq!(holds(escaped), holds(plain));
    for doubtful in [
        r#"{"method":"tools/call","params":{"name":"run","name":"code"}}"#,
        r#"{"method":"tools/list","method":"tools/call","params":{"name":"code"}}"#,
        r#"[{"method":"tools/call","params":{"name":"code"}}]"#,
        "{",
    ] {
        assert_eq!(holds(doubtful), most, "{doubtful}");
    }
}

#[test]
fn values_are_counted_and_what_is_inside_of_strings_is_not() {
    assert!(values(br#"{"a":[1,2,3],"b":{}}"#) >= 7);
    assert_eq!(values(br#""a,b:[{\",,,\\""#), 1);
}
