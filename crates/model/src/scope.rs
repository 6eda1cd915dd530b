//! What a key may do.

use serde::{Deserialize, Serialize};

/// What a key may do. Each scope includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// View sandboxes, their state, events and metrics, images and usage. Nothing inside a sandbox.
    Read,
    /// Work in existing sandboxes: commands, files, ports; start stopped ones.
    Use,
    /// Create, change, stop and delete sandboxes; fetch images.
    Manage,
    /// Keys and audit records. In the default organisation also the installation: organisations,
    /// quotas, shared images, the host.
    Admin,
}

impl Scope {
    pub const ALL: [Scope; 4] = [Scope::Read, Scope::Use, Scope::Manage, Scope::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Use => "use",
            Self::Manage => "manage",
            Self::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
