//! What the program is asked to do, and how it ends.

use std::path::PathBuf;

use cove_confine::cell::RootDirectory;
use serde::{Deserialize, Serialize};

/// The program's one argument, as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// The process that started the program.
    pub parent: u32,
    pub uid_base: u32,
    pub job: Job,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Job {
    /// These directories as one, the first above the others, to a tar stream.
    PackTree { layers: Vec<PathBuf>, gzip: bool },
    /// The working directory, a living one of the host's, to a tar stream.
    PackDirectory,
    /// The files of a memory image to packed records.
    PackMemory { directory: [PathBuf; 1] },
    /// Packed records to files in the working directory, of this many bytes together at most.
    UnpackMemory { most: u64 },
    /// A snapshot's manifest to [`crate::manifest::Manifest`].
    ReadManifest,
    /// A snapshot's end to [`crate::Signature`].
    ReadSignature,
    /// A log of CRIU's to [`crate::Finding`].
    ReadLog,
    /// The images in which a copy differs to [`crate::Replacement`]s.
    EditImages {
        directory: [PathBuf; 1],
        edits: Edits,
    },
}

impl Job {
    pub fn place(&self) -> RootDirectory<'_> {
        match self {
            Self::PackTree { layers, .. } => RootDirectory::Layers(layers),
            Self::PackMemory { directory } | Self::EditImages { directory, .. } => {
                RootDirectory::Layers(directory)
            }
            Self::PackDirectory => RootDirectory::HostDirectory,
            Self::UnpackMemory { .. } => RootDirectory::WorkingDirectory,
            Self::ReadManifest | Self::ReadSignature | Self::ReadLog => RootDirectory::Nothing,
        }
    }
}

/// In what a copy of captured processes differs from them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edits {
    /// Where its ids begin on the host.
    pub uid_base: u32,
    pub hostname: String,
    /// What each of its processes may have open.
    pub open_files: u64,
    /// What its shared segments may take together.
    pub segment_pages: u64,
    /// Mount points of volumes: nothing there may be open.
    #[serde(default)]
    pub volumes: Vec<String>,
}

/// How the program ends; the exit status is all that is believed of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Ending {
    /// What it was given to read makes no sense.
    Damaged = 10,
    /// It is larger than the job allows.
    TooLarge = 11,
    DiskFull = 12,
    /// A system call failed.
    Io = 13,
    /// It could not confine itself, or was called wrongly.
    Setup = 14,
    /// It got to its end, and some files changed or went away while they were packed.
    Changed = 15,
}

impl Ending {
    pub fn from_status(status: i32) -> Option<Self> {
        [
            Self::Damaged,
            Self::TooLarge,
            Self::DiskFull,
            Self::Io,
            Self::Setup,
            Self::Changed,
        ]
        .into_iter()
        .find(|ending| i32::from(*ending as u8) == status)
    }
}

/// Why a job failed, inside the program.
#[derive(Debug)]
pub struct Failed {
    pub ending: Ending,
    pub why: String,
}

impl Failed {
    pub fn damaged(why: impl Into<String>) -> Self {
        Self {
            ending: Ending::Damaged,
            why: why.into(),
        }
    }

    pub fn too_large(why: impl Into<String>) -> Self {
        Self {
            ending: Ending::TooLarge,
            why: why.into(),
        }
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        let ending = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Ending::DiskFull,
            // Not of a system call, so a decoder's.
            _ if error.raw_os_error().is_none() => Ending::Damaged,
            _ => Ending::Io,
        };
        Self {
            ending,
            why: error.to_string(),
        }
    }
}

impl From<rustix::io::Errno> for Failed {
    fn from(errno: rustix::io::Errno) -> Self {
        std::io::Error::from(errno).into()
    }
}
