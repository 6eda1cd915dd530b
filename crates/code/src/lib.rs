//! The code interpreter's languages: how the driver of each one is started and spoken to, and what its
//! output means. Nothing here does I/O; the control plane starts the processes and carries the bytes.
//!
//! A *context* is a process of the guest that keeps what code defined, with a small driver program in
//! it. The driver's source is handed over its standard input ([`Driver::argv`], [`Driver::source`]), and
//! so is each run ([`Driver::run`]). What comes back on both outputs is folded into events by a
//! [`Transcript`]. Which process is a context of which language stands in the process's owner
//! ([`Driver::owner`], [`CodeContext::of`]), so that contexts outlive servers.
#![forbid(unsafe_code)]

mod context;
mod driver;
mod frames;
mod transcript;

pub use context::CodeContext;
pub use cove_model::Language;
pub use driver::Driver;
pub use transcript::{CodeError, CodeEvent, CodeOutput, Transcript};
