//! The code interpreter on the wire: contexts, and runs of code answered in one piece or live.

use std::collections::BTreeMap;

pub use cove_model::Language;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Timestamp;

/// Body of `POST …/code/contexts`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreateCodeContext {
    /// Language of the code.
    pub language: Language,
    /// Working directory; default: that of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::PATH_MAX))]
    pub cwd: Option<String>,
    /// Additional environment variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = cove_limits::ENV_ENTRIES_MAX))]
    pub env: BTreeMap<String, String>,
    /// User name or number, optionally with `:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::USER_MAX))]
    pub user: Option<String>,
}

/// A context that keeps variables between runs. It is a process of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeContext {
    /// Id; also the id of its process.
    pub id: String,
    /// Language of its code.
    pub language: Language,
    /// Whether runs that name no context use it.
    pub default: bool,
    /// Working directory.
    pub cwd: String,
    /// User that the code runs as.
    pub user: String,
    /// Time when the context started.
    pub started_at: Timestamp,
}

/// Body of `POST …/code/run`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCode {
    /// The code to run.
    #[schemars(length(max = cove_limits::CODE_BYTES_MAX))]
    pub code: String,
    /// Default: that of the context; Python where neither is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// Id of a context; default: the default context of the language, which the first run creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::ID_OR_NAME_MAX))]
    pub context: Option<String>,
    /// Time in milliseconds after which the code is interrupted; variables are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::TIMEOUT_MAX_MS))]
    pub timeout_ms: Option<u64>,
}

/// A result in all its formats.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CodeOutput {
    /// Media type to content: text, base64 for binary formats (`image/png`), or JSON.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub data: BTreeMap<String, Form>,
    /// The value of the code's last expression.
    pub main: bool,
}

/// One form of a result: JSON kept as the text it came in, because parsed a guest's JSON could take many
/// times its size.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Form(pub Box<RawValue>);

impl<'de> Deserialize<'de> for Form {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Inside a tagged event the text is no longer at hand.
        let value = serde_json::Value::deserialize(deserializer)?;
        serde_json::value::to_raw_value(&value)
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}

impl Form {
    /// Its text, when it is text.
    pub fn text(&self) -> Option<String> {
        serde_json::from_str(self.0.get()).ok()
    }
}

/// The exception that the code raised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeError {
    /// Name of the exception.
    pub name: String,
    /// Message of the exception.
    pub value: String,
    /// Traceback as the interpreter prints it.
    pub traceback: String,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeEnd {
    /// The context it ran in.
    pub context: String,
    /// Exit code of a shell's last command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The code was interrupted after its timeout.
    pub timed_out: bool,
    /// The context's process ended during the run; its variables are lost.
    pub context_ended: bool,
    /// Some output or results were too large and are left out.
    pub truncated: bool,
    /// Duration of the run in milliseconds.
    pub duration_ms: u64,
}

/// The whole answer to a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CodeResult {
    #[serde(flatten)]
    pub end: CodeEnd,
    /// Standard output of the code.
    pub stdout: String,
    /// Standard error of the code.
    pub stderr: String,
    /// Results that the code showed, in order.
    pub results: Vec<CodeOutput>,
    /// The exception that ended the code, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CodeError>,
}

/// One line of a live answer to a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeEvent {
    /// The code was sent to this context.
    Started {
        /// The context that runs the code.
        context: CodeContext,
    },
    /// Some standard output.
    Stdout {
        /// Some output.
        text: String,
    },
    /// Some standard error.
    Stderr {
        /// Some output.
        text: String,
    },
    /// A result that the code showed.
    Result {
        /// The result.
        result: Box<CodeOutput>,
    },
    /// The code raised an exception.
    Error {
        /// The error.
        error: CodeError,
    },
    /// The run ended.
    End(CodeEnd),
    /// The stream ended before the code.
    Failed {
        /// The error.
        error: crate::ErrorDetail,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_with_results_come_back_whole() {
        let line = r#"{"type":"result","result":{"data":{"application/json":{"a":[1,null]},"text/plain":"x"},"main":true}}"#;
        let event: CodeEvent = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&event).unwrap(), line);
        let CodeEvent::Result { result } = event else {
            panic!("another event came back");
        };
        assert_eq!(result.data["text/plain"].text().as_deref(), Some("x"));
        assert_eq!(result.data["application/json"].text(), None);
    }
}
