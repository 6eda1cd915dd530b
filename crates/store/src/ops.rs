//! Every transaction the store knows, one struct each.

pub mod audit;
pub mod budgets;
pub mod builds;
pub mod events;
pub mod hosts;
pub mod idempotency;
pub mod image_jobs;
pub mod images;
pub mod keys;
pub mod nodes;
pub mod objects;
pub mod organisations;
pub mod sandboxes;
pub mod secrets;
pub mod shares;
pub mod snapshots;
pub mod ssh_keys;
pub mod steady;
pub mod sweep;
pub mod templates;
pub mod usage;
pub mod volumes;
pub mod work;
