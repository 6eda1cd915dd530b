//! Unpacks an untrusted archive into a directory without trusting it.
//!
//! The archive's bytes are only ever looked at by the program of this crate, `cove-unpack`, which
//! confines itself first ([`cove_confine`]): its root directory is the target and nothing else, its
//! uids are a range reserved for this, and a short list of system calls is all that is left to it.
//! The library half is what both sides share: the limits, the report, and [`driver`], with
//! which a privileged process starts the program and reads its report under limits. Without the
//! feature `program` nothing else is left of the crate, and no decoder of archives with it.
//!
//! Data flow: compressed bytes on the program's standard input → [`stream`] (decompression, hash,
//! total limit) → [`archive`] (tar entries) → [`apply`] (files) → [`report`] frames → the driver.

#[cfg(feature = "program")]
pub mod apply;
#[cfg(feature = "program")]
pub mod archive;
pub mod driver;
pub mod limits;
pub mod report;
#[cfg(feature = "program")]
pub mod stream;

/// The program that unpacks archives, as its parent holds it.
pub use cove_confine::SealedProgram as UnpackProgram;
pub use driver::{Job, Summary, UnpackError, unpack};
pub use limits::{Content, UnpackLimits};
pub use report::{Failure, Warning};
