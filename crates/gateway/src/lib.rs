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
//! Who asks is told by the peer's address, which the packet filter has set from the interface the
//! packet came in on; an address nobody placed is refused. The process (`main.rs`) gets its sockets
//! and first policies from [`host::Gateway`], which the engine holds; it outlives the engine, and the
//! next engine adopts it.
#![forbid(unsafe_code)]

pub mod control;
pub mod dns;
pub mod host;
pub mod http;
pub mod journal;
pub mod limits;
pub mod log;
pub mod policy;
pub mod proxy;
pub mod serve;
pub mod shares;
pub mod state;
pub mod tls;
