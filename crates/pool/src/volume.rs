//! The names and descriptions of volumes: plain data, no I/O.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::PoolError;

/// The longest name a volume may have, in bytes.
pub const MAX_NAME_LEN: usize = 80;

/// What a volume is for; it decides the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Image,
    Sandbox,
    Snapshot,
    /// A directory that outlives sandboxes, mounted in any number of them.
    Volume,
    /// Being filled by the caller; [`Pool::sweep`](crate::Pool::sweep) always removes these.
    Staging,
}

impl Kind {
    pub const ALL: [Kind; 5] = [
        Kind::Image,
        Kind::Sandbox,
        Kind::Snapshot,
        Kind::Volume,
        Kind::Staging,
    ];

    pub fn folder(self) -> &'static str {
        match self {
            Kind::Image => "images",
            Kind::Sandbox => "sandboxes",
            Kind::Snapshot => "snapshots",
            Kind::Volume => "volumes",
            Kind::Staging => "staging",
        }
    }

    pub(crate) fn from_folder(folder: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.folder() == folder)
    }
}

/// A volume's kind and name. The name is `[a-z0-9_.-]{1,80}` without a leading dot, so it is always
/// one harmless path component.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId {
    kind: Kind,
    name: String,
}

impl VolumeId {
    pub fn new(kind: Kind, name: impl Into<String>) -> Result<VolumeId, PoolError> {
        let name = name.into();
        let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-');
        let well_formed = !name.is_empty()
            && name.len() <= MAX_NAME_LEN
            && !name.starts_with('.')
            && name.bytes().all(allowed);
        if well_formed {
            Ok(VolumeId { kind, name })
        } else {
            Err(PoolError::InvalidName { name })
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn folder_in(&self, root: &Path) -> PathBuf {
        root.join(self.kind.folder())
    }

    pub(crate) fn path_in(&self, root: &Path) -> PathBuf {
        self.folder_in(root).join(&self.name)
    }
}

/// `<folder>/<name>`, the path of the volume below the pool's root.
impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.folder(), self.name)
    }
}

/// Whether a new snapshot may be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    Writable,
}

/// One row of [`Pool::list`](crate::Pool::list).
#[derive(Debug, Clone)]
pub struct VolumeInfo {
    pub id: VolumeId,
    pub created: SystemTime,
    pub read_only: bool,
    /// Present where it costs no walk over the files: on btrfs with simple quotas.
    pub usage: Option<Usage>,
}

/// What a volume costs.
///
/// With btrfs simple quotas (every loop-backed pool) both figures are what the kernel *charges* the
/// volume: the bytes of every extent and metadata block that this volume allocated itself and that
/// anybody still uses. Three consequences:
///
/// * A fresh snapshot costs next to nothing, however much it shows: inherited data stays charged to
///   the volume that wrote it. [`Pool::measure`](crate::Pool::measure) counts what a volume shows.
/// * Data that a volume deleted stays charged to it while one of its snapshots holds it, and counts
///   against its limit.
/// * Data whose writer was deleted is charged to nobody that is listed.
///
/// Bytes still waiting in memory to be written are included, those of the last moments of deletion
/// may be too: freeing happens at the next transaction, [`Pool::sync`](crate::Pool::sync) hurries it.
///
/// Without simple quotas (directories, or a host btrfs without them) both figures are the disk
/// blocks under the volume, counted by walking it, hard links once, shared extents in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub referenced_bytes: u64,
    pub exclusive_bytes: u64,
    pub limit_bytes: Option<u64>,
}

/// Whom the kernel charges for what a volume wrote. It outlives the volume, as long as anybody holds what
/// was written, and is never given to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Account(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_folder_or_hide_are_refused() {
        let too_long = "a".repeat(MAX_NAME_LEN + 1);
        for bad in [
            "", ".", "..", ".hidden", "a/b", "A", "a b", "é", "a\0b", "a\n", &too_long,
        ] {
            let refused = VolumeId::new(Kind::Image, bad);
            assert!(matches!(refused, Err(PoolError::InvalidName { name }) if name == bad));
        }
    }

    #[test]
    fn names_of_the_documented_alphabet_are_accepted_up_to_the_limit() {
        let longest = "z".repeat(MAX_NAME_LEN);
        for good in ["a", "sbx_01-x.y", "-", "_", "9..9", &longest] {
            let id = VolumeId::new(Kind::Sandbox, good).expect("within the alphabet");
            assert_eq!(id.to_string(), format!("sandboxes/{good}"));
        }
    }
}
