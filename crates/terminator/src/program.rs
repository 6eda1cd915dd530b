//! The process: everything that reads what a sandbox or a server said, and everything that knows a value.

mod answer;
mod approvals;
mod body;
mod budgets;
mod carry;
mod certificates;
mod chunks;
mod decode;
mod heads;
mod meter;
mod refusal;
mod scrub;
mod serve;
mod sigv4;
mod swap;
mod table;
#[cfg(test)]
mod tests;
mod totp;

pub use serve::{Config, serve};

/// Public for tests of this crate and for fuzzing: pure parts.
pub use scrub::{Scrubber, forms};
