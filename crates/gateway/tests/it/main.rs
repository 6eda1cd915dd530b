//! The gateway process against real sockets in namespaces of the test: what a policy allows works,
//! and every way around it that we know of does not.
// A test says what it expects by failing.
#![allow(clippy::unwrap_used)]

mod client;
mod dns;
mod journal;
mod life;
mod limits;
mod ports;
mod tls;
mod web;
mod world;
