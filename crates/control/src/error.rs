//! What the control plane refuses and why, with codes that callers may rely on.

use cove_model::SpecError;
use cove_runner::RunnerError;
use cove_store::StoreError;

/// Seconds a caller is told to wait when the host is short of something.
pub const CAPACITY_RETRY_S: u64 = 5;
/// Seconds a caller is told to wait when a part of the installation does not answer.
pub const UNREACHABLE_RETRY_S: u64 = 2;

/// Stable names of everything that can go wrong. Never renamed, only added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    InvalidRequest,
    Unauthenticated,
    Forbidden,
    NotFound,
    AlreadyExists,
    /// The sandbox's state does not allow it now.
    Conflict,
    /// Something still uses it, or it is being made.
    InUse,
    /// Somebody changed the same thing at the same time.
    Stale,
    /// An idempotency key was used before for another request.
    IdempotencyKeyReused,
    QuotaExceeded,
    NoCapacity,
    RateLimited,
    Unsupported,
    /// Something inside cannot be captured with its memory.
    NotCapturable,
    /// Captured memory asks for what this host lacks.
    UnfitHost,
    /// Nothing changed since the last snapshot.
    Unchanged,
    /// A named limit inside the sandbox was reached.
    LimitReached,
    /// Inside the sandbox: the acting user may not.
    PermissionDenied,
    /// Inside the sandbox: the disk limit is reached.
    DiskFull,
    GuestUnreachable,
    RunnerUnreachable,
    TimedOut,
    /// The database does not answer or takes no writes.
    Unavailable,
    Internal,
}

impl ErrorCode {
    pub const ALL: [ErrorCode; 24] = [
        Self::InvalidRequest,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::AlreadyExists,
        Self::Conflict,
        Self::InUse,
        Self::Stale,
        Self::IdempotencyKeyReused,
        Self::QuotaExceeded,
        Self::NoCapacity,
        Self::RateLimited,
        Self::Unsupported,
        Self::NotCapturable,
        Self::UnfitHost,
        Self::Unchanged,
        Self::LimitReached,
        Self::PermissionDenied,
        Self::DiskFull,
        Self::GuestUnreachable,
        Self::RunnerUnreachable,
        Self::TimedOut,
        Self::Unavailable,
        Self::Internal,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Conflict => "conflict",
            Self::InUse => "in_use",
            Self::Stale => "stale",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::QuotaExceeded => "quota_exceeded",
            Self::NoCapacity => "no_capacity",
            Self::RateLimited => "rate_limited",
            Self::Unsupported => "unsupported",
            Self::NotCapturable => "not_capturable",
            Self::UnfitHost => "unfit_host",
            Self::Unchanged => "unchanged",
            Self::LimitReached => "limit_reached",
            Self::PermissionDenied => "permission_denied",
            Self::DiskFull => "disk_full",
            Self::GuestUnreachable => "guest_unreachable",
            Self::RunnerUnreachable => "runner_unreachable",
            Self::TimedOut => "timed_out",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
        }
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One refusal or failure, ready to be shown to a caller.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    pub code: ErrorCode,
    /// For a person. Never says anything of another organisation.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
    /// Seconds after which trying again makes sense.
    pub retry_after_s: Option<u64>,
    /// What happened below; for the log, never for the caller.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ControlError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            retry_after_s: None,
            source: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same refusal for another caller, without what is for the log alone.
    pub fn again(&self) -> Self {
        Self {
            code: self.code,
            message: self.message.clone(),
            hint: self.hint.clone(),
            retry_after_s: self.retry_after_s,
            source: None,
        }
    }

    /// Whether it is refused only until something else that is under way has ended.
    pub(crate) fn passes(&self) -> bool {
        matches!(self.code, ErrorCode::Conflict | ErrorCode::InUse)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Conflict, message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// The same words whether it never existed, is gone or is somebody else's.
    pub fn not_found(what: &str, given: &str) -> Self {
        let shown: String = given.chars().take(NAMED_MAX).collect();
        Self::new(
            ErrorCode::NotFound,
            format!("there is no {what} '{}'", shown.escape_debug()),
        )
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }
}

/// Characters of a caller's own words repeated in a message.
const NAMED_MAX: usize = 80;

impl From<SpecError> for ControlError {
    fn from(error: SpecError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<StoreError> for ControlError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::NotFound { .. } => Self::new(ErrorCode::NotFound, error.to_string()),
            StoreError::Exists { .. } => Self::new(ErrorCode::AlreadyExists, error.to_string()),
            StoreError::Stale => Self::new(ErrorCode::Stale, error.to_string())
                .hint("read it again and repeat the change")
                .retry_after(1),
            StoreError::Quota { .. } => Self::new(ErrorCode::QuotaExceeded, error.to_string())
                .hint("delete or stop sandboxes, ask for less, or have the quota raised")
                .retry_after(CAPACITY_RETRY_S),
            StoreError::RootKey => Self::new(ErrorCode::Conflict, error.to_string())
                .hint("`cove key reset-root`, run there by root, replaces it at once"),
            StoreError::LastAdminKey => Self::new(ErrorCode::Conflict, error.to_string())
                .hint("make another key with the scope admin first, and revoke this one with that"),
            StoreError::TooMany { .. } => Self::new(ErrorCode::LimitReached, error.to_string()),
            StoreError::BadCursor => Self::invalid(error.to_string())
                .hint("pass next_cursor of an earlier page unchanged"),
            StoreError::Unavailable(_) | StoreError::Refused(_) => Self::new(
                ErrorCode::Unavailable,
                "the control plane's database does not answer",
            )
            .hint("sandboxes live on; try again, and see /readyz")
            .retry_after(UNREACHABLE_RETRY_S)
            .because(error),
            StoreError::ReadOnly => Self::new(
                ErrorCode::Unavailable,
                "the control plane's database is read-only",
            )
            .hint("sandboxes live on; the operator has to make the database writable")
            .retry_after(UNREACHABLE_RETRY_S)
            .because(error),
            StoreError::Newer { .. }
            | StoreError::Address(_)
            | StoreError::Database(_)
            | StoreError::Corrupt { .. } => Self::internal("the control plane's database failed")
                .retry_after(UNREACHABLE_RETRY_S)
                .because(error),
        }
    }
}

impl From<RunnerError> for ControlError {
    fn from(error: RunnerError) -> Self {
        let message = error.to_string();
        match &error {
            RunnerError::NotFound { .. } => Self::new(ErrorCode::NotFound, message),
            RunnerError::AlreadyExists { .. } => Self::new(ErrorCode::AlreadyExists, message),
            RunnerError::Invalid { .. } => Self::invalid(message),
            RunnerError::Conflict { .. } => Self::conflict(message),
            RunnerError::InUse { .. } => Self::new(ErrorCode::InUse, message),
            RunnerError::Unchanged => Self::new(ErrorCode::Unchanged, message),
            RunnerError::Uncapturable { .. } => Self::new(ErrorCode::NotCapturable, message)
                .hint("end that process, or do without its memory; the sandbox goes on unharmed"),
            RunnerError::Unfit { .. } => Self::new(ErrorCode::UnfitHost, message)
                .hint("its disk is good everywhere: repeat the request without memory"),
            RunnerError::NoCapacity { .. } => Self::new(ErrorCode::NoCapacity, message)
                .hint("ask for less, or stop sandboxes that are not needed")
                .retry_after(CAPACITY_RETRY_S),
            RunnerError::Unsupported { .. } => Self::new(ErrorCode::Unsupported, message),
            RunnerError::GuestUnreachable { .. } => {
                Self::new(ErrorCode::GuestUnreachable, message).retry_after(UNREACHABLE_RETRY_S)
            }
            RunnerError::Unreachable { .. } => Self::new(
                ErrorCode::RunnerUnreachable,
                "the host's runner does not answer",
            )
            .hint("it restarts by itself; sandboxes live on meanwhile")
            .retry_after(UNREACHABLE_RETRY_S)
            .because(error),
            RunnerError::Internal { .. } => {
                Self::internal("the host failed to do this").because(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_name_of_its_own() {
        let names: std::collections::HashSet<_> =
            ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), ErrorCode::ALL.len());
    }

    #[test]
    fn causes_are_not_shown_to_callers() {
        let error = ControlError::from(RunnerError::Unreachable {
            message: "/run/secret.sock: refused".into(),
        });
        assert!(!error.to_string().contains("secret"));
        assert_eq!(error.retry_after_s, Some(UNREACHABLE_RETRY_S));
    }
}
