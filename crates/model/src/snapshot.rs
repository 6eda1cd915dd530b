//! Why a snapshot is there.

use serde::{Deserialize, Serialize};

/// Why a snapshot was taken. All but the first and the last come and go by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// Somebody asked for it.
    Manual,
    /// `auto_snapshot` asked for it.
    Auto,
    /// What the children of a fork began from.
    Fork,
    /// What a sandbox was before a rollback.
    Rollback,
    /// It came in a file from somewhere else.
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
    /// It is on its host alone.
    #[default]
    None,
    /// It is asked for and on its way.
    Uploading,
    /// All of it is there: the loss of its host does not lose it.
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
