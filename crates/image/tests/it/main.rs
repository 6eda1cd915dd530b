//! Images end to end, against real pools: every test has a data directory of its own.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod bootstrap;
mod import;
mod lifecycle;
mod proxy;
mod pull;
mod registry;
mod world;
