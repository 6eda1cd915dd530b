//! API keys: random tokens, shown once and kept as hashes.

use cove_model::{KeyId, OrgId};
use cove_store::{Key, Page, PageRequest, Scope};
use time::OffsetDateTime;

use crate::Control;
use crate::error::ControlError;
use crate::principal::{Origin, Principal};

/// The secret itself: `cove_` and 256 random bits. Shown to its owner once.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiToken(String);

/// SHA-256 of a token, in lowercase hexadecimal. Enough to recognise the token, no use to a thief.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenHash(String);

impl ApiToken {
    pub fn random() -> Self {
        todo!()
    }

    /// Whether `text` has the form of a token; `None` if not.
    pub fn parse(text: &str) -> Option<Self> {
        let _ = text;
        todo!()
    }

    /// The secret. Mind where it goes.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn hash(&self) -> TokenHash {
        todo!()
    }
}

impl TokenHash {
    pub fn parse(text: &str) -> Option<Self> {
        let _ = text;
        todo!()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiToken(…)")
    }
}

#[derive(Debug, Clone)]
pub struct CreateKey {
    pub name: String,
    pub scopes: Vec<Scope>,
    pub expires_at: Option<OffsetDateTime>,
    /// Another organisation's key; operators only. Absent: the caller's own.
    pub org: Option<OrgId>,
}

/// A key at the one moment its token is known.
#[derive(Debug, Clone)]
pub struct NewKey {
    pub token: ApiToken,
    pub key: Key,
}

impl Control {
    /// Makes the token with this hash the installation's root key (home organisation, admin).
    /// Repeating it changes nothing; another hash replaces the earlier root key.
    pub async fn bootstrap_root_key(&self, hash: &TokenHash) -> Result<Key, ControlError> {
        let _ = hash;
        todo!()
    }

    /// Who holds this token; counts against the key's rate limit.
    pub async fn authenticate(
        &self,
        token: &str,
        origin: Origin,
    ) -> Result<Principal, ControlError> {
        let _ = (token, origin);
        todo!()
    }

    /// Needs `admin`.
    pub async fn create_key(
        &self,
        principal: &Principal,
        request: CreateKey,
    ) -> Result<NewKey, ControlError> {
        let _ = (principal, request);
        todo!()
    }

    /// Needs `admin`.
    pub async fn list_keys(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<Key>, ControlError> {
        let _ = (principal, page);
        todo!()
    }

    /// Needs `admin`. At once and for good.
    pub async fn revoke_key(&self, principal: &Principal, id: &KeyId) -> Result<Key, ControlError> {
        let _ = (principal, id);
        todo!()
    }
}
