//! How many lines of the log never came out, of all processes of a server together.
//!
//! The numbers lie in a piece of memory that the supervisor makes and its children are handed, one place
//! for each process, so that they outlive restarts of the children and one process can show them all.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const NUMBER: usize = size_of::<u64>();
const PLACES: usize = 3;

/// Who writes to which place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Process {
    Supervisor = 0,
    Control = 1,
    Runner = 2,
}

/// The numbers, seen by one process.
#[derive(Debug)]
pub struct LostLines {
    file: File,
    process: Process,
    /// What was lost by those who had this place before.
    before: u64,
}

impl LostLines {
    /// The supervisor's.
    pub fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("cove-lost-lines", flags)?;
        ftruncate(&memory, (PLACES * NUMBER) as u64)?;
        // Nobody who is handed it can make it grow.
        let fixed = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&memory, fixed)?;
        Ok(Self::taken(memory, Process::Supervisor))
    }

    /// A child's, from what it was handed.
    pub fn taken(memory: OwnedFd, process: Process) -> Self {
        let file = File::from(memory);
        let before = read(&file, process as usize);
        Self {
            file,
            process,
            before,
        }
    }

    /// The same numbers, for another place.
    pub fn of(&self, process: Process) -> io::Result<Self> {
        Ok(Self::taken(self.file.try_clone()?.into(), process))
    }

    /// This process has lost so many by now.
    pub fn note(&self, lost: u64) {
        let number = self.before.saturating_add(lost).to_le_bytes();
        let at = (self.process as usize * NUMBER) as u64;
        // Memory of a fixed size; should it fail all the same, the log is not the place to say so.
        let _ = self.file.write_all_at(&number, at);
    }

    pub fn total(&self) -> u64 {
        let numbers = (0..PLACES).map(|place| read(&self.file, place));
        numbers.fold(0, u64::saturating_add)
    }
}

impl AsFd for LostLines {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn read(file: &File, place: usize) -> u64 {
    let mut number = [0; NUMBER];
    match file.read_exact_at(&mut number, (place * NUMBER) as u64) {
        Ok(()) => u64::from_le_bytes(number),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_add_up_over_processes_and_their_restarts() {
        let supervisor = LostLines::new().unwrap();
        supervisor.note(2);
        let control = supervisor.of(Process::Control).unwrap();
        control.note(5);
        control.note(7);
        let again = supervisor.of(Process::Control).unwrap();
        assert_eq!(again.total(), 9);
        again.note(1);
        supervisor.of(Process::Runner).unwrap().note(10);
        assert_eq!(supervisor.total(), 20);
    }

    #[test]
    fn nobody_makes_it_grow() {
        let lost = LostLines::new().unwrap();
        assert!(
            lost.file.write_all_at(&[1; 64], 0).is_err()
                || lost.file.metadata().unwrap().len() == 24
        );
        assert!(ftruncate(&lost, 4096).is_err());
        assert_eq!(lost.file.metadata().unwrap().len(), 24);
    }
}
