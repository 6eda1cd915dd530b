//! How programs of Cove give up rights before they read the bytes of guests and clients.
//!
//! Owns every step once: user ids, capabilities, resource limits and new privileges ([`rights`]),
//! namespaces and an own root directory ([`cell`]), and the list of system calls ([`seccomp`]), whose
//! assembler the spawner uses for the filter of sandboxes too. What a program keeps (its list of calls,
//! its capabilities, its limits) stays with that program. [`SealedProgram`] is the other end: how the
//! privileged side holds and starts such a program.

pub mod cell;
mod program;
pub mod rights;
pub mod seccomp;

pub use program::SealedProgram;

/// Why a program could not confine itself. It must then end without reading anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {reason}")]
pub struct ConfineError {
    pub step: &'static str,
    pub reason: String,
}

impl From<ConfineError> for std::io::Error {
    fn from(error: ConfineError) -> Self {
        Self::other(error)
    }
}

fn step<T, E: std::fmt::Display>(
    step: &'static str,
    result: Result<T, E>,
) -> Result<T, ConfineError> {
    result.map_err(|error| ConfineError {
        step,
        reason: error.to_string(),
    })
}

fn check(result: libc::c_long) -> std::io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
