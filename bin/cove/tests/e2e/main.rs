//! The binary as people use it: a real server with real sandboxes, and the command line against it.
//! Needs root, as the server does.
// A test says what it expects by failing.
#![allow(clippy::unwrap_used)]

mod chaos;
mod cli;
mod copying;
mod documents;
mod harness;
mod pipes;
mod privileges;
mod restarts;
mod terminal;
