//! Why a snapshot is there.

use serde::{Deserialize, Serialize};

/// Why a snapshot was taken. All but the first and the last come and go by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// A caller requested it.
    Manual,
    /// `auto_snapshot` took it.
    Auto,
    /// The common state of the copies of a fork.
    Fork,
    /// The state of a sandbox before a rollback.
    Rollback,
    /// It was imported from a file.
    Import,
    /// A step of a template's build. It goes when neither the cache of builds nor a template has it.
    Build,
}

impl SnapshotKind {
    pub const ALL: [SnapshotKind; 6] = [
        Self::Manual,
        Self::Auto,
        Self::Fork,
        Self::Rollback,
        Self::Import,
        Self::Build,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::Auto => "auto",
            Self::Fork => "fork",
            Self::Rollback => "rollback",
            Self::Import => "import",
            Self::Build => "build",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// Whether nobody asked for it by name, so that it may go without being asked.
    pub fn is_automatic(self) -> bool {
        matches!(self, Self::Auto | Self::Fork | Self::Rollback | Self::Build)
    }
}

/// Whether object storage has a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ObjectCopy {
    /// Only its host has it.
    #[default]
    None,
    /// It is being uploaded.
    Uploading,
    /// Object storage has all of it: it survives the loss of its host.
    Stored,
}

impl ObjectCopy {
    pub const ALL: [ObjectCopy; 3] = [Self::None, Self::Uploading, Self::Stored];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Uploading => "uploading",
            Self::Stored => "stored",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|copy| copy.as_str() == text)
    }
}
