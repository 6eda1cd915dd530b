//! What can go wrong with images.

use std::io;
use std::path::PathBuf;

use cove_model::ImageId;
use cove_pool::PoolError;
use cove_unpack::UnpackError;

use crate::bootstrap::BootstrapError;
use crate::reference::ReferenceError;
use crate::registry::RegistryError;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    #[error("there is no image {name}")]
    NotFound { name: String },
    #[error("the image {id} is in use by {by}")]
    InUse { id: ImageId, by: String },
    #[error("'{name}' cannot be an image's name")]
    InvalidName { name: String },
    #[error("cannot create the image's volume")]
    Pool(#[from] PoolError),
    #[error("cannot unpack the archive")]
    Unpack(#[from] UnpackError),
    #[error("cannot build the default image")]
    Bootstrap(#[from] BootstrapError),
    #[error("the image reference is invalid")]
    Reference(#[from] ReferenceError),
    #[error("cannot pull the image")]
    Registry(#[from] RegistryError),
    #[error(
        "the image's layers are {need} bytes, and the organisation's quota of disk has room for {room}"
    )]
    BeyondQuota { need: u64, room: u64 },
    #[error(
        "the image is larger than the {room} bytes the organisation's quota of disk has room for"
    )]
    QuotaFull { room: u64 },
    #[error("the archive is larger than {limit} bytes")]
    ArchiveTooLarge { limit: u64 },
    #[error(
        "the archive holds an image, as `docker save` writes it, not a file system; use `docker export` \
         of a container, or push the image to a registry and pull it"
    )]
    NotAFileSystem,
    #[error("cannot read the archive")]
    Input(#[source] io::Error),
    #[error("cannot pack the directory {}: {reason}", path.display())]
    Pack { path: PathBuf, reason: String },
    #[error("{operation} {} failed", path.display())]
    File {
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("a background task ended early")]
    Task(#[source] tokio::task::JoinError),
}

impl ImageError {
    pub(crate) fn file(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            operation,
            path,
            source,
        }
    }
}
