//! What the refusals of every contract have in common, whatever form it gives them.

use axum::http::{HeaderValue, header};
use axum::response::Response;
use cove_control::ControlError;

/// Bytes of a message shown to a caller; what a guest says may be long.
pub const MESSAGE_MAX: usize = 2048;

/// A message of a length that can be shown, cut between characters.
pub fn shown(message: impl Into<String>) -> String {
    let mut message = message.into();
    message.truncate(message.floor_char_boundary(MESSAGE_MAX));
    message
}

/// What a caller reads of an error of control: what failed, and what to do about it.
pub fn message_of(error: &ControlError) -> String {
    match &error.hint {
        Some(hint) => format!("{}; {hint}", error.message),
        None => error.message.clone(),
    }
}

/// Says when to come back, where that is known.
pub fn add_retry_after(response: &mut Response, seconds: Option<u64>) {
    if let Some(seconds) = seconds {
        let value = HeaderValue::from(seconds);
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        let cut = shown("ü".repeat(5000));
        assert!(cut.len() <= MESSAGE_MAX && cut.len() > MESSAGE_MAX - 2);
        assert_eq!(shown("short"), "short");
    }
}
