//! The gVisor tier: runsc gives every machine a kernel in software, the sentry, that takes the system calls of
//! its programs. Few of them reach the host, and those come from a process without rights outside.
//!
//! A machine sits in a seat (`cove-seats`), as a container does: the same namespaces, uid range, cgroup,
//! overlay root and interface. The child of the seat becomes the keeper of runsc instead of the guest
//! (`cove-spawner`, `keeper.rs`); runsc itself never runs as the host's root.
#![forbid(unsafe_code)]

mod bundle;
mod machine;
mod probe;
mod program;
mod tier;

pub use program::DEFAULT_PROGRAM;
pub use tier::{GvisorConfig, GvisorTier};
