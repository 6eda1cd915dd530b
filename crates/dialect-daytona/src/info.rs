//! Figures and ports of a running sandbox.

use axum::extract::State;
use axum::response::IntoResponse;
use cove_control::GuestAction;
use cove_dialect::Front;
use serde_json::json;
use time::OffsetDateTime;

use crate::asking::{Caller, Names};
use crate::convert::time_text;
use crate::refusal::{Answer, Refusal};

/// Between the two looks that tell how busy the CPUs are.
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);

pub async fn ports(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    let access = front
        .control
        .guest(&caller, &id, GuestAction::PortList)
        .await?;
    let mut ports: Vec<u32> = access
        .guest()
        .ports()
        .await?
        .iter()
        .map(|p| p.port)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    Ok(axum::Json(json!({ "ports": ports })).into_response())
}

pub async fn port_in_use(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names((id, port)): Names<(String, String)>,
) -> Answer {
    let port: u16 = port
        .parse()
        .map_err(|_| Refusal::invalid("port must be a number between 1 and 65535"))?;
    let access = front
        .control
        .guest(&caller, &id, GuestAction::PortList)
        .await?;
    let ports = access.guest().ports().await?;
    let used = ports.iter().any(|open| open.port == u32::from(port));
    Ok(axum::Json(json!({ "isInUse": used })).into_response())
}

pub async fn metrics(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
) -> Answer {
    let before = front.control.sample_sandbox(&caller, &id).await?;
    tokio::time::sleep(LOOK).await;
    let now = front.control.sample_sandbox(&caller, &id).await?;
    let sandbox = front.control.get_sandbox(&caller, &id).await?;
    let passed = (now.at - before.at).whole_microseconds().max(1);
    let used = now.cpu_usec.saturating_sub(before.cpu_usec);
    let at = OffsetDateTime::now_utc();
    let answer = json!({
        "cpuCount": sandbox.limits.cpu.ceil() as u64,
        "cpuUsedPct": used as f64 / passed as f64 * 100.0 / sandbox.limits.cpu,
        "memTotal": now.memory_limit_bytes,
        "memUsed": now.memory_bytes,
        "memCache": 0,
        "diskTotal": now.disk_limit_bytes,
        "diskUsed": now.disk_bytes,
        "diskFree": now.disk_limit_bytes.saturating_sub(now.disk_bytes),
        "timestamp": time_text(at),
        "timestampUnix": at.unix_timestamp(),
    });
    Ok(axum::Json(answer).into_response())
}
