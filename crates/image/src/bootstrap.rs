//! Images made from packages: the default one, and others that are it and a few packages more. Each is a
//! small Debian built from the host's own mirror with the host's own keys.
//!
//! Built once per host and kept as a plain tar file in the host-wide cache, because that is what
//! unpacks fastest (compressed, the same tree takes more than twice as long). A lock beside the file makes
//! two data directories that want it at once build it once.

mod cache;
mod recipe;
mod sources;

use std::path::PathBuf;

use cove_unpack::Content;

pub use recipe::Recipe;
pub use sources::AptSource;

use crate::chain::ChainId;
use crate::error::ImageError;
use crate::image::{Image, Source, host_arch};
use crate::layer::{self, Archive, blocking};
use crate::progress::{Progress, Report};
use crate::store::{Description, ImageStore};

pub(crate) const NAME: &str = "debian";

/// What the build is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Another server on this host is building the same image.
    Waiting,
    ReadingIndexes,
    Downloading,
    Extracting,
    Installing,
    Customising,
    Packing,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting for another build on this host",
            Self::ReadingIndexes => "reading the mirror's indexes",
            Self::Downloading => "downloading packages",
            Self::Extracting => "extracting the base system",
            Self::Installing => "installing packages",
            Self::Customising => "setting up",
            Self::Packing => "packing",
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    #[error("this host's distribution is unknown: {reason}")]
    UnknownHost { reason: String },
    #[error("no apt source on this host offers the suite {suite}")]
    NoSources { suite: String },
    /// debootstrap would have to unpack and run packages as the host's root.
    #[error("mmdebstrap is not installed; install it, or pull an image from a registry")]
    NoTool,
    #[error("mmdebstrap failed: {output}")]
    Failed { output: String },
    #[error("the build took longer than {seconds} s")]
    Deadline { seconds: u64 },
    #[error("'{word}' cannot be {what}")]
    BadRecipe { what: &'static str, word: String },
    #[error("{} must belong to root and be writable by nobody else", path.display())]
    UnsafeCache { path: PathBuf },
}

impl ImageStore {
    /// The image `debian`, built on first use on this host, unpacked on first use in this data
    /// directory, and returned at once after that.
    pub async fn bootstrap_debian(
        &self,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        self.bootstrap(&Recipe::debian(), progress).await
    }

    /// The image of a recipe, under the recipe's name; as [`bootstrap_debian`](Self::bootstrap_debian).
    pub async fn bootstrap(
        &self,
        recipe: &Recipe,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Image, ImageError> {
        let report = Report::new(progress);
        let inner = &self.inner;
        let _one_at_a_time = inner.building.lock(recipe.name()).await;
        let host = blocking(|| Ok(sources::Host::read(std::path::Path::new("/"))?)).await?;
        let cached = {
            let (cache, ids) = (&inner.config.host_cache, inner.config.unpack_uid_base);
            cache::obtain(cache, ids, recipe, &host, &report).await?
        };
        let chain = ChainId::over(None, Content::Tree, &cached.digest);
        let _pin = inner.pin(std::slice::from_ref(&chain));
        let (pool, wanted) = (inner.pool.clone(), chain.clone());
        if !blocking(move || Ok(layer::is_ready(&pool, &wanted)?)).await? {
            let archive = Archive {
                input: cached.file,
                content: Content::Tree,
                hash: false,
                digest: Some(cached.digest.clone()),
                room_bytes: None,
            };
            let filled = layer::fill(&inner.pool, &inner.config, None, archive, &report).await?;
            filled.publish(chain.clone()).await?;
        }
        let image = inner
            .register(Description {
                names: vec![recipe.name().to_owned()],
                digest: Some(cached.digest),
                source: Source::Bootstrap,
                config: recipe::oci_config(),
                layers: vec![chain],
                arch: host_arch().to_owned(),
            })
            .await?;
        report.send(Progress::Done);
        Ok(image)
    }
}
