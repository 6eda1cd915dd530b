//! How the program locks itself in before it hears from anybody but its parent: a process id namespace and
//! an empty read-only root of its own, a uid that owns nothing, no capabilities, a list of system calls. It
//! keeps the host's network. Stage 1 of [`cove_confine::cell`] kills it when the parent has closed its end
//! of the socket.

use std::io;
use std::os::fd::BorrowedFd;

use cove_confine::cell::{self, Cell, Identity, Network, Rights, RootDirectory, Walls};
use cove_confine::seccomp::{Otherwise, Threads, allow_only, calls};
use rustix::thread::CapabilitySet;

/// Certificates, manifests and four layers' buffers are a few tens of megabytes.
const MAX_ADDRESS_SPACE: u64 = 1 << 30;
/// Connections of one pull, and a few.
const MAX_OPEN_FILES: u64 = 128;

/// What one thread with sockets, TLS and the allocator needs. Notably absent: anything that opens a
/// file, makes a process or a thread, listens, changes an id, traces or mounts.
const CALLS: &[&[libc::c_long]] = &[calls::BASE, calls::CONNECTIONS];

pub enum Stage {
    /// In stage 1, after stage 2 has ended: whether it ended well.
    Over(bool),
    /// In stage 2, not confined yet.
    Inside(Cell),
}

/// Makes the namespaces and forks the process that goes in; in stage 1 waits for its end. `parent` is
/// the socket to the parent. Must be called while the program has one thread.
pub fn enter(parent: BorrowedFd<'_>, uid: u32) -> io::Result<Stage> {
    let walls = Walls {
        place: RootDirectory::Nothing,
        identity: Identity::User(uid),
        network: Network::Host,
    };
    Ok(match cell::enter(walls)? {
        cell::Stage::Outside { worker } => Stage::Over(cell::guard(worker, parent)?),
        cell::Stage::Inside(cell) => Stage::Inside(cell),
    })
}

/// Goes in. Afterwards only [`filter`] is missing, which must come once the runtime is there.
pub fn lock(cell: Cell) -> io::Result<()> {
    let rights = Rights {
        address_space: MAX_ADDRESS_SPACE,
        open_files: MAX_OPEN_FILES,
        file_bytes: 0,
        capabilities: CapabilitySet::empty(),
    };
    cell::lock(cell, rights)?;
    Ok(())
}

/// Any other call kills: what was to be read has taken the program over.
pub fn filter() -> io::Result<()> {
    allow_only(CALLS, Otherwise::Kill, Threads::This)
}
