//! The HTTP side over a real control plane, a real database and a real guest; only the host below is
//! one in memory, so that these tests need no privileges and can make it fail.
// A test says what it expects by failing.
#![allow(clippy::unwrap_used)]

mod audited;
mod bodies;
mod bound;
mod egress;
mod harness;
mod hostile;
mod identity;
mod leases;
mod leaving;
mod limits;
mod live;
mod mcp;
mod placing;
mod ports;
mod previews;
mod revoked;
mod secrets;
mod services;
mod shapes;
mod shares;
mod shutdown;
mod slow;
mod snapshots;
mod ssh;
mod strangers;
mod streams;
mod templates;
mod tenants;
mod terminal;
mod tls;
mod visits;
mod walk;
