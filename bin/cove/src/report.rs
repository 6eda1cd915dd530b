//! What goes wrong, reported to a person on standard error, with the exit code scripts rely on.

use std::io::{self, Write};

use cove_api::ErrorCode;
use cove_client::ClientError;
pub use cove_model::error::chain;

use crate::colour::{self, Colour};

/// Something failed.
pub const FAILED: u8 = 1;
/// The command line itself is wrong.
pub const MISUSED: u8 = 2;
/// Of exec, run and shell: the failure is Cove's and not the command's.
pub const NOT_RUN: u8 = 125;
pub const NOT_EXECUTABLE: u8 = 126;
pub const NOT_FOUND: u8 = 127;
/// The reader of our output went away: 128 + SIGPIPE.
pub const BROKEN_PIPE: u8 = 141;

/// How rustls begins to say that it does not trust a server.
const UNTRUSTED: &str = "invalid peer certificate";

#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{message}")]
    Usage {
        message: String,
        hint: Option<String>,
    },
    #[error("cannot start")]
    Runtime(#[source] io::Error),
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    /// Nobody reads our output any more; not worth a word.
    #[error("the output was closed")]
    OutputClosed,
    #[error(transparent)]
    Serve(#[from] crate::serve::ServeError),
    /// The same, of a command that runs another: exit codes below 125 are the other's.
    #[error("{0}")]
    Running(#[source] Box<CliError>),
}

impl CliError {
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage {
            message: message.into(),
            hint: None,
        }
    }

    pub fn hinted(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage {
            message: message.into(),
            hint: Some(hint.into()),
        }
    }

    /// `--json` where there is nothing to print as JSON: refused, never ignored.
    pub fn no_json(command: &str) -> Self {
        Self::hinted(
            format!("{command} has no JSON output"),
            "repeat the command without --json",
        )
    }

    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    fn client(&self) -> Option<&ClientError> {
        match self {
            Self::Client(error) => Some(error),
            Self::Running(inner) => inner.client(),
            _ => None,
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::OutputClosed => BROKEN_PIPE,
            Self::Running(inner) => match inner.client().and_then(ClientError::code) {
                Some(ErrorCode::CommandNotFound) => NOT_FOUND,
                Some(ErrorCode::PermissionDenied) => NOT_EXECUTABLE,
                _ => match **inner {
                    Self::OutputClosed => BROKEN_PIPE,
                    _ => NOT_RUN,
                },
            },
            _ => FAILED,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::Serve(error) => error.hint(),
            Self::Running(inner) => inner.hint(),
            Self::Client(ClientError::Refused { detail, .. }) => {
                match (&detail.hint, detail.code) {
                    (None, ErrorCode::Unauthenticated) => {
                        Some("set COVE_API_KEY, or run as root on the server's machine".into())
                    }
                    (hint, _) => hint.clone(),
                }
            }
            Self::Client(error @ ClientError::Connect { .. }) if chain(error).contains(UNTRUSTED) => {
                Some("if the server's certificate is self-signed, copy it here and give it with --ca-file FILE".into())
            }
            Self::Client(ClientError::Connect { .. }) => Some(
                "is the server running? `cove serve` starts one; COVE_URL names another".into(),
            ),
            _ => None,
        }
    }
}

/// A line on standard error. If that cannot be written to, the exit code still reports the failure.
fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A command line that cannot be understood, or a request for help, which is no error.
pub fn misused(error: &clap::Error, json: bool) -> u8 {
    if !json || !error.use_stderr() {
        let _ = error.print();
        return u8::try_from(error.exit_code()).unwrap_or(MISUSED);
    }
    let text = error.render().to_string();
    let mut parts = text.trim().splitn(2, "\n\n");
    let message = parts
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    let mut told = serde_json::json!({ "code": "usage", "message": message, "exit_code": MISUSED });
    if let Some(hint) = parts.next() {
        told["hint"] = hint.into();
    }
    tell(&serde_json::json!({ "error": told }).to_string());
    MISUSED
}

/// Prints the error, its causes and what to do; returns the exit code. As JSON it has the form of the API's
/// errors, on standard error too.
pub fn print(error: &CliError, json: bool) -> u8 {
    let code = error.exit_code();
    if code == BROKEN_PIPE {
        return code;
    }
    if json {
        let mut told = serde_json::json!({ "message": chain(error), "exit_code": code });
        if let Some(ClientError::Refused { detail, .. }) = error.client() {
            told["code"] = detail.code.as_str().into();
            told["request_id"] = detail.request_id.clone().into();
        }
        if let Some(hint) = error.hint() {
            told["hint"] = hint.into();
        }
        tell(&serde_json::json!({ "error": told }).to_string());
        return code;
    }
    let mut text = printable(&error.to_string());
    let mut below = std::error::Error::source(error);
    while let Some(cause) = below {
        let cause_text = printable(&cause.to_string());
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        below = cause.source();
    }
    let name = match colour::is_wanted(&io::stderr()) {
        true => Colour::Red.paint("cove:"),
        false => "cove:".into(),
    };
    tell(&format!("{name} {text}"));
    if let Some(hint) = error.hint() {
        tell(&format!("  {}", printable(&hint)));
    }
    if let Some(ClientError::Refused {
        detail,
        retry_after_s,
        ..
    }) = error.client()
    {
        if let Some(seconds) = retry_after_s {
            tell(&format!("  trying again makes sense in {seconds} s"));
        }
        if detail.code == ErrorCode::Internal {
            tell(&format!(
                "  the server's log has more under {}",
                printable(&detail.request_id)
            ));
        }
    }
    code
}

/// Text that came from elsewhere, safe for a terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let odd = c.is_control() && c != '\n';
            let escaped = odd.then(|| c.escape_default()).into_iter().flatten();
            escaped.chain((!odd).then_some(c))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_in_foreign_text_are_defused() {
        assert_eq!(printable("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(printable("two\nlines ü"), "two\nlines ü");
    }
}
