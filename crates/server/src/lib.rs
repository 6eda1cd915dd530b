//! HTTP over the control plane.
//!
//! Unknown senders' bytes are parsed here and nowhere deeper: a request is bounded, authenticated, turned
//! into a call of [`cove_control::Control`], and its answer or refusal written back in the contract of
//! `cove-api`. The router is built from that crate's route table, so a route cannot exist in one
//! place only. Nothing here needs a privilege.
#![forbid(unsafe_code)]

mod addresses;
mod admitted;
mod authorities;
mod config;
mod convert;
mod extract;
mod failure;
mod following;
mod guard;
mod handler;
mod lines;
mod listen;
mod mcp;
mod metadata;
mod metrics;
mod offline;
mod paid;
mod preview;
mod pulse;
mod room;
mod router;
mod stalling;
mod state;
mod streaming;
mod strict;
mod timing;
mod tls;
mod unread;

pub use addresses::sharing as connection_sharing;
pub use authorities::{AuthorityError, authorities};
pub use config::{LogLosses, ServerConfig, SshPlace, TlsPem};
pub use listen::{ServeError, serve, serve_previews};
pub use metadata::serve_metadata;
pub use preview::{PreviewUrl, PreviewUrlError, VISITS_MAX};
pub use router::router;
pub use state::App;
pub use tls::{TlsError, check_tls};
