//! Tokens that open one sandbox and nothing else, for programs that are not handed a key.
//!
//! A token is signed for one purpose, one sandbox and the key its maker held, and good as long as both
//! are there: revoking the key ends it at once, and its use counts against the key's rate limit.
//! Nothing is kept, so any number of tokens cost nothing and a restart loses none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cove_model::{KeyId, OrgId, SandboxId};
use cove_store::{Key, PageRequest, SandboxRecord, Scope};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::principal::{Origin, Principal};

/// The purpose of tokens that let their holder visit every port of a sandbox.
pub const PORT_VISITS: &str = "port-visits";
/// Longer texts are no tokens.
const TOKEN_MAX: usize = 192;
/// Rows asked for at once.
const PAGE: u32 = 1000;
/// Tokens compared in one search.
const CANDIDATES_MAX: usize = 200_000;
/// How long a search waits for the one before it: strangers can ask for them.
const SEARCH_WAIT: Duration = Duration::from_secs(10);

/// A token that might have been what somebody signed with.
#[derive(Clone)]
struct Candidate {
    sandbox: SandboxId,
    token: String,
}

/// What the last search looked through. One search at a time.
#[derive(Default)]
pub(crate) struct Searches(Mutex<Arc<Vec<Candidate>>>);

fn subject(id: &SandboxId, key: &KeyId) -> String {
    format!("{id}:{key}")
}

fn not_valid() -> ControlError {
    ControlError::new(
        ErrorCode::Unauthenticated,
        "the access token is not valid for this sandbox",
    )
    .hint("connect to the sandbox again with an API key")
}

impl Control {
    /// Needs `use`. The token for a purpose; the same each time.
    pub fn access_token(
        &self,
        principal: &Principal,
        id: &SandboxId,
        purpose: &'static str,
    ) -> Result<String, ControlError> {
        principal.require(Scope::Use)?;
        let key = principal
            .key
            .as_ref()
            .ok_or_else(|| ControlError::internal("only the holder of a key is given a token"))?;
        Ok(self.token(id, key, purpose))
    }

    fn token(&self, id: &SandboxId, key: &KeyId, purpose: &str) -> String {
        let tag = self.config().link_key.mark(purpose, &subject(id, key));
        format!("{key}.{tag}")
    }

    /// Who holds this token. May `use` that sandbox, and must not be asked about another.
    pub async fn token_holder(
        &self,
        id: &SandboxId,
        token: &str,
        purpose: &'static str,
        origin: Origin,
    ) -> Result<Principal, ControlError> {
        let (key, tag) = token
            .split_once('.')
            .filter(|_| token.len() <= TOKEN_MAX)
            .ok_or_else(not_valid)?;
        let key: KeyId = key.parse().map_err(|_| not_valid())?;
        let link_key = &self.config().link_key;
        if !link_key.is_mark(purpose, &subject(id, &key), tag) {
            return Err(not_valid());
        }
        // From here on the token is known to be ours: what is told is told to its owner.
        let record = self.store().any_sandbox(id).await?;
        let record = record
            .filter(|record| record.deleted_at.is_none())
            .ok_or_else(|| ControlError::not_found("sandbox", id.as_str()))?;
        let key = self.key_by_id(&record.org, &key).await?;
        let key = key.ok_or_else(not_valid)?;
        let mut principal = self.admit(key, origin)?;
        principal.require(Scope::Use)?;
        principal.scopes = vec![Scope::Use];
        principal.home = false;
        Ok(principal)
    }

    /// The sandbox and token that `fits`, for what names neither but was made with a token. `fits` must
    /// be cheap: it is asked for every sandbox and key there is.
    pub async fn token_that(
        &self,
        purpose: &'static str,
        fits: impl Fn(&str) -> bool,
    ) -> Result<Option<(SandboxId, String)>, ControlError> {
        let searching = self.0.searches.0.lock();
        let mut last = timeout(SEARCH_WAIT, searching).await.map_err(|_| {
            ControlError::new(ErrorCode::RateLimited, "too many links are looked up")
                .retry_after(SEARCH_WAIT.as_secs())
        })?;
        let find = |among: &[Candidate]| {
            let found = among.iter().find(|candidate| fits(&candidate.token));
            found.map(|found| (found.sandbox.clone(), found.token.clone()))
        };
        if let Some(found) = find(&last) {
            return Ok(Some(found));
        }
        *last = Arc::new(self.candidates(purpose).await?);
        Ok(find(&last))
    }

    async fn candidates(&self, purpose: &str) -> Result<Vec<Candidate>, ControlError> {
        let mut keys: HashMap<OrgId, Vec<Key>> = HashMap::new();
        let mut found = Vec::new();
        let mut page = PageRequest {
            limit: PAGE,
            cursor: None,
        };
        loop {
            let rows = self.store().all_sandboxes(&page).await?;
            for row in rows.items {
                if row.deleted_at.is_some() {
                    continue;
                }
                if !keys.contains_key(&row.org) {
                    let all = self.usable_keys(&row.org).await?;
                    keys.insert(row.org.clone(), all);
                }
                self.candidates_of(&row, &keys[&row.org], purpose, &mut found);
            }
            page.cursor = rows.next_cursor;
            if page.cursor.is_none() || found.len() >= CANDIDATES_MAX {
                return Ok(found);
            }
        }
    }

    fn candidates_of(
        &self,
        row: &SandboxRecord,
        keys: &[Key],
        purpose: &str,
        found: &mut Vec<Candidate>,
    ) {
        found.extend(keys.iter().map(|key| Candidate {
            sandbox: row.id.clone(),
            token: self.token(&row.id, &key.id, purpose),
        }));
    }

    async fn usable_keys(&self, org: &OrgId) -> Result<Vec<Key>, ControlError> {
        let mut all = Vec::new();
        let mut page = PageRequest {
            limit: PAGE,
            cursor: None,
        };
        loop {
            let rows = self.store().keys(org, &page).await?;
            let live = rows.items.into_iter().filter(|key| {
                key.revoked_at.is_none() && key.scopes.iter().any(|scope| *scope >= Scope::Use)
            });
            all.extend(live);
            page.cursor = rows.next_cursor;
            if page.cursor.is_none() {
                return Ok(all);
            }
        }
    }

    /// A key that is not revoked, remembered for a moment.
    async fn key_by_id(&self, org: &OrgId, id: &KeyId) -> Result<Option<Key>, ControlError> {
        let now = self.steady();
        let epoch = match self.0.keyring.recall_id(id, now) {
            Ok(key) => return Ok(Some(key).filter(|key| key.org == *org)),
            Err(epoch) => epoch,
        };
        let all = self.usable_keys(org).await?;
        let found = all.into_iter().find(|key| key.id == *id);
        if let Some(key) = &found {
            self.0.keyring.remember_id(key.clone(), now, epoch);
        }
        Ok(found)
    }
}
