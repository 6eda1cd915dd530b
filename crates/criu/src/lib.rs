//! CRIU, the program that captures and restores the processes of a sandbox, as Cove uses it.
//!
//! Found by [`Program`], started by the spawner with one end of a socket, spoken to by [`Session`].
//! Its images and its logs hold what guests made; they are read by `cove-parser`, never here.
#![forbid(unsafe_code)]

pub mod message;
mod program;
mod session;

/// A library to preload into CRIU; it makes a few calls as the uid in `COVE_OWNER`. The program must
/// be able to keep its capabilities across that.
pub const OWNER_LIBRARY: &[u8] = include_bytes!(env!("COVE_CRIU_OWNER"));

pub use program::{DEFAULT_PROGRAM, Program, ProgramError, Version};
pub use session::{Moment, Session, SessionError};
