//! Why an image could not be fetched. Made by the program, sent to its parent, shown by the store.

/// Texts in it come from the program, so they are bounded and printable (see [`crate::wire`]).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    #[error("the registry {registry} does not answer: {detail}")]
    Unreachable { registry: String, detail: String },
    #[error("the registry did not answer within {seconds} s")]
    Timeout { seconds: u64 },
    #[error("the registry answered {status} to {url}")]
    Status { status: u16, url: String },
    #[error("the registry has no {what}")]
    NotFound { what: String },
    #[error("the registry requires credentials")]
    CredentialsNeeded,
    #[error("the registry refused the credentials")]
    CredentialsRefused,
    #[error("the registry asks for an unknown kind of authentication: {scheme}")]
    UnknownAuthentication { scheme: String },
    #[error("the registry sent an invalid answer: {reason}")]
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
    #[error("{what} has {size} bytes, more than the limit of {limit}")]
    TooLarge { what: String, size: u64, limit: u64 },
    #[error("the image has no variant for linux/{arch}; it has {available}")]
    NoPlatform { arch: String, available: String },
    #[error("{media_type} cannot be run")]
    UnsupportedMedia { media_type: String },
    #[error("the registry redirects without end or to a place that is not allowed: {url}")]
    Redirect { url: String },
    #[error("{place} is on a network that this organisation may not reach")]
    OffLimits { place: String },
    #[error("the connection was lost {attempts} times without progress: {detail}")]
    BrokenOff { attempts: u32, detail: String },
    #[error("less than {bytes} bytes arrived in {seconds} s")]
    TooSlow { bytes: u64, seconds: u64 },
    #[error("cannot read the host's trusted certificates: {detail}")]
    TrustStore { detail: String },
    #[error("the program that speaks to registries failed: {detail}")]
    Helper { detail: String },
    /// All that another organisation than the operator's hears of how connecting went: anything more
    /// would tell it what there is on networks it cannot reach.
    #[error(
        "the registry {registry} could not be reached, or did not answer as a registry does; check its \
         name, and whether it is reachable from the internet"
    )]
    Withheld { registry: String },
}

impl RegistryError {
    /// Whether trying again may help, so that what has arrived is worth keeping.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::BrokenOff { .. } | Self::TooSlow { .. } => true,
            Self::Unreachable { .. } | Self::Timeout { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }

    /// What a tenant may hear: the answers of a registry about an image, but nothing of how a
    /// connection went, where a redirect led, or what a server said that is no registry.
    pub fn for_tenant(self, registry: &str) -> Self {
        match self {
            Self::NotFound { .. }
            | Self::CredentialsNeeded
            | Self::CredentialsRefused
            | Self::DigestMismatch { .. }
            | Self::DiffIdMismatch { .. }
            | Self::TooLarge { .. }
            | Self::NoPlatform { .. }
            | Self::UnsupportedMedia { .. }
            | Self::TooSlow { .. } => self,
            _ => Self::Withheld {
                registry: registry.to_owned(),
            },
        }
    }
}
