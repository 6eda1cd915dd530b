//! One host's sandboxes, as a library: no HTTP, no authentication, no globals, no prints.
//!
//! [`Engine`] owns the pool, the images and every sandbox's record, and is given its isolation tiers by
//! the program that opens it. It offers itself as a [`cove_runner_api::RunnerApi`], and to embedders as [`Engine::guest`]. An engine may die
//! at any instruction: sandboxes live on, and the next [`Engine::open`] over the same data directory
//! adopts the running ones and sweeps what was half made.
//!
//! ```text
//! <data-dir>/instance          this engine's name on the machine
//! <data-dir>/host              the id of this host, by which a database knows what is on it
//! <data-dir>/pool.img, pool/   volumes (see cove-pool); pool/base the layer with device nodes
//! <data-dir>/records/          a record per sandbox (see `record`)
//! <data-dir>/snapshots/        a record per snapshot (see `snapshots`)
//! <data-dir>/volumes/          a record per volume of an organisation (see `data_volumes`)
//! <data-dir>/signing.key       what exported snapshots are signed with
//! <data-dir>/reserve           disk space for when there is none (see `reserve`)
//! <data-dir>/runtime/          the guest program, by content
//! <data-dir>/images/           image records and half-downloaded layers
//! /run/cove/                   what engines of one host claim from each other
//! ```
#![forbid(unsafe_code)]

mod adopt;
mod api;
mod archive;
mod aside;
mod bounds;
mod commitments;
mod config;
mod create;
mod data_volumes;
mod doctor;
mod ending;
mod engine;
mod error;
mod events;
mod files;
mod gateway;
mod guard;
mod images;
mod inherited;
mod instance;
mod limits;
mod merged;
mod monitor;
mod network;
mod offload;
mod origin;
mod pause;
mod record;
mod refusals;
mod repair;
mod reserve;
mod rollback;
mod sandbox;
mod secrets;
mod snapshots;
mod template;
mod tiers;
mod visitors;
mod volume_files;
mod volumes;

pub use config::{EngineConfig, Overcommit};
pub use cove_isolation::{OpenTier, accounts};
pub use cove_network::Addresses;
pub use cove_pool::BackendChoice;
pub use engine::Engine;
pub use error::EngineError;
pub use repair::{Interrupted, is_unfinished};
pub use reserve::make_room;

/// The id of the host that an engine's data directory is, which is made once. `dir` may not be there yet.
pub fn host_id(dir: &std::path::Path) -> std::io::Result<cove_model::HostId> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    instance::host_id(dir)
}
