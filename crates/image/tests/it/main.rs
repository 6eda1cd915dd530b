//! Images end to end, against real pools: every test has a data directory of its own.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod bootstrap;
mod import;
mod lifecycle;
mod owners;
mod proxy;
mod pull;
mod reaching;
mod registry;
mod stub;
mod world;
