//! The layer that `/mcp` stands on passes the official conformance suite. The suite asks for tools,
//! resources and prompts of its own, which are mounted here in place of Cove's, and for sessions, because
//! some of its scenarios have the server ask the client.
// A test says what it expects by failing.
#![allow(clippy::unwrap_used)]

mod bounds;
mod fixture;

use std::path::Path;

use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;

use fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn the_mcp_layer_passes_the_official_conformance_suite() {
    let fixture = Fixture::default();
    let sessions = LocalSessionManager::default();
    let service = cove_mcp::http::service(move || fixture.clone(), sessions, true);
    let router = axum::Router::new().route_service("/mcp", service);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let served = tokio::spawn(async move { axum::serve(listener, router).await });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/mcp-conformance");
    let output = tokio::process::Command::new(script).arg(url).output();
    let output = output.await.unwrap();
    served.abort();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
