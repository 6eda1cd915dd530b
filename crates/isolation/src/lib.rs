//! The interface every isolation tier offers: boot a machine from a root, find it again, limit it,
//! end it. The engine knows only this; which tiers a host has is decided by the program that opens it.
#![forbid(unsafe_code)]

pub mod accounts;
mod capabilities;
mod cpus;
mod error;
pub mod finding;
mod machine;
pub mod slots;
mod tier;
mod uids;

pub use capabilities::{Capabilities, Limit, Limits, TaskCost};
pub use cpus::CpuBook;
pub use error::IsolationError;
pub use machine::{
    Afterwards, AtRest, Captured, Machine, MachineRecord, MemoryEvent, Needs, Usage,
};
pub use tier::{
    Adopted, Boot, BootTurn, Isolation, MachineSpec, MakeRoot, MountedVolume, OpenTier, Placed,
    Restore, Root, TierHost, Warm,
};
