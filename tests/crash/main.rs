//! An engine that is killed: what runs is adopted, what was half made is swept, nothing leaks.
#![forbid(unsafe_code)]

/// The program that holds the engine.
#[allow(dead_code)]
const PROGRAM: &str = env!("CARGO_BIN_EXE_engine-host");
