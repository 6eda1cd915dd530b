//! Refusals and failures on their way out: one form, whatever layer they come from.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cove_api::error::page_path;
use cove_api::{ErrorBody, ErrorCode, ErrorDetail};
use cove_control::ControlError;
pub use cove_model::error::chain;
use cove_protocol::client::GuestError;
use cove_protocol::message::ErrorCode as GuestCode;

/// Bytes of a message shown to a caller; what a guest says may be long.
const MESSAGE_MAX: usize = 2048;

#[derive(Debug)]
pub struct Failure {
    pub code: ErrorCode,
    pub message: String,
    pub hint: Option<String>,
    pub retry_after_s: Option<u64>,
    /// For the log only.
    pub cause: Option<String>,
}

/// Left in a response that is a failure, so that the outermost layer can give it its request id and
/// log its cause.
#[derive(Clone)]
pub struct Told {
    pub code: ErrorCode,
    pub message: String,
    pub hint: Option<String>,
    pub cause: Option<String>,
}

impl Failure {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.len() > MESSAGE_MAX {
            message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        }
        Self {
            code,
            message,
            hint: None,
            retry_after_s: None,
            cause: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn because(mut self, cause: &dyn std::error::Error) -> Self {
        self.cause = Some(chain(cause));
        self
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    pub fn detail(self, request_id: &str) -> ErrorDetail {
        ErrorDetail {
            code: self.code,
            message: self.message,
            hint: self.hint,
            request_id: request_id.to_owned(),
            docs: page_path(self.code),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, challenge);
        }
        response.extensions_mut().insert(Told {
            code: self.code,
            message: self.message,
            hint: self.hint,
            cause: self.cause,
        });
        response
    }
}

impl Told {
    /// The body, once the request id is known.
    pub fn body(self, request_id: &str) -> Response {
        Json(ErrorBody {
            error: ErrorDetail {
                code: self.code,
                message: self.message,
                hint: self.hint,
                request_id: request_id.to_owned(),
                docs: page_path(self.code),
            },
        })
        .into_response()
    }
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let cause = error.source.as_deref().map(|source| chain(source));
        let retry_after_s = error.retry_after_s;
        let hint = error.hint;
        Self {
            hint,
            retry_after_s,
            cause,
            ..Self::new(error.code, error.message)
        }
    }
}

/// What a guest's "not found" and "exists" are about.
#[derive(Debug, Clone, Copy)]
pub enum About {
    Path,
    Process,
    /// A command that is to start: what is missing is its working directory.
    Start,
    /// An archive on its way in: what a guest cannot make sense of is the archive.
    Archive,
}

/// A refusal of a guest. Its words are bounded but not trusted: they are shown, never acted on.
pub fn guest(error: GuestError, about: About) -> Failure {
    // A sandbox that could not be woken: the control plane has said why.
    if let GuestError::Connect(cause) = &error
        && let Some(told) = cause
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<ControlError>())
    {
        return told.again().into();
    }
    let failure = match &error {
        GuestError::Refused { code, message } => {
            Failure::new(guest_code(*code, about), message.clone())
        }
        GuestError::NoRoom => cove_control::budget::over().into(),
        GuestError::TimedOut(_) => {
            Failure::new(ErrorCode::TimedOut, "the sandbox did not answer in time")
        }
        GuestError::Quiesced => {
            let message = "the sandbox is being captured; try again";
            Failure {
                retry_after_s: Some(1),
                ..Failure::new(ErrorCode::Unavailable, message)
            }
        }
        GuestError::Connect(_) | GuestError::Frame(_) | GuestError::Unexpected(_) => {
            Failure::new(ErrorCode::GuestUnreachable, "the sandbox does not answer")
                .hint("see its state and events; `cove stop` and `cove start` restart its guest")
                .because(&error)
        }
    };
    match failure.code {
        ErrorCode::DiskFull => failure.hint("remove files, or raise disk_mb"),
        ErrorCode::TooManyProcesses => failure.hint("end processes, or raise pids"),
        _ => failure,
    }
}

fn guest_code(code: GuestCode, about: About) -> ErrorCode {
    match (code, about) {
        (GuestCode::NotFound, About::Path | About::Start | About::Archive) => {
            ErrorCode::PathNotFound
        }
        (GuestCode::NotFound, About::Process) => ErrorCode::NotFound,
        (GuestCode::AlreadyExists, About::Path | About::Archive) => ErrorCode::PathExists,
        (GuestCode::AlreadyExists, About::Process | About::Start) => ErrorCode::AlreadyExists,
        (GuestCode::Internal | GuestCode::VersionMismatch, _) => ErrorCode::GuestUnreachable,
        (GuestCode::Invalid, _) => ErrorCode::InvalidRequest,
        (GuestCode::PermissionDenied, _) => ErrorCode::PermissionDenied,
        (GuestCode::NotADirectory, _) => ErrorCode::NotADirectory,
        (GuestCode::IsADirectory, _) => ErrorCode::IsADirectory,
        (GuestCode::NotEmpty, _) => ErrorCode::DirectoryNotEmpty,
        (GuestCode::DiskFull, _) => ErrorCode::DiskFull,
        (GuestCode::TooManyProcesses, _) => ErrorCode::TooManyProcesses,
        (GuestCode::Gone, _) => ErrorCode::ProcessGone,
        (GuestCode::Unsupported | GuestCode::MissingFeature, _) => ErrorCode::Unsupported,
        (GuestCode::ConnectionRefused, _) => ErrorCode::PortClosed,
        (GuestCode::Limit, _) => ErrorCode::LimitReached,
        (GuestCode::NoSuchUser, _) => ErrorCode::NoSuchUser,
        (GuestCode::CommandNotFound, _) => ErrorCode::CommandNotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        let failure = Failure::invalid("ü".repeat(5000));
        assert!(failure.message.len() <= MESSAGE_MAX);
    }
}
