//! Refusals in E2B's words, for visitors who show a token of its SDKs: these tell by status and text what to do.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use cove_api::ErrorCode;
use serde_json::json;

use super::pass::ACCESS_HEADER;
use super::{PreviewUrl, host_name};
use crate::failure::Failure;

/// `None` for other visitors, and for what E2B has no words for.
pub fn refusal(
    failure: &Failure,
    headers: &HeaderMap,
    place: Option<&PreviewUrl>,
) -> Option<Response> {
    if !headers.contains_key(&ACCESS_HEADER) {
        return None;
    }
    let (status, message) = match failure.code {
        ErrorCode::Unauthenticated | ErrorCode::Forbidden => {
            (StatusCode::FORBIDDEN, failure.message.as_str())
        }
        ErrorCode::NotFound | ErrorCode::Conflict => {
            (StatusCode::BAD_GATEWAY, "The sandbox was not found")
        }
        ErrorCode::PortClosed => (
            StatusCode::BAD_GATEWAY,
            "The sandbox is running but port is not open",
        ),
        _ => return None,
    };
    let host = headers.get(axum::http::header::HOST)?.to_str().ok()?;
    let (sandbox, port) = place?.of_host(host_name(host).ok()?)?;
    let body = json!({
        "sandboxId": sandbox.as_str().replacen('_', "-", 1),
        "message": message,
        "port": port,
        "code": status.as_u16(),
    });
    Some((status, Json(body)).into_response())
}
