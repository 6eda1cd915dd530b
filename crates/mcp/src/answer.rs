//! What tools answer.

use cove_client::ClientError;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::{Value, json};

/// Up to this size an answer has its output twice: as text for models and as structured content for
/// programs. A larger one has it only as text.
pub const TWICE_MAX: usize = 64 * 1024;

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

/// JSON, as text and, unless it is large, as structured content too.
pub fn json(value: impl Serialize) -> Outcome {
    let unwritable = |error| Refusal::new(format!("the answer cannot be written: {error}"));
    let text = serde_json::to_string(&value).map_err(unwritable)?;
    let structured = match text.len() > TWICE_MAX {
        true => None,
        false => Some(serde_json::to_value(value).map_err(unwritable)?),
    };
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = structured;
    Ok(result)
}

/// Text for the model, and the same facts for programs; those named in `output` repeat the text, and are left
/// out where it is large.
pub fn text(text: String, structured: Value, output: &[&str]) -> Outcome {
    let structured = once(&text, structured, output);
    blocks(vec![ContentBlock::text(text)], structured)
}

/// Structured content without what a large text has already.
pub fn once(text: &str, mut structured: Value, output: &[&str]) -> Value {
    if text.len() > TWICE_MAX
        && let Some(facts) = structured.as_object_mut()
    {
        facts.retain(|name, _| !output.contains(&name.as_str()));
        facts.insert("only_in_text".into(), json!(output));
    }
    structured
}

pub fn blocks(content: Vec<ContentBlock>, structured: Value) -> Outcome {
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(structured);
    Ok(result)
}
