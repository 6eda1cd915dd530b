//! What the control plane refuses and why, with codes that callers may rely on.

pub use cove_model::ErrorCode;
use cove_model::SpecError;
use cove_runner_api::RunnerError;
use cove_store::StoreError;

/// Seconds a caller is asked to wait when the host is short of something.
pub const CAPACITY_RETRY_S: u64 = 5;
/// Seconds a caller is asked to wait when a part of the installation does not answer.
pub const UNREACHABLE_RETRY_S: u64 = 2;

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
                .hint("create another key with the scope admin first, and revoke this one with it"),
            StoreError::TooMany { .. } => Self::new(ErrorCode::LimitReached, error.to_string()),
            StoreError::Kept { template, others } => Self::new(ErrorCode::InUse, error.to_string())
                .hint(match others {
                    0 => format!("delete the template first: `cove template rm {template}`"),
                    _ => "delete those templates first; `cove template ls` shows the snapshot of each"
                        .to_owned(),
                }),
            StoreError::SeveralVersions { .. } => Self::conflict(error.to_string())
                .hint("name one version, like NAME:1, or delete all with `cove template rm --all NAME`"),
            StoreError::NodeRemoved => {
                Self::new(ErrorCode::Unavailable, error.to_string()).retry_after(1)
            }
            StoreError::BadCursor => Self::invalid(error.to_string())
                .hint("pass next_cursor of an earlier page unchanged"),
            StoreError::Unavailable(_) | StoreError::Refused(_) => Self::new(
                ErrorCode::Unavailable,
                "the control plane's database does not answer",
            )
            .hint("sandboxes keep running; try again, and see /readyz")
            .retry_after(UNREACHABLE_RETRY_S)
            .because(error),
            StoreError::ReadOnly => Self::new(
                ErrorCode::Unavailable,
                "the control plane's database is read-only",
            )
            .hint("sandboxes keep running; the operator must make the database writable")
            .retry_after(UNREACHABLE_RETRY_S)
            .because(error),
            StoreError::Newer { .. }
            | StoreError::Address(_)
            | StoreError::Database(_)
            | StoreError::OtherHost { .. }
            | StoreError::NoHost
            | StoreError::Corrupt { .. } => Self::internal("the control plane's database failed")
                .retry_after(UNREACHABLE_RETRY_S)
                .because(error),
        }
    }
}

impl From<RunnerError> for ControlError {
    fn from(error: RunnerError) -> Self {
        let told = Self::new(error.code(), error.to_string());
        match &error {
            RunnerError::NotFound { .. }
            | RunnerError::AlreadyExists { .. }
            | RunnerError::Invalid { .. }
            | RunnerError::Conflict { .. }
            | RunnerError::InUse { .. }
            | RunnerError::Unchanged
            | RunnerError::Unsupported { .. } => told,
            RunnerError::Uncapturable { .. } => told.hint(
                "end that process, or repeat the request without memory; the sandbox keeps running",
            ),
            RunnerError::Unfit { .. } => {
                told.hint("its disk works on every host; repeat the request without memory")
            }
            RunnerError::NoCapacity { .. } => told
                .hint("ask for less, or stop sandboxes that are not needed")
                .retry_after(CAPACITY_RETRY_S),
            RunnerError::MissingFeature { .. } => told
                .hint("upgrade Cove on that host: its runner cannot enforce all of this request"),
            RunnerError::GuestUnreachable { .. } => told.retry_after(UNREACHABLE_RETRY_S),
            RunnerError::Unreachable { message } => {
                let message = match message.starts_with(crate::hosts::NODE_AWAY) {
                    true => message.as_str(),
                    false => "the host's runner does not answer",
                };
                Self::new(error.code(), message)
                    .hint("it restarts by itself; sandboxes keep running")
                    .retry_after(UNREACHABLE_RETRY_S)
                    .because(error)
            }
            RunnerError::Internal { .. } => {
                Self::internal("the host failed to carry out the request").because(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_not_shown_to_callers() {
        let error = ControlError::from(RunnerError::Unreachable {
            message: "/run/secret.sock: refused".into(),
        });
        assert!(!error.to_string().contains("secret"));
        assert_eq!(error.retry_after_s, Some(UNREACHABLE_RETRY_S));
    }
}
