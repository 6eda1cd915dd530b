//! Refusals, in the three forms E2B's clients read: the plane's, envd's plain HTTP, and Connect's.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cove_control::{ControlError, ErrorCode, GuestError};
use cove_dialect::{BodyError, FollowError, refused};
use cove_model::error::chain;
use cove_protocol::message::ErrorCode as GuestCode;
use serde_json::{Value, json};

/// Clients tell by these words that a sandbox does not run, and not that something is missing in it.
pub const NOT_RUNNING: &str = "The sandbox was not found";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Invalid,
    Unauthenticated,
    Forbidden,
    NotFound,
    Exists,
    /// The state of things does not allow it now.
    Conflict,
    Exhausted,
    Unsupported,
    DiskFull,
    TooLarge,
    /// The sandbox is gone or at rest.
    NotRunning,
    Unavailable,
    TimedOut,
    Internal,
}

impl Kind {
    /// Its HTTP status, and its name in Connect.
    fn said(self) -> (StatusCode, &'static str) {
        match self {
            Self::Invalid => (StatusCode::BAD_REQUEST, "invalid_argument"),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "permission_denied"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::Exists => (StatusCode::CONFLICT, "already_exists"),
            Self::Conflict => (StatusCode::BAD_REQUEST, "failed_precondition"),
            Self::Exhausted => (StatusCode::TOO_MANY_REQUESTS, "resource_exhausted"),
            Self::Unsupported => (StatusCode::NOT_IMPLEMENTED, "unimplemented"),
            Self::DiskFull => (StatusCode::INSUFFICIENT_STORAGE, "resource_exhausted"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "resource_exhausted"),
            Self::NotRunning => (StatusCode::BAD_GATEWAY, "unavailable"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            Self::TimedOut => (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Refusal {
    pub kind: Kind,
    pub message: String,
    pub retry_after_s: Option<u64>,
}

impl Refusal {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        let mut message = refused::shown(message);
        // The word by which clients and their users tell one.
        if kind == Kind::TimedOut && !message.contains("timeout") {
            message = format!("timeout: {message}");
        }
        Self {
            kind,
            message,
            retry_after_s: None,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    pub fn unsupported(what: &str) -> Self {
        Self::new(
            Kind::Unsupported,
            format!("{what}: Cove cannot do this through its E2B dialect"),
        )
    }

    pub fn status(&self) -> u16 {
        self.kind.said().0.as_u16()
    }

    /// The plane's form, which envd's plain HTTP shares.
    pub fn api(self) -> Response {
        let (status, _) = self.kind.said();
        let body = json!({"code": status.as_u16(), "message": self.message});
        self.with(status, body)
    }

    /// The form of calls about a volume's files: the code is a word.
    pub fn content(self) -> Response {
        let (status, code) = self.kind.said();
        let body = json!({"code": code, "message": self.message});
        self.with(status, body)
    }

    /// Connect's form for calls with one answer.
    pub fn unary(self) -> Response {
        let (status, code) = self.kind.said();
        // Connect has statuses of its own; a full disk has none.
        let status = match self.kind {
            Kind::DiskFull | Kind::TooLarge => StatusCode::TOO_MANY_REQUESTS,
            Kind::NotRunning => StatusCode::SERVICE_UNAVAILABLE,
            _ => status,
        };
        let body = json!({"code": code, "message": self.message});
        self.with(status, body)
    }

    /// What the last frame of a stream says.
    pub fn end(&self) -> Value {
        let (_, code) = self.kind.said();
        json!({"error": {"code": code, "message": self.message}})
    }

    fn with(self, status: StatusCode, body: Value) -> Response {
        let mut response = (status, Json(body)).into_response();
        refused::add_retry_after(&mut response, self.retry_after_s);
        response
    }
}

/// What the plane's handlers answer with.
pub struct Api(pub Refusal);

impl<E: Into<Refusal>> From<E> for Api {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Api {
    fn into_response(self) -> Response {
        self.0.api()
    }
}

/// What Connect's handlers answer with.
pub struct Unary(pub Refusal);

impl<E: Into<Refusal>> From<E> for Unary {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Unary {
    fn into_response(self) -> Response {
        self.0.unary()
    }
}

impl From<ControlError> for Refusal {
    fn from(error: ControlError) -> Self {
        let kind = match error.code {
            ErrorCode::InvalidRequest
            | ErrorCode::IdempotencyKeyReused
            | ErrorCode::NotCapturable
            | ErrorCode::UnfitHost
            | ErrorCode::Unchanged => Kind::Invalid,
            ErrorCode::Unauthenticated => Kind::Unauthenticated,
            ErrorCode::Forbidden | ErrorCode::PermissionDenied => Kind::Forbidden,
            ErrorCode::NotFound => Kind::NotFound,
            ErrorCode::AlreadyExists => Kind::Exists,
            ErrorCode::Conflict | ErrorCode::InUse | ErrorCode::Stale => Kind::Conflict,
            ErrorCode::QuotaExceeded
            | ErrorCode::RateLimited
            | ErrorCode::LimitReached
            | ErrorCode::TooManyProcesses => Kind::Exhausted,
            ErrorCode::Unsupported => Kind::Unsupported,
            ErrorCode::DiskFull => Kind::DiskFull,
            ErrorCode::NoCapacity
            | ErrorCode::GuestUnreachable
            | ErrorCode::RunnerUnreachable
            | ErrorCode::PortClosed
            | ErrorCode::Unavailable => Kind::Unavailable,
            ErrorCode::TimedOut => Kind::TimedOut,
            ErrorCode::Internal => Kind::Internal,
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
            | ErrorCode::HeadersTooLarge => Kind::Invalid,
        };
        if let Some(source) = &error.source {
            let cause = chain(source.as_ref());
            tracing::warn!(
                code = error.code.as_str(),
                message = error.message,
                cause,
                "an E2B request failed"
            );
        }
        Self {
            retry_after_s: error.retry_after_s,
            ..Self::new(kind, refused::message_of(&error))
        }
    }
}

/// A refusal of the way into a sandbox: one that is gone or at rest does not run, and nothing inside it
/// is missing.
pub fn entry(error: ControlError) -> Refusal {
    match error.code {
        ErrorCode::NotFound | ErrorCode::Conflict => Refusal::new(
            Kind::NotRunning,
            format!("{NOT_RUNNING}: {}", error.message),
        ),
        _ => error.into(),
    }
}

impl From<GuestError> for Refusal {
    fn from(error: GuestError) -> Self {
        if let GuestError::Connect(cause) = &error
            && let Some(refused) = cause
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<ControlError>())
        {
            return entry(refused.again());
        }
        let GuestError::Refused { code, message } = error else {
            return ControlError::from(error).into();
        };
        let kind = match code {
            GuestCode::Invalid
            | GuestCode::NotADirectory
            | GuestCode::IsADirectory
            | GuestCode::CommandNotFound => Kind::Invalid,
            GuestCode::NotFound => Kind::NotFound,
            GuestCode::AlreadyExists => Kind::Exists,
            GuestCode::PermissionDenied => Kind::Forbidden,
            GuestCode::NotEmpty | GuestCode::Gone | GuestCode::ConnectionRefused => Kind::Conflict,
            GuestCode::DiskFull => Kind::DiskFull,
            GuestCode::TooManyProcesses | GuestCode::Limit => Kind::Exhausted,
            GuestCode::NoSuchUser => Kind::Unauthenticated,
            GuestCode::Unsupported | GuestCode::VersionMismatch | GuestCode::MissingFeature => {
                Kind::Unsupported
            }
            GuestCode::Internal => Kind::Unavailable,
        };
        Self::new(kind, message)
    }
}

impl From<FollowError> for Refusal {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Guest(error) => error.into(),
            FollowError::Control(error) => entry(error),
        }
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        let kind = match &error {
            BodyError::NoRoom(error) => return error.again().into(),
            BodyError::TooLarge(_) => Kind::TooLarge,
            BodyError::TooSlow => Kind::TimedOut,
            BodyError::Broken(_) => Kind::Invalid,
        };
        Self::new(kind, error.to_string())
    }
}
