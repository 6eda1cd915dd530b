//! The host, the server's own health and figures, and the contract.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use cove_api::host::{Finding, Health, Level};
use cove_api::route::{JSON, MARKDOWN, PROMETHEUS};
use cove_api::{ErrorCode, NoQuery};

use super::{Answer, ok};
use crate::config::LogLosses;
use crate::convert;
use crate::extract::{Caller, Names, Query};
use crate::failure::Failure;
use crate::metrics::Own;
use crate::state::App;

pub async fn runners(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let host = match app.control.host(&caller.principal).await {
        // The nodes are the answer where there is no host of the server's own, or where one does not answer.
        Err(error) if is_absent(&error) && !app.control.nodes().is_empty() => no_host(),
        host => host?,
    };
    let mut runner = convert::runner(host);
    runner
        .findings
        .extend(app.control.nodes().iter().map(node_finding));
    runner
        .findings
        .extend(app.config.log_losses.as_ref().map(log_finding));
    let objects = app.control.check_objects().await;
    runner.findings.extend(objects.map(objects_finding));
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
        Err(error) if is_absent(&error) => None,
        Err(error) => return Err(error.into()),
    };
    let own = Own {
        log_lines_lost: app.config.log_losses.as_ref().map(LogLosses::total),
        store: app.control.store_operations(),
        tables: app.table_sizes(),
        held_bytes: app.control.budget().held(),
        objects: app.control.object_figures().await.unwrap_or_default(),
    };
    let mut text = app.metrics.render(&own, host.as_ref());
    crate::metrics::nodes(&mut text, &app.control.nodes());
    let mut response = text.into_response();
    let kind = HeaderValue::from_static(PROMETHEUS);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

fn is_absent(error: &cove_control::ControlError) -> bool {
    use cove_control::ErrorCode::{NoCapacity, RunnerUnreachable};
    matches!(error.code, RunnerUnreachable | NoCapacity)
}

fn no_host() -> cove_control::HostReport {
    cove_control::HostReport {
        cpus: 0,
        memory_bytes: 0,
        disk_bytes: 0,
        disk_free_bytes: 0,
        promised_cpu: 0.0,
        promised_memory_bytes: 0,
        promised_disk_bytes: 0,
        sandboxes: 0,
        running: 0,
        warm: 0,
        tiers: Vec::new(),
        findings: Vec::new(),
    }
}

/// Clocks that differ by more than this are reported. Certificates bear an hour.
const SKEW_MAX_MS: i64 = 60_000;

fn node_finding(node: &cove_control::Node) -> Finding {
    use cove_control::NodeState;
    let skew = node.clock_skew_ms.unwrap_or_default();
    let (level, message, fix) = match (node.state, &node.reason) {
        (NodeState::Away, reason) => (
            Level::Error,
            format!(
                "does not answer at {}: {}",
                node.address,
                reason.as_deref().unwrap_or("unknown")
            ),
            Some(
                "check that `cove node run` runs there, and that the server reaches that address"
                    .into(),
            ),
        ),
        (NodeState::Joining, _) => (
            Level::Warning,
            format!("has not answered yet at {}", node.address),
            Some("start `cove node run` there".into()),
        ),
        (NodeState::Ready, _) if skew.abs() > SKEW_MAX_MS => (
            Level::Warning,
            format!("answers; its clock differs by {} s", skew / 1000),
            Some("synchronise the clocks of all hosts".into()),
        ),
        (NodeState::Ready, _) => (
            Level::Ok,
            format!(
                "answers at {}; its clock differs by {skew} ms",
                node.address
            ),
            None,
        ),
    };
    Finding {
        name: format!("node {}", node.name),
        level,
        message,
        fix,
    }
}

fn log_finding(losses: &LogLosses) -> Finding {
    let lost = losses.total();
    let (level, message, fix) = match lost {
        0 => (Level::Ok, "all lines of the server's log were written".into(), None),
        lost => (
            Level::Warning,
            format!("{lost} lines of the server's log could not be written since it started"),
            Some("check where its standard error goes: the disk may be full, or the reader may be gone or too slow".into()),
        ),
    };
    Finding {
        name: "log".into(),
        level,
        message,
        fix,
    }
}

/// An object was written, read and deleted, or not.
fn objects_finding(checked: Result<(), String>) -> Finding {
    let (level, message, fix) = match checked {
        Ok(()) => (
            Level::Ok,
            "an object was written, read and deleted".into(),
            None,
        ),
        Err(problem) => (
            Level::Error,
            problem,
            Some("check the settings objects, objects_endpoint and objects_credentials".into()),
        ),
    };
    Finding {
        name: "object storage".into(),
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

/// The page about an error code, as the documentation has it.
pub async fn error_page(
    _: Query<NoQuery>,
    Names(code): Names<String>,
) -> Result<impl IntoResponse, Failure> {
    let code = ErrorCode::parse(&code)
        .ok_or_else(|| Failure::new(ErrorCode::NotFound, "there is no such error code"))?;
    Ok(([(header::CONTENT_TYPE, MARKDOWN)], code.page()))
}
