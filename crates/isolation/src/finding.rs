//! Lines of a report on the host, as tiers and the engine write them.

use cove_runner_api::{Finding, Level};

/// All is well.
pub fn good(name: &str, message: String) -> Finding {
    at(Level::Ok, name, message, None)
}

/// It works, with less.
pub fn warning(name: &str, message: String, fix: String) -> Finding {
    at(Level::Warning, name, message, Some(fix))
}

/// Sandboxes cannot run, or not as they should.
pub fn bad(name: &str, message: String, fix: String) -> Finding {
    at(Level::Error, name, message, Some(fix))
}

fn at(level: Level, name: &str, message: String, fix: Option<String>) -> Finding {
    Finding {
        name: name.into(),
        level,
        message,
        fix,
    }
}
