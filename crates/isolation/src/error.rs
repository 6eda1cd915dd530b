//! What a tier's operations fail with.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    #[error("{0}")]
    Unsupported(String),
    #[error("{field} cannot go below what is in use: {used} are used, {wanted} asked for")]
    LimitBelowUse {
        field: &'static str,
        used: u64,
        wanted: u64,
    },
    #[error("the host has no free {0} for another sandbox")]
    Exhausted(&'static str),
    /// Something inside cannot be captured; the machine goes on unharmed.
    #[error("{process} cannot be captured: {reason}")]
    Uncapturable { process: String, reason: String },
    /// Captured memory asks for what this host lacks.
    #[error("this host cannot restore that memory: {0}")]
    Unfit(String),
    #[error("{step} took longer than {seconds} s")]
    TimedOut { step: &'static str, seconds: u64 },
    #[error("{step}")]
    Failed {
        step: String,
        #[source]
        source: io::Error,
    },
}

impl IsolationError {
    pub fn failed(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Failed { step, source }
    }
}
