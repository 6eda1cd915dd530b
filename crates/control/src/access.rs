//! Tokens that open one sandbox or one volume and nothing else, for programs that are not handed a key.
//!
//! A token is signed for one purpose, one sandbox or volume and the key its maker held, and good as long as both
//! are there: revoking the key ends it at once, and its use counts against the key's rate limit.
//! Nothing is kept, so any number of tokens cost nothing and a restart loses none.

use async_recursion::async_recursion as boxed;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_model::{KeyId, OrgId, RateLimit, SandboxId, Steady, TokenBucket, VolumeId};
use cove_store::{Key, PageRequest, SandboxRecord, Scope};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::principal::{Origin, Principal};
use crate::shares::source;

/// The purpose of tokens that let their holder visit every port of a sandbox.
pub const PORT_VISITS: &str = "port-visits";
/// The purpose of tokens that open the files of a volume.
const VOLUME_FILES: &str = "volume-files";
/// Longer texts are no tokens.
const TOKEN_MAX: usize = 192;
/// Rows asked for at once.
const PAGE: u32 = 1000;
/// Tokens compared in one search.
const CANDIDATES_MAX: usize = 200_000;
/// How long a search waits for the one before it: callers without a key can ask for them.
const SEARCH_WAIT: Duration = Duration::from_secs(10);
/// Candidates compared before others get a turn.
const COMPARED_AT_ONCE: usize = 1024;
/// How old what a search looks through may be. Those in between read nothing from the store.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// What was found or given away is remembered, so that it is not searched for in the store.
const FOUND_MAX: usize = 4096;
/// Searches that one address may ask for.
const SEARCH_RATE: RateLimit = RateLimit {
    per_second: 2.0,
    burst: 20.0,
};
/// Addresses remembered; those of unknown senders, so their number must be bounded.
const ADDRESSES_MAX: usize = 10_000;

/// A token that might have been what somebody signed with.
#[derive(Clone)]
struct Candidate {
    sandbox: SandboxId,
    token: String,
}

/// What the last search looked through, and when that was read.
#[derive(Default)]
struct Looked {
    candidates: Arc<Vec<Candidate>>,
    at: Option<Instant>,
}

/// Searches for what names no sandbox. One at a time.
#[derive(Default)]
pub(crate) struct Searches {
    looked: tokio::sync::Mutex<Looked>,
    found: Mutex<HashMap<Vec<u8>, Candidate>>,
    /// Tokens given away since this started: a sandbox that was just made is found among them.
    given: Mutex<HashMap<String, (&'static str, SandboxId)>>,
    askers: Mutex<HashMap<IpAddr, TokenBucket<Steady>>>,
}

impl Searches {
    /// What is remembered, and who asked.
    pub(crate) fn len(&self) -> usize {
        self.found.lock().len() + self.given.lock().len() + self.askers.lock().len()
    }

    /// Whether whoever is there may have another search.
    fn may_ask(&self, origin: &Origin, now: Steady) -> bool {
        let address = origin.source.as_deref().and_then(|text| text.parse().ok());
        let Some(address) = address else {
            return true;
        };
        let mut askers = self.askers.lock();
        if askers.len() >= ADDRESSES_MAX {
            askers.retain(|_, bucket| !bucket.is_full(now));
        }
        // More addresses than are remembered: begin anew rather than grow.
        if askers.len() >= ADDRESSES_MAX {
            askers.clear();
        }
        let bucket = askers.entry(source(address));
        let bucket = bucket.or_insert_with(|| TokenBucket::full(SEARCH_RATE, now));
        bucket.take(1, now).is_ok()
    }

    fn give(&self, purpose: &'static str, token: &str, sandbox: &SandboxId) {
        let mut given = self.given.lock();
        if given.len() >= FOUND_MAX {
            given.clear();
        }
        given.insert(token.to_owned(), (purpose, sandbox.clone()));
    }

    fn given(&self, purpose: &str, fits: &impl Fn(&str) -> bool) -> Option<Candidate> {
        let given = self.given.lock();
        let mut meant = given.iter().filter(|(_, (of, _))| *of == purpose);
        let (token, (_, sandbox)) = meant.find(|(token, _)| fits(token))?;
        Some(Candidate {
            sandbox: sandbox.clone(),
            token: token.clone(),
        })
    }

    fn remember(&self, mark: &[u8], candidate: Candidate) {
        let mut found = self.found.lock();
        if found.len() >= FOUND_MAX {
            found.clear();
        }
        found.insert(mark.to_vec(), candidate);
    }
}

async fn compare(among: &[Candidate], fits: &(impl Fn(&str) -> bool + Sync)) -> Option<Candidate> {
    for some in among.chunks(COMPARED_AT_ONCE) {
        if let Some(found) = some.iter().find(|candidate| fits(&candidate.token)) {
            return Some(found.clone());
        }
        tokio::task::yield_now().await;
    }
    None
}

fn subject(id: &dyn std::fmt::Display, key: &KeyId) -> String {
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
            .ok_or_else(|| ControlError::internal("only API keys can request a token"))?;
        let token = self.token(id, key, purpose);
        self.0.callers.searches.give(purpose, &token, id);
        Ok(token)
    }

    fn token(&self, id: &SandboxId, key: &KeyId, purpose: &str) -> String {
        let tag = self.config().link_key.mark(purpose, &subject(id, key));
        format!("{key}.{tag}")
    }

    /// Who holds this token. May `use` that sandbox, and must not be asked about another.
    #[boxed]
    pub async fn token_holder(
        &self,
        id: &SandboxId,
        token: &str,
        purpose: &'static str,
        origin: Origin,
    ) -> Result<Principal, ControlError> {
        let key = self.signer(id, token, purpose)?;
        // From here on the token is known to be ours: what is answered goes to its owner.
        let record = self.store().any_sandbox(id).await?;
        let record = record
            .filter(|record| record.deleted_at.is_none())
            .ok_or_else(|| ControlError::not_found("sandbox", id.as_str()))?;
        self.stand_in(&record.org, &key, origin).await
    }

    /// The key that a token was made with, if it was signed for exactly this.
    fn signer(
        &self,
        id: &dyn std::fmt::Display,
        token: &str,
        purpose: &str,
    ) -> Result<KeyId, ControlError> {
        let (key, tag) = token
            .split_once('.')
            .filter(|_| token.len() <= TOKEN_MAX)
            .ok_or_else(not_valid)?;
        let key: KeyId = key.parse().map_err(|_| not_valid())?;
        let link_key = &self.config().link_key;
        match link_key.is_mark(purpose, &subject(id, &key), tag) {
            true => Ok(key),
            false => Err(not_valid()),
        }
    }

    /// The holder of a token of that key, which may do less than the key.
    async fn stand_in(
        &self,
        org: &OrgId,
        key: &KeyId,
        origin: Origin,
    ) -> Result<Principal, ControlError> {
        let key = self.key_by_id(org, key).await?;
        let mut principal = self.admit(key.ok_or_else(not_valid)?, origin)?;
        principal.require(Scope::Use)?;
        principal.scopes = vec![Scope::Use];
        principal.home = false;
        Ok(principal)
    }

    /// Needs `use`. The token that opens the files of a volume of the caller's; the same each time.
    pub fn volume_token(
        &self,
        principal: &Principal,
        id: &VolumeId,
    ) -> Result<String, ControlError> {
        principal.require(Scope::Use)?;
        let key = principal
            .key
            .as_ref()
            .ok_or_else(|| ControlError::internal("only API keys can request a token"))?;
        let tag = self.config().link_key.mark(VOLUME_FILES, &subject(id, key));
        Ok(format!("{key}.{tag}"))
    }

    /// Who holds this token. May `use` the files of that volume, and must not be asked about anything else.
    #[boxed]
    pub async fn volume_token_holder(
        &self,
        id: &VolumeId,
        token: &str,
        origin: Origin,
    ) -> Result<Principal, ControlError> {
        let key = self.signer(id, token, VOLUME_FILES)?;
        let record = self.store().any_volume(id).await?;
        let record = record
            .filter(|record| record.deleted_at.is_none())
            .ok_or_else(|| ControlError::not_found("volume", id.as_str()))?;
        self.stand_in(&record.org, &key, origin).await
    }

    /// Whether a caller may do something at all and its sandbox is there, before more is read of the request.
    #[boxed]
    pub async fn expect(
        &self,
        principal: &Principal,
        needed: Scope,
        sandbox: Option<&str>,
    ) -> Result<(), ControlError> {
        principal.require(needed)?;
        if let Some(which) = sandbox {
            self.find(principal, which).await?;
        }
        Ok(())
    }

    /// A label of a sandbox, for what was signed along with it. Whoever asks is not known yet, and must not be told.
    pub async fn signed_label(
        &self,
        id: &SandboxId,
        label: &str,
    ) -> Result<Option<String>, ControlError> {
        let row = self.store().any_sandbox(id).await?;
        Ok(row.and_then(|mut row| row.spec.labels.remove(label)))
    }

    /// The token of this sandbox that `fits`, for what was made with a token. Looks at the keys of one
    /// organisation.
    pub async fn token_at(
        &self,
        id: &SandboxId,
        purpose: &'static str,
        fits: impl Fn(&str) -> bool,
    ) -> Result<Option<String>, ControlError> {
        let Some(row) = self.store().any_sandbox(id).await? else {
            return Ok(None);
        };
        if row.deleted_at.is_some() {
            return Ok(None);
        }
        let keys = self.usable_keys(&row.org).await?;
        let tokens = keys.iter().map(|key| self.token(id, &key.id, purpose));
        Ok(tokens.into_iter().find(|token| fits(token)))
    }

    /// The sandbox and token that `fits`, for what names neither but was made with a token; `mark` is what
    /// is distinguished by. `fits` must be cheap: the first time it is asked for every sandbox and key there
    /// is, and after that for the one that was found.
    pub async fn token_that(
        &self,
        purpose: &'static str,
        mark: &[u8],
        origin: &Origin,
        fits: impl Fn(&str) -> bool + Sync,
    ) -> Result<Option<(SandboxId, String)>, ControlError> {
        let searches = &self.0.callers.searches;
        let known = searches.found.lock().get(mark).cloned();
        if let Some(known) = known.filter(|known| fits(&known.token)) {
            return Ok(Some((known.sandbox, known.token)));
        }
        let refused = || {
            ControlError::new(
                ErrorCode::RateLimited,
                "too many link lookups are under way",
            )
            .retry_after(SEARCH_WAIT.as_secs())
            .hint("name the sandbox in the link: add &sandbox=ID")
        };
        if !searches.may_ask(origin, self.steady()) {
            return Err(refused());
        }
        if let Some(found) = searches.given(purpose, &fits) {
            searches.remember(mark, found.clone());
            return Ok(Some((found.sandbox, found.token)));
        }
        let looked = timeout(SEARCH_WAIT, searches.looked.lock()).await;
        let mut looked = looked.map_err(|_| refused())?;
        let mut found = compare(&looked.candidates, &fits).await;
        if found.is_none() && looked.at.is_none_or(|at| at.elapsed() >= LOOK_AGAIN) {
            looked.candidates = Arc::new(self.candidates(purpose).await?);
            looked.at = Some(Instant::now());
            found = compare(&looked.candidates, &fits).await;
        }
        drop(looked);
        Ok(found.map(|found| {
            searches.remember(mark, found.clone());
            (found.sandbox, found.token)
        }))
    }

    async fn candidates(&self, purpose: &str) -> Result<Vec<Candidate>, ControlError> {
        let mut keys: HashMap<OrgId, Vec<Key>> = HashMap::new();
        let mut found = Vec::new();
        for host in self.hosts().iter() {
            let mut page = PageRequest {
                limit: PAGE,
                cursor: None,
            };
            loop {
                let rows = self.store().sandboxes_on(&host.id, &page).await?;
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
                if found.len() >= CANDIDATES_MAX {
                    return Ok(found);
                }
                page.cursor = rows.next_cursor;
                if page.cursor.is_none() {
                    break;
                }
            }
        }
        Ok(found)
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
    pub(crate) async fn key_by_id(
        &self,
        org: &OrgId,
        id: &KeyId,
    ) -> Result<Option<Key>, ControlError> {
        let now = self.steady();
        let epoch = match self.0.callers.keyring.recall_id(id, now) {
            Ok(key) => return Ok(Some(key).filter(|key| key.org == *org)),
            Err(epoch) => epoch,
        };
        let all = self.usable_keys(org).await?;
        let found = all.into_iter().find(|key| key.id == *id);
        if let Some(key) = &found {
            self.0.callers.keyring.remember_id(key.clone(), now, epoch);
        }
        Ok(found)
    }
}
