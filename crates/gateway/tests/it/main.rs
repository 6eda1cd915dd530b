//! The gateway process against real sockets in namespaces of the test: what a policy allows works,
//! and every way around it that we know of does not.

mod client;
mod dns;
mod life;
mod limits;
mod ports;
mod tls;
mod web;
mod world;
