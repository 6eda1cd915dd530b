//! The languages that the code interpreter runs.

use serde::{Deserialize, Serialize};

/// A language of the code interpreter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "CodeLanguage"))]
#[serde(rename_all = "lowercase")]
pub enum Language {
    #[default]
    Python,
    JavaScript,
    /// Runs in JavaScript's contexts.
    TypeScript,
    Bash,
}

impl Language {
    pub const ALL: [Language; 4] = [Self::Python, Self::JavaScript, Self::TypeScript, Self::Bash];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Bash => "bash",
        }
    }
}
