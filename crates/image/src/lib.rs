//! Where disks come from: images pulled from OCI registries, bootstrapped from the host's Debian
//! mirror, or imported from a tarball or a directory.
//!
//! An image is a read-only volume of the pool plus a small record. A volume's name is its *chain*:
//! a hash over the digests of every archive that was unpacked into it, from the bottom up, so that
//! images with the same lower layers share their volumes. Archives are untrusted bytes; they go
//! through [`cove_unpack`], never through this process, and what registries say goes through
//! [`cove_fetcher`].
//!
//! ```text
//! <dir>/records/img_….json   one per image
//! <dir>/owners/org_…/…       which layers were delivered to whom
//! <dir>/blobs/…              layers on their way from a registry, resumable
//! <host cache>/debian-….tar  the bootstrapped default image, once per host
//! pool: images/sha256-…      one volume per chain;  staging/layer-…  one being filled
//! ```
//!
//! Everything is async on the caller's tokio runtime; what blocks runs on its blocking threads.
#![forbid(unsafe_code)]

mod bootstrap;
mod chain;
mod error;
mod image;
mod import;
mod keyed;
mod layer;
mod owner;
mod progress;
mod pull;
mod records;
mod reference;
mod registry;
mod store;

pub use bootstrap::{AptSource, BootstrapError, Recipe, Stage};
pub use chain::ChainId;
pub use cove_fetcher::FetchProgram;
pub use cove_model::ImageId;
pub use cove_unpack::{UnpackError, UnpackLimits, UnpackProgram};
pub use error::ImageError;
pub use image::{Image, OciConfig, Source, host_arch};
pub use owner::Owner;
pub use progress::Progress;
pub use reference::{Reference, ReferenceError};
pub use registry::{FetchConfig, RegistryAuth, RegistryError};
pub use store::{ImageConfig, ImageHold, ImageStore, SweepReport};
