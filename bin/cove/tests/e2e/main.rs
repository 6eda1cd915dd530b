//! The binary as people use it: a real server with real sandboxes, and the command line against it.
//! Needs root, as the server does.
// A test says what it expects by failing.
#![allow(clippy::unwrap_used)]

mod attack;
mod auditing;
mod authorities;
mod border;
mod browser;
mod building;
mod chaos;
mod cli;
#[path = "../../../../crates/store/tests/conformance/cluster.rs"]
mod cluster;
mod copying;
mod daytona;
mod destroying;
mod disk;
mod documents;
mod durable;
mod e2b;
mod fleet;
mod habits;
mod harness;
mod identity;
mod idle;
mod json;
mod kubernetes;
mod logging;
mod login;
mod mcp;
mod memory;
mod metadata;
#[path = "../../../../tests/src/needs.rs"]
mod needs;
mod pipes;
mod ports;
mod postgres;
mod privileges;
mod pulling;
mod python;
mod quarantine;
mod reloading;
mod restarts;
mod secrets;
mod services;
mod signals;
mod ssh;
mod terminal;
mod travel;
mod typescript;
mod unit;
mod vm;
