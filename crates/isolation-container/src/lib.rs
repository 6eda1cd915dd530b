//! The container tier: namespaces, an own uid range, an idmapped overlay root, cgroups, a seccomp
//! allow-list and few capabilities, made by our own hot path.
//!
//! [`ContainerTier`] boots machines in seats (`cove-seats`), whose children become the guest themselves.

mod boot_id;
mod capture;
mod capturer;
mod changes;
mod external;
mod findings;
mod machine;
mod own_tmpfs;
mod restore;
mod shared_memory;
mod tier;

pub use cove_seats::{Handing, OomOrder};
pub use tier::{ContainerConfig, ContainerTier};
