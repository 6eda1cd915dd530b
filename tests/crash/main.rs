//! An engine that is killed: what runs is adopted, what was half made is swept, nothing leaks.
#![forbid(unsafe_code)]
// Helpers of tests fail as tests do.
#![allow(clippy::unwrap_used)]

mod adoption;
mod damaged;
mod moments;
mod neighbours;
mod rebooting;
mod resizing;
mod steps;
mod sweeping;
mod travelling;

/// The program that holds the engine.
const PROGRAM: &str = env!("CARGO_BIN_EXE_engine-host");
