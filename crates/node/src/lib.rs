//! The way between control and the runners of other hosts.
//!
//! ```text
//!  control (unprivileged)                                 a further host
//!  wire::Client ─ Link ── TCP, TLS 1.3, both sides ──► relay (unprivileged) ── unix socket ──► runner (root)
//!                         one connection for each call      │  bytes, unread
//!                                                           └── guests' descriptors that the runner passed
//! ```
//!
//! The relay reads only what begins a connection ([`opening`]). From there on it passes bytes. When a descriptor
//! comes with the runner's bytes, the connection continues with that descriptor.
//!
//! Nodes listen and control dials them (`docs/decisions/0024-nodes-listen.md`). Both sides show certificates of the
//! fleet's own authority ([`Authority`]). A new host gets its first one by a join token ([`JoinToken`]).
#![forbid(unsafe_code)]

mod authority;
mod join;
mod link;
pub mod opening;
mod relay;
mod tls;
mod token;

pub use authority::{Authority, CONTROL_DAYS, Issued, NODE_DAYS, NodeKey, PUBLIC_KEY_BYTES};
pub use join::{Identity, JoinAnswer, JoinRequest, check_name};
pub use link::{ControlTls, Link, Report};
pub use relay::{Relay, RelayConfig};
pub use token::{JoinToken, TokenKey};

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("cannot make a certificate: {0}")]
    Certificate(String),
    #[error("the certificate or key cannot be used: {0}")]
    Tls(String),
    #[error("this is not a join token")]
    Token,
    #[error("{0}")]
    Join(String),
    #[error("cannot {doing} {path}")]
    File {
        doing: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
}
