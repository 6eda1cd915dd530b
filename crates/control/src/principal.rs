//! Who is asking.

use cove_model::{KeyId, OrgId, SandboxId};
use cove_store::Scope;

use crate::error::{ControlError, ErrorCode};

/// Where a request came from; goes into audit records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The peer's address.
    pub source: Option<String>,
    pub request_id: Option<String>,
}

/// An authenticated caller and the request it makes. Made by [`crate::Control::authenticate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Principal {
    pub org: OrgId,
    /// Absent for the system itself.
    pub key: Option<KeyId>,
    pub scopes: Vec<Scope>,
    /// The caller's organisation is the one that runs the installation.
    pub home: bool,
    /// The only sandbox there is for this caller. [`crate::Control::authenticate`] refuses such callers; only what
    /// asks with [`crate::Control::authenticate_bound`] serves them.
    pub sandbox: Option<SandboxId>,
    pub origin: Origin,
}

impl Principal {
    pub fn allows(&self, needed: Scope) -> bool {
        self.scopes.iter().any(|held| *held >= needed)
    }

    /// Whether this sandbox exists for the caller, as far as its key goes.
    pub(crate) fn sees(&self, sandbox: &SandboxId) -> bool {
        self.sandbox.as_ref().is_none_or(|bound| bound == sandbox)
    }

    /// May act on the installation itself, not only on its own organisation.
    pub fn is_operator(&self) -> bool {
        self.home && self.allows(Scope::Admin)
    }

    pub(crate) fn require(&self, needed: Scope) -> Result<(), ControlError> {
        if self.allows(needed) {
            return Ok(());
        }
        Err(ControlError::new(
            ErrorCode::Forbidden,
            format!("this key lacks the scope '{needed}'"),
        )
        .hint("use a key with that scope; an admin key can make one"))
    }

    pub(crate) fn require_operator(&self) -> Result<(), ControlError> {
        self.require(Scope::Admin)?;
        if self.home {
            return Ok(());
        }
        Err(ControlError::new(
            ErrorCode::Forbidden,
            "only the organisation that runs this installation may do this",
        ))
    }
}
