//! The container tier: namespaces, an own uid range, an idmapped overlay root, cgroups, a seccomp
//! allow-list and few capabilities, made by our own hot path.
//!
//! [`ContainerTier`] boots machines. A boot takes a *seat* — a child of the spawner, parked in its
//! namespaces and cgroup — from a small pool or makes one, mounts the root for the seat's uid range,
//! and tells the child to become the guest.

mod boot_id;
mod capture;
mod capturer;
mod cgroup;
mod changes;
mod cpus;
mod external;
mod findings;
mod guest_program;
mod machine;
mod oom;
mod overlay;
mod own_tmpfs;
mod restore;
mod retired;
mod rootfs;
mod seat;
mod shared_memory;
mod shown;
mod spawner;
mod tier;
mod volumes;
mod watched;

pub use oom::OomOrder;
pub use overlay::Handing;
pub use tier::{ContainerConfig, ContainerTier};
