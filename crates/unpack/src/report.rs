//! What the confined program tells its parent, one [`frame`] after the other on standard output.
//!
//! The parent treats these frames as hostile, since a program that parses hostile bytes may have
//! been taken over: they are small, their number is bounded, and nothing in them is believed
//! beyond what the parent could not check itself.

pub mod frame;

use cove_confine::ConfineError;

/// Warnings sent one by one; what comes after is only counted.
pub const MAX_WARNINGS: u64 = 32;
/// Longest archive path repeated in a message.
const MAX_SHOWN_PATH: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    Progress {
        bytes: u64,
        entries: u64,
    },
    Warning {
        warning: Warning,
    },
    Done {
        bytes: u64,
        entries: u64,
        /// SHA-256 of the uncompressed archive, when it was asked for.
        digest: Option<[u8; 32]>,
        warnings: u64,
    },
    Failed {
        failure: Failure,
    },
}

/// Something in the archive that was left out or looked odd, while the rest is fine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    SpecialFileSkipped { path: String },
    UnknownEntrySkipped { path: String, type_flag: u8 },
    XattrSkipped { path: String, name: String },
    OwnerReplaced { path: String, id: u64 },
    WhiteoutIgnored { path: String },
    NoEndOfArchive,
    TrailingData,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SpecialFileSkipped { path } => {
                write!(f, "left out {path}: a device, pipe or socket")
            }
            Self::UnknownEntrySkipped { path, type_flag } => {
                write!(f, "left out {path}: unknown entry type {type_flag:#04x}")
            }
            Self::XattrSkipped { path, name } => {
                write!(f, "left out the extended attribute {name} of {path}")
            }
            Self::OwnerReplaced { path, id } => write!(
                f,
                "gave {path} to nobody: its owner {id} is beyond the ids 0 to 65535 of a sandbox"
            ),
            Self::WhiteoutIgnored { path } => write!(f, "ignored the whiteout {path}"),
            Self::NoEndOfArchive => write!(f, "the archive has no end marker"),
            Self::TrailingData => write!(f, "ignored data after the end of the archive"),
        }
    }
}

/// Why an archive was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the compressed data is corrupt: {reason}")]
    Corrupt { reason: String },
    #[error("the archive ends in the middle of an entry")]
    Truncated,
    #[error(
        "the archive is packed with {packing}; pack it with gzip or zstd, or leave it as plain tar"
    )]
    UnknownPacking { packing: String },
    #[error("not a tar archive (plain, gzip or zstd), or a damaged one: {reason}")]
    BadHeader { reason: String },
    #[error("the path {path} leaves the root or cannot be a file name")]
    UnsafePath { path: String },
    #[error("the link {path} has an unusable target {target}")]
    UnsafeLink { path: String, target: String },
    #[error("the hard link {path} points to {target}, which does not exist")]
    LinkTargetMissing { path: String, target: String },
    #[error("{what} of the archive exceeds the limit of {limit}")]
    LimitExceeded { what: Limit, limit: u64 },
    #[error("{path} lies below something that is not a directory")]
    NotADirectory { path: String },
    #[error("the disk is full")]
    DiskFull,
    #[error("{operation} of {path} failed: {reason}")]
    Io {
        operation: String,
        path: String,
        reason: String,
    },
    #[error("could not confine itself: {step}: {reason}")]
    Confine { step: String, reason: String },
    #[error("the program was called wrongly: {reason}")]
    Usage { reason: String },
}

/// Which limit was hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    TotalBytes,
    Entries,
    FileBytes,
    PathBytes,
    Depth,
    XattrBytes,
    ExtensionBytes,
    SparseSegments,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TotalBytes => "the unpacked size",
            Self::Entries => "the number of entries",
            Self::FileBytes => "the size of one file",
            Self::PathBytes => "the length of a path",
            Self::Depth => "the depth of a path",
            Self::XattrBytes => "the size of extended attributes",
            Self::ExtensionBytes => "the size of an extension header",
            Self::SparseSegments => "the number of sparse segments",
        })
    }
}

impl From<ConfineError> for Failure {
    fn from(ConfineError { step, reason }: ConfineError) -> Self {
        let step = step.to_owned();
        Self::Confine { step, reason }
    }
}

#[cfg(feature = "program")]
impl Failure {
    pub(crate) fn limit(what: Limit, limit: u64) -> Self {
        Self::LimitExceeded { what, limit }
    }
}

/// An archive path as it may be shown: valid UTF-8, no control characters, bounded.
pub fn show(path: &[u8]) -> String {
    let mut shown = String::new();
    for c in String::from_utf8_lossy(path).chars() {
        if shown.len() >= MAX_SHOWN_PATH {
            shown.push('…');
            break;
        }
        if c.is_control() {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}
