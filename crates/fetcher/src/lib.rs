//! Fetches images from registries without trusting them.
//!
//! What a registry sends is only ever looked at by the program of this crate, `cove-fetcher`, one
//! process per pull, which confines itself first (`confine`): a uid that owns nothing, an empty root
//! directory, no capabilities, and a short list of system calls. It resolves names, checks every address
//! before it dials it (`connector`, [`reach`]), follows redirects, logs in, reads manifests, and sends
//! what it found to its parent in [`wire`] frames. The parent (the privileged side, [`driver`]) checks
//! those frames strictly and hashes the bytes of layers itself.
//!
//! ```text
//! parent: Start(order) ──► program: resolve ──► Resolved(layers, configuration) ──► parent
//! parent: Blob(digest, from) ──► program: GET ──► Data… End ──► parent: file, hash
//! ```
//!
//! The program is the feature `program`: without it the crate has no TLS, HTTP or JSON in it.

pub mod driver;
pub mod error;
pub mod reach;
pub mod wire;

#[cfg(feature = "program")]
pub mod auth;
#[cfg(feature = "program")]
pub mod blob;
#[cfg(feature = "program")]
pub mod client;
#[cfg(feature = "program")]
pub mod confine;
#[cfg(feature = "program")]
pub mod connector;
#[cfg(feature = "program")]
pub mod manifest;
#[cfg(feature = "program")]
pub mod names;
#[cfg(feature = "program")]
pub mod work;

/// The program that fetches images, as its parent holds it.
pub use cove_confine::SealedProgram as FetchProgram;
pub use driver::{BlobEvent, Fetch};
pub use error::RegistryError;
pub use reach::Reachable;
pub use wire::{Configuration, Digest, Layer, Login, Manifest, Order};
