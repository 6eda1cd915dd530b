//! Sandboxes from creation to deletion, on a real engine in a process of its own.
#![forbid(unsafe_code)]
// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used)]

mod basics;
mod churn;
mod exporting;
mod full_host;
mod images;
mod inheriting;
mod memory;
mod observing;
mod resizing;
mod sleeping;
mod snapshots;
mod sqlite;
mod stopping;
mod storage;

/// The program that holds the engine.
const PROGRAM: &str = env!("CARGO_BIN_EXE_engine-host");
