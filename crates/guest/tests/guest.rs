//! The guest as an ordinary process on a socket of its own, spoken to through the real client.
//! Needs root, as the sandbox's PID 1 is.

#[path = "guest/harness.rs"]
mod harness;
#[path = "guest/processes.rs"]
mod processes;
