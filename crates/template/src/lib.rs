//! Dockerfiles: what a file says, and which steps make what it describes.
//!
//! [`Dockerfile::parse`] reads the text. [`Stage::steps`] evaluates one stage over the [`Config`] of what it begins
//! from, and yields [`Step`]s that change files, each with all that it depends on, and the configuration at the end.
//! [`key`] names the state after a step. [`copy`] decides where the sources of a `COPY` go. Pure: it reads no file,
//! runs nothing and knows no sandbox. What this crate does not support is an [`Error`] with its line.
#![forbid(unsafe_code)]

pub mod config;
pub mod copy;
mod dockerfile;
mod evaluate;
pub mod ignore;
pub mod key;
mod lines;
mod parse;
pub mod pattern;
mod words;

pub use config::{Config, Healthcheck};
pub use dockerfile::{Command, CopyFlags, CopySource, Dockerfile, Instruction, Placed, Stage};
pub use evaluate::{Action, Evaluated, Origin, Step, Variables};
pub use lines::HereDoc;

/// What is wrong with a Dockerfile, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct Error {
    /// From 1.
    pub line: u32,
    pub problem: String,
}

impl Error {
    pub(crate) fn new(line: u32, problem: impl Into<String>) -> Self {
        Self {
            line,
            problem: problem.into(),
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
