//! A static program as the privileged side keeps it and starts it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

use rustix::fs::{MemfdFlags, SealFlags};

/// The program, in a sealed memory file: nobody can change it between writing and running.
#[derive(Debug)]
pub struct SealedProgram {
    image: OwnedFd,
}

impl SealedProgram {
    pub fn new(bytes: &[u8]) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(rustix::fs::memfd_create("cove-program", flags)?);
        file.write_all(bytes)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(Self { image: file.into() })
    }

    /// Runs the program with an empty environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.image.as_raw_fd()));
        command.env_clear();
        command
    }
}
