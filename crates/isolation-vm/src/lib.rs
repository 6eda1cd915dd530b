//! The VM tier: every machine has a kernel of its own, on hardware that QEMU emulates.
//!
//! A machine sits in a seat (`cove-seats`), as a container does: the same namespaces, uid range, cgroup and interface.
//! The child of the seat becomes the *supervisor* (`cove-supervisor`), which starts QEMU without rights and carries
//! the host's calls to the guest over a port of the machine. Its disk is a block image, made of the image's tree once
//! and shared from then on. Its memory is a nameless file, which the supervisor copies when the machine is captured.
#![forbid(unsafe_code)]

mod capture;
mod disk;
mod initial;
mod kvm;
mod machine;
mod probe;
mod programs;
mod qemu;
mod shape;
mod tier;

pub use programs::DEFAULT_PROGRAMS;
pub use tier::{VmConfig, VmTier};
