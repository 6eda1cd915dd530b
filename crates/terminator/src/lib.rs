//! TLS termination for the bound hosts of one organisation's secrets: placeholders become values on the way out,
//! values become placeholders on the way back.
//!
//! ```text
//!  sandbox ── TLS, redirected ──► gateway ── a bound name? ── both sockets, passed ──► terminator
//!                                   └─ resolves, checks and dials, as for every connection
//!  engine ── socket pair ──► keys, sealed secrets, which sandbox has which placeholder; uses back
//! ```
//! One process for each organisation: it has that organisation's opening key and no other's, no way to open a
//! file or a connection, and ends with the engine that started it. The program is the feature `program`; without
//! it the crate is what the engine and the gateway say to the process.
#![forbid(unsafe_code)]

pub mod call;
pub mod handover;
pub mod host;

#[cfg(feature = "program")]
pub mod program;
