//! The static programs that travel inside the one binary: PID 1 of every sandbox, the spawner that
//! makes sandboxes, and the confined unpacker of image layers.
#![forbid(unsafe_code)]

/// PID 1 inside a sandbox.
pub static GUEST: &[u8] = include_bytes!(env!("COVE_GUEST"));
/// The tiny privileged process that clones sandboxes.
pub static SPAWNER: &[u8] = include_bytes!(env!("COVE_SPAWNER"));
/// The confined child that unpacks a stranger's archive.
pub static UNPACK: &[u8] = include_bytes!(env!("COVE_UNPACK"));
