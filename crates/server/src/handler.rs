//! What the routes do, by concern. Each handler converts, asks the control plane, and converts back.

use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use cove_api::PageQuery;
use cove_control::PageRequest;
use cove_limits::{CURSOR_MAX, PAGE_DEFAULT, PAGE_MAX};
use serde::Serialize;

use crate::failure::Failure;

pub mod approvals;
pub mod attach;
pub mod builds;
pub mod code;
pub mod egress;
pub mod events;
pub mod exec;
pub mod files;
pub mod host;
pub mod identity;
pub mod images;
pub mod nodes;
pub mod place;
pub mod ports;
pub mod processes;
pub mod quarantine;
pub mod sandboxes;
pub mod secrets;
pub mod services;
pub mod snapshots;
pub mod ssh;
pub mod templates;
pub mod tenancy;
pub mod tree;
pub mod volumes;

/// What a handler answers.
type Answer = Result<Response, Failure>;

fn ok(value: impl Serialize) -> Answer {
    Ok(axum::Json(value).into_response())
}

fn with_status(status: StatusCode, value: impl Serialize) -> Answer {
    Ok((status, axum::Json(value)).into_response())
}

/// 201, and whether an earlier request with the same idempotency key made it.
fn made(value: impl Serialize, replayed: bool) -> Answer {
    let mut response = with_status(StatusCode::CREATED, value)?;
    if replayed {
        let value = HeaderValue::from_static("true");
        response.headers_mut().insert("idempotent-replayed", value);
    }
    Ok(response)
}

fn nothing() -> Answer {
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn page_request(query: PageQuery) -> Result<PageRequest, Failure> {
    let limit = query.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Failure::invalid(format!(
            "limit must be between 1 and {PAGE_MAX}"
        )));
    }
    if query
        .cursor
        .as_ref()
        .is_some_and(|cursor| cursor.is_empty() || cursor.len() > CURSOR_MAX)
    {
        return Err(Failure::invalid(
            "cursor must be the next_cursor of an earlier page",
        ));
    }
    Ok(PageRequest {
        limit,
        cursor: query.cursor,
    })
}
