//! How secrets are encrypted: which key opens what, and who has it.
//!
//! ```text
//!  host key (a file of root's, or a command's answer; never in the database)
//!    └─ wraps, for each organisation, its opening key and the key of its CA      [`HostKeys`], [`make_keys`]
//!         └─ opens the secrets that were sealed to the organisation's public key  [`seal`], [`OpenedKeys`]
//! ```
//! Control holds public keys and sealed values: it can seal a secret and open none. The runner unwraps an
//! organisation's keys to hand them to that organisation's terminator, and opens no secret. A secret's
//! bindings (where it may be used, and how) are authenticated together with its value: whoever changes them in
//! the database has a value that does not open any more.
#![forbid(unsafe_code)]

mod authority;
mod host_key;
mod object_key;
mod org_keys;
mod sealed;

pub use authority::{authority_params, issuer};
pub use host_key::HostKeys;
pub use object_key::{open_object_key, wrap_object_key};
pub use org_keys::{OpenedKeys, make_keys, rewrap_keys};
pub use sealed::{About, seal};
pub use zeroize::Zeroizing;

#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    #[error("cannot {doing} {path}")]
    File {
        doing: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the host key in {path} cannot be used: {problem}")]
    HostKey { path: String, problem: String },
    #[error("the command that prints the host key failed: {problem}")]
    Command { problem: String },
    #[error(
        "these keys were wrapped by host key {wanted}, which this host does not have; add it to the host key file"
    )]
    OtherHostKey { wanted: String },
    #[error(
        "cannot decrypt the keys of {org}: they were changed, or belong to another organisation"
    )]
    Wrapped { org: String },
    #[error("cannot decrypt the secret: its value or its binding was changed")]
    Sealed,
    #[error("cannot make keys: {0}")]
    Make(String),
}
