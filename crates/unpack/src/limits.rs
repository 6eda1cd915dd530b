//! What an archive is, and how much it may ask for. The caller chooses; the confined program enforces.

use serde::{Deserialize, Serialize};

/// What is being unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A whole file system; file names have no special meaning.
    Tree,
    /// A layer over what the directory holds already: `.wh.` names delete.
    Layer,
}

/// Limits on one archive. Each is the largest value still accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnpackLimits {
    /// Bytes that come out of decompression, headers and padding included.
    pub total_bytes: u64,
    pub entries: u64,
    /// Length of one file; a sparse file counts in full.
    pub file_bytes: u64,
    /// Length of one path or link target. More than the kernel's 4095 cannot work.
    pub path_bytes: usize,
    /// Components of one path.
    pub depth: usize,
    /// All extended attributes of one entry, names and values together.
    pub xattr_bytes: usize,
    /// One PAX or GNU extension header.
    pub extension_bytes: usize,
    /// Data segments of one sparse file.
    pub sparse_segments: usize,
    /// Wall-clock time after which the program is killed.
    pub seconds: u64,
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self {
            total_bytes: 64 << 30,
            entries: 2_000_000,
            file_bytes: 32 << 30,
            path_bytes: 4095,
            depth: 256,
            xattr_bytes: 64 << 10,
            extension_bytes: 1 << 20,
            sparse_segments: 256 << 10,
            seconds: 3600,
        }
    }
}
