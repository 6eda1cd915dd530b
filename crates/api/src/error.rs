//! What a refused request looks like: a stable code, words for a person, what to do next, and the
//! id under which the server's log tells the rest. Each code has a page in `docs/errors/`.

pub use cove_model::ErrorCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// An error: a stable code, a message for people and the next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorDetail {
    /// Stable code of the error; programs can rely on it.
    pub code: ErrorCode,
    /// What failed, for people. The text may change.
    pub message: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Id of the request, also in the server's log.
    pub request_id: String,
    /// Path of the page about this code on the same server; it needs no key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub docs: String,
}

/// Where a server has the page about a code.
pub fn page_path(code: ErrorCode) -> String {
    format!("/docs/errors/{code}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
