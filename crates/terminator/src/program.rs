//! The process: everything that reads what a sandbox or a server said, and everything that knows a value.

mod answer;
mod carry;
mod certificates;
mod heads;
mod refusal;
mod scrub;
mod serve;
mod swap;
mod table;
#[cfg(test)]
mod tests;

pub use serve::{Config, serve};

/// Public for tests of this crate and for fuzzing: pure parts.
pub use scrub::{Scrubber, forms};
