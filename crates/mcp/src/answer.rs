//! What tools answer.

use cove_client::ClientError;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::{Value, json};

/// Why a tool did not do what it was asked. The model reads it and can try again.
#[derive(Debug)]
pub struct Refusal {
    text: String,
    structured: Option<Value>,
}

pub type Outcome = Result<CallToolResult, Refusal>;

impl Refusal {
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            structured: None,
        }
    }
}

impl From<ClientError> for Refusal {
    fn from(error: ClientError) -> Self {
        if let ClientError::Refused { detail, .. } = &error {
            let mut text = format!("{} ({})", detail.message, detail.code);
            if let Some(hint) = &detail.hint {
                text.push_str(&format!("\nhint: {hint}"));
            }
            text.push_str(&format!("\nrequest id: {}", detail.request_id));
            return Self {
                text,
                structured: Some(json!({ "error": detail })),
            };
        }
        let mut text = error.to_string();
        let mut below = std::error::Error::source(&error);
        while let Some(error) = below {
            text.push_str(&format!(": {error}"));
            below = error.source();
        }
        Self::new(text)
    }
}

pub fn refused(refusal: Refusal) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(refusal.text)]);
    result.structured_content = refusal.structured;
    result
}

/// JSON, as structured content and as text for clients that read only text.
pub fn json(value: impl Serialize) -> Outcome {
    let value = serde_json::to_value(value)
        .map_err(|error| Refusal::new(format!("the answer cannot be written: {error}")))?;
    Ok(CallToolResult::structured(value))
}

/// Text for the model, and the same facts for programs.
pub fn text(text: String, structured: Value) -> Outcome {
    blocks(vec![ContentBlock::text(text)], structured)
}

pub fn blocks(content: Vec<ContentBlock>, structured: Value) -> Outcome {
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(structured);
    Ok(result)
}
