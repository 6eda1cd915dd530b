//! The control plane over a real SQLite store and a host in memory that fails on request.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod approvals;
mod auditing;
mod budgets;
mod builds;
mod clocks;
mod crash;
mod creating;
mod durable;
mod events;
mod flat;
mod given;
mod hosts;
mod idle;
mod images;
mod interrupted;
mod isolation;
mod keys;
mod leases;
mod logins;
mod metadata;
mod metering;
mod nodes;
mod quarantine;
mod quota;
mod resting;
mod retrying;
mod secrets;
mod snapshots;
mod support;
mod templates;
mod tenancy;
mod tokens;
mod updating;
mod volumes;
