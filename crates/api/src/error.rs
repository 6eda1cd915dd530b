//! What a refused request looks like: a stable code, words for a person, what to do next, and the
//! id under which the server's log tells the rest. Each code has a page in `docs/errors/`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    pub code: ErrorCode,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    pub request_id: String,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal;)*) => {
        /// Stable names of what can go wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl ErrorCode {
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$name => $text,)* }
            }

            /// The HTTP status it travels with; one code always has the same.
            pub fn status(self) -> u16 {
                match self { $(ErrorCode::$name => $status,)* }
            }

            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(ErrorCode::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// Not HTTP or JSON as it should be.
    MalformedRequest = "malformed_request", 400;
    /// No key, or one that is not known, expired or revoked.
    Unauthenticated = "unauthenticated", 401;
    /// The key's scopes do not cover this.
    Forbidden = "forbidden", 403;
    /// The organisation's quota would be passed.
    QuotaExceeded = "quota_exceeded", 403;
    /// The user inside the sandbox may not do this to the path.
    PermissionDenied = "permission_denied", 403;
    NotFound = "not_found", 404;
    /// The sandbox is there, the path inside is not.
    PathNotFound = "path_not_found", 404;
    MethodNotAllowed = "method_not_allowed", 405;
    /// The client took too long to send its request.
    RequestTimeout = "request_timeout", 408;
    /// The state of things does not allow it now.
    Conflict = "conflict", 409;
    AlreadyExists = "already_exists", 409;
    /// Somebody changed the same thing at the same time.
    Stale = "stale", 409;
    /// Something still uses it.
    InUse = "in_use", 409;
    PathExists = "path_exists", 409;
    NotADirectory = "not_a_directory", 409;
    IsADirectory = "is_a_directory", 409;
    DirectoryNotEmpty = "directory_not_empty", 409;
    /// Something inside cannot be captured with its memory.
    NotCapturable = "not_capturable", 409;
    /// Captured memory asks for what this host lacks.
    UnfitHost = "unfit_host", 409;
    /// Nothing changed since the last snapshot.
    Unchanged = "unchanged", 409;
    /// An idempotency key was used before with another request.
    IdempotencyKeyReused = "idempotency_key_reused", 409;
    /// The process is over, or never had what was asked for.
    ProcessGone = "process_gone", 410;
    PayloadTooLarge = "payload_too_large", 413;
    UriTooLong = "uri_too_long", 414;
    UnsupportedMediaType = "unsupported_media_type", 415;
    RangeNotSatisfiable = "range_not_satisfiable", 416;
    /// Understood, and refused for what it says.
    InvalidRequest = "invalid_request", 422;
    CommandNotFound = "command_not_found", 422;
    NoSuchUser = "no_such_user", 422;
    /// The sandbox may have no more processes.
    TooManyProcesses = "too_many_processes", 429;
    /// A limit inside the sandbox was reached.
    LimitReached = "limit_reached", 429;
    RateLimited = "rate_limited", 429;
    HeadersTooLarge = "headers_too_large", 431;
    Internal = "internal", 500;
    /// Known, and not possible here or not yet.
    Unsupported = "unsupported", 501;
    /// The sandbox runs, but what is inside does not answer.
    GuestUnreachable = "guest_unreachable", 502;
    /// The port inside does not take connections.
    PortClosed = "port_closed", 502;
    /// The host is short of something now.
    NoCapacity = "no_capacity", 503;
    RunnerUnreachable = "runner_unreachable", 503;
    /// The server is ending or already does too much.
    Unavailable = "unavailable", 503;
    /// The work was not done in its time.
    TimedOut = "timed_out", 504;
    /// The sandbox's disk is full.
    DiskFull = "disk_full", 507;
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_reads_back_and_has_an_error_status() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::parse(code.as_str()), Some(*code));
            assert!((400..600).contains(&code.status()));
            let json = serde_json::to_value(code).unwrap();
            assert_eq!(json, code.as_str());
        }
        assert_eq!(ErrorCode::parse("nothing_of_the_kind"), None);
    }

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors");
        let index = std::fs::read_to_string(format!("{pages}/README.md")).unwrap();
        let mut found = 0;
        for entry in std::fs::read_dir(pages).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let Some(code) = name.strip_suffix(".md").filter(|code| *code != "README") else {
                continue;
            };
            let code = ErrorCode::parse(code).unwrap_or_else(|| panic!("{name} is no code's page"));
            let text = std::fs::read_to_string(format!("{pages}/{name}")).unwrap();
            let title = format!("# `{code}` (HTTP {})", code.status());
            assert!(
                text.starts_with(&title),
                "{name} does not begin with {title}"
            );
            assert!(
                index.contains(&format!("| [`{code}`]({name}) | {} |", code.status())),
                "{name}"
            );
            found += 1;
        }
        assert_eq!(found, ErrorCode::ALL.len());
    }
}
