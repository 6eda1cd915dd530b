//! The codes of everything that can go wrong. The control plane, the API and the dialects use the same
//! ones; each has a page in `docs/errors/`.

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal;)*) => {
        /// Stable names of errors. They are never renamed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

            /// Its page of the documentation, in Markdown.
            pub fn page(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => {
                        include_str!(concat!("../../../docs/errors/", $text, ".md"))
                    })*
                }
            }

            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(ErrorCode::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// Malformed HTTP or JSON.
    MalformedRequest = "malformed_request", 400;
    /// The key is missing, unknown, expired or revoked.
    Unauthenticated = "unauthenticated", 401;
    /// The key's scopes do not allow this.
    Forbidden = "forbidden", 403;
    /// The organisation's quota would be exceeded.
    QuotaExceeded = "quota_exceeded", 403;
    /// The user in the sandbox lacks the permission for the path.
    PermissionDenied = "permission_denied", 403;
    NotFound = "not_found", 404;
    /// The path does not exist in the sandbox.
    PathNotFound = "path_not_found", 404;
    MethodNotAllowed = "method_not_allowed", 405;
    /// The client took too long to send its request.
    RequestTimeout = "request_timeout", 408;
    /// The present state does not allow it.
    Conflict = "conflict", 409;
    AlreadyExists = "already_exists", 409;
    /// Another request changed the same resource.
    Stale = "stale", 409;
    /// Something still uses it.
    InUse = "in_use", 409;
    PathExists = "path_exists", 409;
    NotADirectory = "not_a_directory", 409;
    IsADirectory = "is_a_directory", 409;
    DirectoryNotEmpty = "directory_not_empty", 409;
    /// A process in the sandbox cannot be captured with its memory.
    NotCapturable = "not_capturable", 409;
    /// The captured memory needs a feature that this host lacks, or no host has what was asked of it.
    UnfitHost = "unfit_host", 409;
    /// Nothing changed since the last snapshot.
    Unchanged = "unchanged", 409;
    /// An idempotency key was used before with another request.
    IdempotencyKeyReused = "idempotency_key_reused", 409;
    /// The process has ended, or does not have the requested stream.
    ProcessGone = "process_gone", 410;
    PayloadTooLarge = "payload_too_large", 413;
    UriTooLong = "uri_too_long", 414;
    UnsupportedMediaType = "unsupported_media_type", 415;
    RangeNotSatisfiable = "range_not_satisfiable", 416;
    /// The request is well-formed and has an invalid value.
    InvalidRequest = "invalid_request", 422;
    CommandNotFound = "command_not_found", 422;
    NoSuchUser = "no_such_user", 422;
    /// The sandbox has its maximum number of processes.
    TooManyProcesses = "too_many_processes", 429;
    /// A limit inside the sandbox was reached.
    LimitReached = "limit_reached", 429;
    RateLimited = "rate_limited", 429;
    HeadersTooLarge = "headers_too_large", 431;
    Internal = "internal", 500;
    /// This server cannot do it.
    Unsupported = "unsupported", 501;
    /// The sandbox runs, but its guest program does not answer.
    GuestUnreachable = "guest_unreachable", 502;
    /// The port in the sandbox does not accept connections.
    PortClosed = "port_closed", 502;
    /// The host lacks a resource now.
    NoCapacity = "no_capacity", 503;
    RunnerUnreachable = "runner_unreachable", 503;
    /// The server is shutting down or overloaded.
    Unavailable = "unavailable", 503;
    /// The work did not finish in time.
    TimedOut = "timed_out", 504;
    /// The sandbox's disk is full.
    DiskFull = "disk_full", 507;
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error and everything below it, in one line; for logs and for messages that show causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        text.push_str(": ");
        text.push_str(&error.to_string());
        below = error.source();
    }
    text
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
}
