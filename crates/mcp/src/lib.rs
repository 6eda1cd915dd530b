//! Sandboxes as tools of the Model Context Protocol.
//!
//! Every tool is one or a few requests to Cove's HTTP API through [`cove_client::Client`]. There are two
//! ways in, with one implementation: [`stdio`] serves a program that started `cove mcp`, and speaks to a
//! server by URL and key; [`http`] is mounted at `/mcp` on the API's listener, and its client hands
//! requests to the server's own router, with the caller's key. Keys, scopes, audit records, quotas and
//! rate limits are therefore those of the HTTP API, and nothing here decides about access.
#![forbid(unsafe_code)]

mod answer;
mod call;
pub mod http;
mod server;
pub mod stdio;
mod tool;

pub use server::CoveTools;
