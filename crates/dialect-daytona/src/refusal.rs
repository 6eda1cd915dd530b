//! Refusals and failures in Daytona's own form: `{statusCode, message, code, source}`.
//!
//! Its SDKs choose the exception by source and code, and by the status where they do not know the code.
//! Which of Daytona's services a refusal seems to come from depends on the route only, so that is filled
//! in by a layer.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cove_control::{ControlError, ErrorCode, GuestError};
use cove_dialect::{BodyError, FollowError, refused};
use cove_model::error::chain;
use cove_protocol::message::ErrorCode as GuestCode;
use serde::Serialize;

const COMMAND_NOT_FOUND: &str = "COMMAND_NOT_FOUND";

#[derive(Debug, Clone)]
pub struct Refusal {
    status: u16,
    code: &'static str,
    message: String,
    retry_after_s: Option<u64>,
    /// For the log only.
    cause: Option<String>,
}

pub type Answer = Result<Response, Refusal>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    status_code: u16,
    message: &'a str,
    code: &'a str,
    source: &'a str,
}

impl Refusal {
    pub fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: refused::shown(message),
            retry_after_s: None,
            cause: None,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, "BAD_REQUEST", message)
    }

    /// What this server does not do, whatever its state.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(501, "UNSUPPORTED", what)
    }

    /// Whether a command was not run because there is no such program.
    pub fn is_missing_program(&self) -> bool {
        self.code == COMMAND_NOT_FOUND
    }

    /// The same under a status and a code that say more, where there are any.
    fn known_as(self, known: Option<(u16, &'static str)>) -> Self {
        match known {
            Some((status, code)) => Self {
                status,
                code,
                ..self
            },
            None => self,
        }
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    fn as_body<'a>(&'a self, source: &'a str) -> Body<'a> {
        Body {
            status_code: self.status,
            message: &self.message,
            code: self.code,
            source,
        }
    }

    /// The same as a text, for where it is not the whole answer.
    pub fn json(&self, source: &str) -> String {
        serde_json::to_string(&self.as_body(source)).unwrap_or_default()
    }

    fn body(&self, source: &str) -> Response {
        let mut response = axum::Json(self.as_body(source)).into_response();
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        refused::add_retry_after(&mut response, self.retry_after_s);
        response
    }
}

impl IntoResponse for Refusal {
    /// Without a body yet: the layer around the route knows the source.
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

pub async fn from_api(request: Request, next: Next) -> Response {
    with_body(request, next, "DAYTONA_API").await
}

pub async fn from_daemon(request: Request, next: Next) -> Response {
    with_body(request, next, "DAYTONA_DAEMON").await
}

async fn with_body(request: Request, next: Next, source: &str) -> Response {
    let head = *request.method() == Method::HEAD;
    let mut response = next.run(request).await;
    let Some(refusal) = response.extensions_mut().remove::<Refusal>() else {
        return response;
    };
    if let Some(cause) = &refusal.cause {
        tracing::warn!(cause, message = refusal.message, "a request failed");
    }
    let mut response = refusal.body(source);
    if head {
        *response.body_mut() = axum::body::Body::empty();
    }
    response
}

impl From<ControlError> for Refusal {
    fn from(error: ControlError) -> Self {
        let (status, code) = match error.code {
            ErrorCode::InvalidRequest => (400, "BAD_REQUEST"),
            ErrorCode::Unauthenticated => (401, "UNAUTHORIZED"),
            ErrorCode::Forbidden | ErrorCode::QuotaExceeded => (403, "FORBIDDEN"),
            ErrorCode::PermissionDenied => (403, "FILE_ACCESS_DENIED"),
            ErrorCode::NotFound => (404, "NOT_FOUND"),
            ErrorCode::AlreadyExists
            | ErrorCode::Conflict
            | ErrorCode::InUse
            | ErrorCode::Stale
            | ErrorCode::IdempotencyKeyReused
            | ErrorCode::NotCapturable
            | ErrorCode::UnfitHost
            | ErrorCode::Unchanged
            | ErrorCode::LimitReached
            | ErrorCode::TooManyProcesses => (409, "CONFLICT"),
            ErrorCode::RateLimited => (429, "RATE_LIMITED"),
            ErrorCode::Unsupported => (501, "UNSUPPORTED"),
            ErrorCode::NoCapacity => (503, "NO_CAPACITY"),
            ErrorCode::DiskFull => (507, "DISK_FULL"),
            ErrorCode::GuestUnreachable | ErrorCode::RunnerUnreachable | ErrorCode::PortClosed => {
                (502, "BAD_GATEWAY")
            }
            ErrorCode::TimedOut => (504, "TIMED_OUT"),
            ErrorCode::Unavailable => (503, "UNAVAILABLE"),
            ErrorCode::Internal => (500, "INTERNAL"),
            // Codes of the native contract alone.
            ErrorCode::MalformedRequest
            | ErrorCode::PathNotFound
            | ErrorCode::MethodNotAllowed
            | ErrorCode::RequestTimeout
            | ErrorCode::PathExists
            | ErrorCode::NotADirectory
            | ErrorCode::IsADirectory
            | ErrorCode::DirectoryNotEmpty
            | ErrorCode::ProcessGone
            | ErrorCode::PayloadTooLarge
            | ErrorCode::UriTooLong
            | ErrorCode::UnsupportedMediaType
            | ErrorCode::RangeNotSatisfiable
            | ErrorCode::CommandNotFound
            | ErrorCode::NoSuchUser
            | ErrorCode::HeadersTooLarge => (error.code.status(), "BAD_REQUEST"),
        };
        let message = refused::message_of(&error);
        let cause = error.source.as_deref().map(|source| chain(source));
        Self {
            retry_after_s: error.retry_after_s,
            cause,
            ..Self::new(status, code, message)
        }
    }
}

/// A refusal of a guest that is about a command or a terminal.
impl From<GuestError> for Refusal {
    fn from(error: GuestError) -> Self {
        let known = match error.code() {
            Some(GuestCode::CommandNotFound) => Some((400, COMMAND_NOT_FOUND)),
            Some(GuestCode::NoSuchUser) => Some((400, "BAD_REQUEST")),
            Some(GuestCode::NotFound) => Some((404, "PROCESS_NOT_FOUND")),
            Some(GuestCode::Gone) => Some((410, "COMMAND_ALREADY_COMPLETED")),
            _ => None,
        };
        Self::from(ControlError::from(error)).known_as(known)
    }
}

impl From<FollowError> for Refusal {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Guest(error) => error.into(),
            FollowError::Control(error) => error.into(),
        }
    }
}

/// A refusal of a guest that is about a path.
pub fn about_path(error: GuestError) -> Refusal {
    let known = match error.code() {
        Some(GuestCode::NotFound) => Some((404, "FILE_NOT_FOUND")),
        Some(GuestCode::PermissionDenied) => Some((403, "FILE_ACCESS_DENIED")),
        Some(
            GuestCode::Invalid
            | GuestCode::NotADirectory
            | GuestCode::IsADirectory
            | GuestCode::NotEmpty,
        ) => Some((400, "INVALID_FILE_PATH")),
        _ => None,
    };
    Refusal::from(ControlError::from(error)).known_as(known)
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        let (status, code) = match &error {
            BodyError::NoRoom(error) => return error.again().into(),
            BodyError::TooLarge(_) => (413, "PAYLOAD_TOO_LARGE"),
            BodyError::TooSlow => (408, "REQUEST_TIMEOUT"),
            BodyError::Broken(_) => (400, "BAD_REQUEST"),
        };
        Self::new(status, code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_control_plane_is_a_status_the_sdk_can_tell() {
        for code in ErrorCode::ALL {
            let refusal = Refusal::from(ControlError::new(*code, "x"));
            assert!((400..600).contains(&refusal.status), "{code}");
        }
    }
}
