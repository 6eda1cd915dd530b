//! The pool on real filesystems. Needs root, loop devices and btrfs-progs.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

mod disks;
mod fidelity;
mod fixture;
mod limits;
mod model;
mod opening;
mod volumes;
