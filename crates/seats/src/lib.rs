//! What the tiers share that hold their machines in namespaces of this kernel: *seats* (children of the
//! spawner, parked in their namespaces and cgroup, with a slot), cgroups of both versions, the idmapped
//! overlay root, and the body of a running machine.
//!
//! A tier opens [`Seats`], boots machines in them and says what the child of a seat becomes: the guest
//! itself, or a program that runs the guest.

mod body;
mod boot;
pub mod cgroup;
mod detail;
mod found;
pub mod guest_program;
pub mod oom;
mod overlay;
pub mod probe;
mod reach;
mod retired;
pub mod rootfs;
pub mod seat;
mod seats;
mod senses;
mod shown;
pub mod spawner;
mod supervised;
mod tap;
mod turns;
pub mod volumes;
mod warm;
mod watched;

pub use body::{Body, Stillness};
pub use boot::{Becomes, CpuHold, Settled, Standing};
pub use detail::{Detail, find, start_time};
pub use found::Found;
pub use oom::OomOrder;
pub use overlay::{Handing, Overlays};
pub use reach::{Answerer, GuestSocket, open_root, quiesce};
pub use retired::Retired;
pub use seats::{Seats, SeatsConfig, blocking};
pub use senses::Senses;
pub use supervised::{Supervised, Work};
