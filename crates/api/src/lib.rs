//! The HTTP contract, version 1: wire types, error codes, bounds, the route table and the OpenAPI
//! document made from them.
//!
//! Nothing here does I/O. The server converts these types once at its edge; the client and the
//! command line speak nothing else. Requests refuse fields they do not know.
#![forbid(unsafe_code)]

pub mod approval;
pub mod build;
pub mod code;
pub mod egress;
pub mod error;
pub mod event;
pub mod file;
pub mod host;
pub mod identity;
pub mod image;
pub mod lifecycle;
pub mod node;
pub mod openapi;
pub mod port;
pub mod process;
pub mod quarantine;
pub mod route;
pub mod sandbox;
pub mod secret;
pub mod service;
pub mod snapshot;
pub mod ssh;
pub mod template;
pub mod tenancy;
pub mod timestamp;
pub mod volume;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use error::{ErrorBody, ErrorCode, ErrorDetail};
pub use timestamp::Timestamp;

/// One page of a list.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Page<T> {
    /// The items of this page.
    pub items: Vec<T>,
    /// Cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which page of a list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PageQuery {
    /// Maximum number of items; default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = cove_limits::PAGE_MAX))]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = cove_limits::CURSOR_MAX))]
    pub cursor: Option<String>,
}

/// No query at all: whatever is given is refused.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}
