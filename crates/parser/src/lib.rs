//! Reads and writes what guests and other untrusted sources made, in a process that has nothing to lose.
//!
//! The program of this crate, `cove-parser`, does one job and ends: it packs a file tree or captured
//! memory, unpacks memory, reads a snapshot's manifest or signature, finds out from CRIU's log why it
//! failed, or edits CRIU's images for a copy. It confines itself first, as [`cove_confine`]
//! says: its root directory is what the job is about and nothing else, its ids own nothing on the
//! host, it has no network and a short list of system calls.
//!
//! The library half is linked by the privileged side: [`Parser`] starts the program on descriptors and
//! checks its answers, which are small binary frames ([`answer`], [`manifest`]). Without the feature
//! `program` that half is all there is, and no decoder of untrusted bytes with it.

pub mod answer;
#[cfg(feature = "program")]
pub mod criu;
pub mod driver;
pub mod manifest;
#[cfg(feature = "program")]
pub mod memory;
pub mod order;
#[cfg(feature = "program")]
pub mod tree;

pub use answer::{Finding, Reason, Replacement, Signature};
pub use driver::{Packing, PackingEnd, Parser, ParserError};
pub use order::Edits;

/// Whether a file of a memory image may have this name: one harmless component.
pub fn is_memory_name(name: &[u8]) -> bool {
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
    (1..=MEMORY_NAME_MAX).contains(&name.len())
        && name.iter().all(allowed)
        && !name.starts_with(b".")
}

/// Files of one memory image; hundreds are usual for many processes.
pub const MEMORY_FILES_MAX: usize = 100_000;
const MEMORY_NAME_MAX: usize = 200;
