//! Speaks to OCI registries: who may ask ([`auth`]), what there is ([`manifest`]), and the bytes
//! ([`blob`]). Everything a registry sends is bounded, and nothing is used before its digest fits.

mod auth;
mod blob;
mod client;
mod manifest;

pub use auth::RegistryAuth;
pub(crate) use blob::{BlobLease, Blobs, is_passing};
pub(crate) use client::Client;
pub(crate) use manifest::{Layer, Resolved};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    #[error("the registry {registry} does not answer")]
    Unreachable {
        registry: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the registry did not answer within {seconds} s")]
    Timeout { seconds: u64 },
    #[error("the registry answered {status} to {url}")]
    Status { status: u16, url: String },
    #[error("the registry has no {what}")]
    NotFound { what: String },
    #[error("the registry wants credentials")]
    CredentialsNeeded,
    #[error("the registry refused the credentials")]
    CredentialsRefused,
    #[error("the registry asks for an unknown kind of authentication: {scheme}")]
    UnknownAuthentication { scheme: String },
    #[error("the registry sent something that makes no sense: {reason}")]
    Malformed { reason: String },
    #[error("the digest is {actual} where {expected} was expected")]
    DigestMismatch { expected: String, actual: String },
    #[error(
        "the content of layer {layer} is {actual}, but the image's configuration says {expected}"
    )]
    DiffIdMismatch {
        layer: String,
        expected: String,
        actual: String,
    },
    #[error("{what} is {size} bytes, more than the limit of {limit}")]
    TooLarge {
        what: &'static str,
        size: u64,
        limit: u64,
    },
    #[error("the image has no variant for linux/{arch}; it has {available}")]
    NoPlatform { arch: String, available: String },
    #[error("{media_type} is not something that can be run")]
    UnsupportedMedia { media_type: String },
    #[error("the registry redirects without end or to a place that is not allowed: {url}")]
    Redirect { url: String },
    #[error("the connection broke off {attempts} times without progress")]
    BrokenOff {
        attempts: u32,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the host's trusted certificates could not be read")]
    TrustStore(#[source] std::io::Error),
}
