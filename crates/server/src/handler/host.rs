//! The host, the server's own health and figures, and the contract.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use cove_api::NoQuery;
use cove_api::host::{Finding, Health, Level};
use cove_api::route::{JSON, PROMETHEUS};

use super::{Answer, ok};
use crate::config::LogLosses;
use crate::convert;
use crate::extract::{Caller, Query};
use crate::metrics::Own;
use crate::state::App;

pub async fn runners(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let host = app.control.host(&caller.principal).await?;
    let mut runner = convert::runner(host);
    runner
        .findings
        .extend(app.config.log_losses.as_ref().map(log_finding));
    ok(convert::everything(vec![runner]))
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
    let own = Own {
        log_lines_lost: app.config.log_losses.as_ref().map(LogLosses::total),
        store: app.control.store_operations(),
        tables: app.table_sizes(),
        held_bytes: app.control.budget().held(),
    };
    let mut response = app.metrics.render(&own, host.as_ref()).into_response();
    let kind = HeaderValue::from_static(PROMETHEUS);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

fn log_finding(losses: &LogLosses) -> Finding {
    let lost = losses.total();
    let (level, message, fix) = match lost {
        0 => (Level::Ok, "all lines of the server's log were written".into(), None),
        lost => (
            Level::Warning,
            format!("{lost} lines of the server's log could not be written since it started"),
            Some("check what its standard error goes to: a full disk, or a reader that is gone or too slow".into()),
        ),
    };
    Finding {
        name: "log".into(),
        level,
        message,
        fix,
    }
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
