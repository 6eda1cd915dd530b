//! The name level of a sandbox's network policy: a resolver and an egress gateway as one
//! unprivileged process, and the host's handle on it.
//!
//! ```text
//!  sandbox ── port 53 ───────► resolver ── allowed names only ──► the host's resolvers
//!     │                           │ remembers which addresses it answered
//!     └── TCP, redirected ───► gateway: CIDR entry │ TLS name │ HTTP host │ answered address
//!                                 └── resolves and dials the name itself, then splices
//!  engine ── control socket ──► policies in, egress log out
//! ```
//! Who asks is known by the peer's address, which the packet filter has set from the interface the
//! packet came in on; an address nobody placed is refused. The process (`main.rs`) gets its sockets
//! and first policies from [`host::Gateway`], which the engine holds; it outlives the engine, and the
//! next engine adopts it. The process is the feature `program`: without it the crate is the handle and what
//! both share, and nothing that reads a packet is linked into the engine.
#![forbid(unsafe_code)]

// Shared by both: what they say to each other, and what is decided by.
pub mod control;
pub mod journal;
pub mod limits;
pub mod log;
pub mod policy;
pub mod record;

// The engine's handle on the process.
pub mod host;

// The process: everything that reads a packet of a guest or an answer of the network.
#[cfg(feature = "program")]
pub mod dns;
#[cfg(feature = "program")]
pub mod http;
#[cfg(feature = "program")]
pub mod proxy;
#[cfg(feature = "program")]
pub mod serve;
#[cfg(feature = "program")]
pub mod shares;
#[cfg(feature = "program")]
pub mod state;
#[cfg(feature = "program")]
pub mod tls;
