//! What the engine and its spawner say to each other, in packets of `cove_wire::packet`.
//!
//! The spawner is a tiny privileged process: cloning from it costs a fraction of cloning from the
//! engine, whose page tables are large. It makes a child per sandbox in fresh namespaces and hands
//! the engine a socket to that child; the child waits there, prepared, until it learns what to
//! become.

pub mod boot_id;
pub mod message;
pub mod oom;
pub mod shared;
pub mod side;

/// What stands before the address of the host's resolver where the engine starts the spawner.
pub const RESOLVER_ARGUMENT: &str = "--resolver=";
/// The variable that gives the guest that address. One of an earlier build does not look at it.
pub const RESOLVER_VARIABLE: &str = "COVE_RESOLVER";
