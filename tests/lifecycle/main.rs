//! Sandboxes from creation to deletion, on a real engine in a process of its own.
#![forbid(unsafe_code)]
// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used)]

mod basics;
mod churn;
mod exporting;
mod fetching;
mod full_host;
mod gvisor;
mod images;
mod inheriting;
mod memory;
mod observing;
#[cfg(target_arch = "x86_64")]
mod older_guest;
#[path = "../../crates/image/tests/it/registry.rs"]
#[allow(dead_code, reason = "only part of it is needed here")]
mod registry;
mod resizing;
mod services;
mod sleeping;
mod snapshots;
mod sqlite;
mod stalled;
mod stopping;
mod storage;
mod tiers;
mod volumes;
mod volumes_at_rest;

/// What the registry borrowed from the image store's tests needs.
mod world {
    pub use cove_tests::sh;
}

/// The program that holds the engine.
const PROGRAM: &str = env!("CARGO_BIN_EXE_engine-host");
