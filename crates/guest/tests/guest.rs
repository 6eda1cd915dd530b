//! The guest as an ordinary process on a socket of its own, spoken to through the real client.
//! Needs root, as the sandbox's PID 1 is.
#![allow(
    clippy::unwrap_used,
    reason = "in a test the place of a failure is what counts"
)]

#[path = "guest/archives.rs"]
mod archives;
#[path = "guest/figures.rs"]
mod figures;
#[path = "guest/files.rs"]
mod files;
#[path = "guest/harness.rs"]
mod harness;
#[path = "guest/hostile.rs"]
mod hostile;
#[path = "../../../tests/src/needs.rs"]
mod needs;
#[path = "guest/pid_one.rs"]
mod pid_one;
#[path = "guest/ports.rs"]
mod ports;
#[path = "guest/processes.rs"]
mod processes;
#[path = "guest/quiesce.rs"]
mod quiesce;
#[path = "guest/refusals.rs"]
mod refusals;
#[path = "guest/retention.rs"]
mod retention;
#[path = "guest/services.rs"]
mod services;
#[path = "guest/shutdown.rs"]
mod shutdown;
#[path = "guest/streams.rs"]
mod streams;
#[path = "guest/terminals.rs"]
mod terminals;
#[path = "guest/watches.rs"]
mod watches;
