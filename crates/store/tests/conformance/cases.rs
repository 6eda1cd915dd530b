//! What both databases promise.

pub mod audit;
pub mod builds;
pub mod events;
pub mod hosts;
pub mod idempotency;
pub mod misc;
pub mod nodes;
pub mod objects;
pub mod quota;
pub mod sandboxes;
pub mod secrets;
pub mod shares;
pub mod snapshots;
pub mod ssh_keys;
pub mod templates;
pub mod tenants;
pub mod usage;
pub mod volumes;
