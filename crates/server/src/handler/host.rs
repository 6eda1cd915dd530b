//! The host, the server's own health and figures, and the contract.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use cove_api::NoQuery;
use cove_api::host::Health;
use cove_api::route::{JSON, PROMETHEUS};

use super::{Answer, ok};
use crate::convert;
use crate::extract::{Caller, Query};
use crate::state::App;

pub async fn runners(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let host = app.control.host(&caller.principal).await?;
    ok(convert::everything(vec![convert::runner(host)]))
}

pub async fn prometheus(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let host = match app.control.host(&caller.principal).await {
        Ok(host) => Some(host),
        // The server's own figures matter most when the host does not answer.
        Err(error) if error.code == cove_control::ErrorCode::RunnerUnreachable => None,
        Err(error) => return Err(error.into()),
    };
    let mut response = app.metrics.render(host.as_ref()).into_response();
    let kind = HeaderValue::from_static(PROMETHEUS);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

fn health_body(status: &str) -> Health {
    Health {
        status: status.into(),
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

pub async fn health(Query(NoQuery {}): Query<NoQuery>) -> Answer {
    ok(health_body("ok"))
}

pub async fn ready(State(app): State<App>, Query(NoQuery {}): Query<NoQuery>) -> Answer {
    app.control.ready().await?;
    ok(health_body("ready"))
}

pub async fn openapi(State(app): State<App>, Query(NoQuery {}): Query<NoQuery>) -> Answer {
    let mut response = app.openapi.clone().into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    Ok(response)
}
