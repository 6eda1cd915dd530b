//! The static programs that travel inside the one binary: PID 1 of every sandbox, the spawner that
//! makes sandboxes, the confined fetcher and unpacker of image layers, the confined
//! parser of snapshots and captured memory, the resolver and egress gateway, the terminators, and the
//! supervisors of virtual machines.
#![forbid(unsafe_code)]

/// PID 1 inside a sandbox.
pub static GUEST: &[u8] = include_bytes!(env!("COVE_GUEST"));
/// The tiny privileged process that clones sandboxes.
pub static SPAWNER: &[u8] = include_bytes!(env!("COVE_SPAWNER"));
/// The confined child that speaks to image registries.
pub static FETCHER: &[u8] = include_bytes!(env!("COVE_FETCHER"));
/// The confined child that unpacks an untrusted archive.
pub static UNPACK: &[u8] = include_bytes!(env!("COVE_UNPACK"));
/// The confined child that reads and writes what guests and other untrusted sources made.
pub static PARSER: &[u8] = include_bytes!(env!("COVE_PARSER"));
/// The unprivileged resolver and egress gateway.
pub static GATEWAY: &[u8] = include_bytes!(env!("COVE_GATEWAY"));
/// The confined process that terminates TLS for one organisation's secrets.
pub static TERMINATOR: &[u8] = include_bytes!(env!("COVE_TERMINATOR"));
/// PID 1 of a seat that holds a virtual machine.
pub static SUPERVISOR: &[u8] = include_bytes!(env!("COVE_SUPERVISOR"));
