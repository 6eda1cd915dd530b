//! API keys: random tokens, shown once and kept as hashes.
//!
//! A token has 256 random bits, so a plain SHA-256 is enough and a lookup by hash tells a guesser
//! nothing. Looked-up keys are remembered for a moment; a revocation in this process is immediate,
//! in another one it takes [`REMEMBERED`].

use async_recursion::async_recursion as boxed;
use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use cove_model::{KeyId, OrgId, RateLimit, SandboxId, Steady, TokenBucket};
use cove_store::{Key, Moment, Page, PageRequest, SandboxRef, Scope};
use rand::TryRngCore;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use crate::Control;
use crate::admission::Taken;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::{Origin, Principal};
use cove_limits::TITLE_MAX;

const PREFIX: &str = "cove_";
const RANDOM_BYTES: usize = 32;
/// How long a key is believed without asking the store again.
const REMEMBERED: Duration = Duration::from_secs(5);
/// Keys remembered at once; beyond that all are looked up again.
const REMEMBERED_MAX: usize = 10_000;
/// Buckets kept before full ones are thrown out.
const BUCKETS_MAX: usize = 10_000;

/// The secret itself: `cove_` and 256 random bits. Shown to its owner once.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiToken(String);

/// SHA-256 of a token, in lowercase hexadecimal. Enough to recognise the token, no use to a thief.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenHash(String);

fn is_hexadecimal(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

impl ApiToken {
    pub fn random() -> Self {
        let mut bytes = [0; RANDOM_BYTES];
        rand::rngs::OsRng
            .try_fill_bytes(&mut bytes)
            .expect("the kernel's random numbers are always there once it has booted");
        Self(format!("{PREFIX}{}", hex::encode(bytes)))
    }

    /// Whether `text` has the form of a token; `None` if not.
    pub fn parse(text: &str) -> Option<Self> {
        let random = text.strip_prefix(PREFIX)?;
        is_hexadecimal(random, 2 * RANDOM_BYTES).then(|| Self(text.to_owned()))
    }

    /// The secret. Mind where it goes.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn hash(&self) -> TokenHash {
        TokenHash(hex::encode(Sha256::digest(self.0.as_bytes())))
    }
}

impl TokenHash {
    pub fn parse(text: &str) -> Option<Self> {
        is_hexadecimal(text, 64).then(|| Self(text.to_owned()))
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
    /// The only sandbox it is good for, by id or name.
    pub sandbox: Option<String>,
}

/// A key at the one moment its token is known.
#[derive(Debug, Clone)]
pub struct NewKey {
    pub token: ApiToken,
    pub key: Key,
}

/// What this process knows about keys between requests.
#[derive(Default)]
pub(crate) struct Keyring(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    known: HashMap<TokenHash, (Key, Steady)>,
    by_id: HashMap<KeyId, (Key, Steady)>,
    /// Counts revocations, so that a look-up that began before one is not remembered after it.
    epoch: u64,
    buckets: HashMap<KeyId, TokenBucket<Steady>>,
    used: HashMap<KeyId, OffsetDateTime>,
}

impl Keyring {
    fn ring(&self) -> parking_lot::MutexGuard<'_, Ring> {
        self.0.lock()
    }

    pub fn len(&self) -> usize {
        let ring = self.ring();
        ring.known.len() + ring.by_id.len() + ring.buckets.len() + ring.used.len()
    }

    fn recall(&self, hash: &TokenHash, now: Steady) -> Result<Key, u64> {
        let ring = self.ring();
        match ring.known.get(hash) {
            Some((key, since)) if now.since(*since) < REMEMBERED => Ok(key.clone()),
            _ => Err(ring.epoch),
        }
    }

    fn remember(&self, hash: TokenHash, key: Key, now: Steady, epoch: u64) {
        let mut ring = self.ring();
        if ring.epoch != epoch {
            return;
        }
        if ring.known.len() >= REMEMBERED_MAX {
            ring.known.clear();
        }
        ring.known.insert(hash, (key, now));
    }

    pub fn recall_id(&self, id: &KeyId, now: Steady) -> Result<Key, u64> {
        let ring = self.ring();
        match ring.by_id.get(id) {
            Some((key, since)) if now.since(*since) < REMEMBERED => Ok(key.clone()),
            _ => Err(ring.epoch),
        }
    }

    pub fn remember_id(&self, key: Key, now: Steady, epoch: u64) {
        let mut ring = self.ring();
        if ring.epoch != epoch {
            return;
        }
        if ring.by_id.len() >= REMEMBERED_MAX {
            ring.by_id.clear();
        }
        ring.by_id.insert(key.id.clone(), (key, now));
    }

    pub fn forget_all(&self) {
        let mut ring = self.ring();
        ring.known.clear();
        ring.by_id.clear();
        ring.epoch += 1;
    }

    fn take(&self, id: &KeyId, limit: RateLimit, moment: Moment) -> Result<(), Duration> {
        let mut ring = self.ring();
        let now = moment.steady;
        ring.used.insert(id.clone(), moment.at);
        // The setting for no limit.
        if limit.per_second <= 0.0 {
            return Ok(());
        }
        if ring.buckets.len() >= BUCKETS_MAX && !ring.buckets.contains_key(id) {
            ring.buckets.retain(|_, bucket| !bucket.is_full(now));
        }
        let bucket = ring.buckets.entry(id.clone());
        bucket
            .or_insert_with(|| TokenBucket::full(limit, now))
            .take(1, now)
    }

    /// Keys used since the last call.
    pub fn take_used(&self) -> Vec<(KeyId, OffsetDateTime)> {
        std::mem::take(&mut self.ring().used).into_iter().collect()
    }
}

fn not_valid() -> ControlError {
    ControlError::new(ErrorCode::Unauthenticated, "the API key is not valid")
        .hint("pass a key that exists, has not expired and was not revoked")
}

impl Control {
    /// Makes the token with this hash the installation's root key (home organisation, admin).
    /// Repeating it changes nothing; another hash replaces the earlier root key.
    #[boxed]
    pub async fn bootstrap_root_key(&self, hash: &TokenHash) -> Result<Key, ControlError> {
        let key = Key {
            id: KeyId::random(),
            org: self.home()?.clone(),
            name: "root".into(),
            scopes: Scope::ALL.to_vec(),
            created_at: self.now(),
            expires_at: None,
            revoked_at: None,
            last_used_at: None,
            root: true,
            sandbox: None,
        };
        let key = self.store().put_root_key(&key, hash.as_str()).await?;
        self.0.callers.keyring.forget_all();
        // An earlier root key may have ended with this.
        self.0.callers.taken_back.tell(Taken::AnyKey);
        Ok(key)
    }

    /// Who holds this token; counts against the key's rate limit. Refuses keys that are bound to one sandbox.
    pub async fn authenticate(
        &self,
        token: &str,
        origin: Origin,
    ) -> Result<Principal, ControlError> {
        let principal = self.authenticate_bound(token, origin).await?;
        match principal.sandbox {
            None => Ok(principal),
            Some(_) => Err(ControlError::new(
                ErrorCode::Forbidden,
                "this key is bound to one sandbox, and this request is not for such keys",
            )
            .hint("use a key of the organisation")),
        }
    }

    /// The same for requests about one sandbox, and what filters by [`Principal::sandbox`]: also keys that are bound
    /// to one are good here.
    #[boxed]
    pub async fn authenticate_bound(
        &self,
        token: &str,
        origin: Origin,
    ) -> Result<Principal, ControlError> {
        let hash = ApiToken::parse(token).ok_or_else(not_valid)?.hash();
        let now = self.steady();
        let key = match self.0.callers.keyring.recall(&hash, now) {
            Ok(key) => key,
            Err(epoch) => {
                let found = self.store().key_by_hash(hash.as_str()).await?;
                let key = found.ok_or_else(not_valid)?;
                self.0
                    .callers
                    .keyring
                    .remember(hash, key.clone(), now, epoch);
                key
            }
        };
        self.admit(key, origin)
    }

    /// Whoever holds this key, if it is still good; counts against its rate limit.
    pub(crate) fn admit(&self, key: Key, origin: Origin) -> Result<Principal, ControlError> {
        let moment = self.moment();
        if key.revoked_at.is_some() || key.expires_at.is_some_and(|at| at <= moment.at) {
            return Err(not_valid());
        }
        if let Err(wait) = self
            .0
            .callers
            .keyring
            .take(&key.id, self.config().rate_limit, moment)
        {
            return Err(ControlError::new(
                ErrorCode::RateLimited,
                "this key makes too many requests",
            )
            .retry_after(wait.as_secs() + 1));
        }
        Ok(Principal {
            home: key.org == *self.home()?,
            org: key.org,
            key: Some(key.id),
            scopes: key.scopes,
            sandbox: key.sandbox,
            origin,
        })
    }

    /// Needs `admin`.
    #[boxed]
    pub async fn create_key(
        &self,
        principal: &Principal,
        request: CreateKey,
    ) -> Result<NewKey, ControlError> {
        let operation = Operation::new("key.create", request.name.as_str());
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let outcome = control.try_create_key(&principal, request).await;
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_create_key(
        &self,
        principal: &Principal,
        request: CreateKey,
    ) -> Result<NewKey, ControlError> {
        principal.require(Scope::Admin)?;
        let org = match request.org {
            Some(org) if org != principal.org => {
                principal.require_operator()?;
                let found = self.store().organisation(&org).await?;
                found
                    .ok_or_else(|| ControlError::not_found("organisation", org.as_str()))?
                    .id
            }
            _ => principal.org.clone(),
        };
        let now = self.now();
        check_label("name", &request.name, TITLE_MAX)?;
        if request.scopes.is_empty() {
            return Err(ControlError::invalid("scopes must name at least one scope"));
        }
        if request.expires_at.is_some_and(|at| at <= now) {
            return Err(ControlError::invalid("expires_at must be in the future"));
        }
        let mut scopes = request.scopes;
        scopes.sort();
        scopes.dedup();
        let sandbox = match &request.sandbox {
            None => None,
            Some(_) if scopes.contains(&Scope::Admin) => {
                return Err(ControlError::invalid(
                    "a key for one sandbox cannot have the scope admin",
                ));
            }
            Some(which) => {
                let id: Option<SandboxId> = which.parse().ok();
                let reference = id.as_ref().map_or(SandboxRef::Name(which), SandboxRef::Id);
                let found = self.store().sandbox(&org, reference).await?;
                let found = found.ok_or_else(|| ControlError::not_found("sandbox", which))?;
                Some(found.id)
            }
        };
        let token = ApiToken::random();
        let key = Key {
            id: KeyId::random(),
            org,
            name: request.name,
            scopes,
            created_at: now,
            expires_at: request.expires_at,
            revoked_at: None,
            last_used_at: None,
            root: false,
            sandbox,
        };
        self.store().create_key(&key, token.hash().as_str()).await?;
        Ok(NewKey { token, key })
    }

    /// Needs `admin`.
    #[boxed]
    pub async fn list_keys(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<Key>, ControlError> {
        principal.require(Scope::Admin)?;
        Ok(self.store().keys(&principal.org, page).await?)
    }

    /// Needs `admin`. At once and for good.
    #[boxed]
    pub async fn revoke_key(&self, principal: &Principal, id: &KeyId) -> Result<Key, ControlError> {
        let (control, principal, id) = (self.clone(), principal.clone(), id.clone());
        let revoked = self.to_the_end(async move {
            let outcome = control.try_revoke_key(&principal, &id).await;
            let operation = Operation::new("key.revoke", id.as_str());
            let revoked = outcome.is_ok();
            let concluded = control.conclude(&principal, operation, outcome).await;
            // Whoever uses the key has to go, also where the record could not be written.
            let telling = revoked.then(|| control.telling(Taken::Key(id)));
            Ok((concluded?, telling))
        });
        let (key, _telling) = revoked.await?;
        Ok(key)
    }

    async fn try_revoke_key(&self, principal: &Principal, id: &KeyId) -> Result<Key, ControlError> {
        principal.require(Scope::Admin)?;
        let revoked = self
            .store()
            .revoke_key(&principal.org, id, self.now())
            .await;
        self.0.callers.keyring.forget_all();
        revoked.map_err(|error| match error {
            cove_store::StoreError::NotFound { .. } => ControlError::not_found("key", id.as_str()),
            other => other.into(),
        })
    }
}

/// A short text for people.
pub(crate) fn check_label(field: &str, text: &str, max: usize) -> Result<(), ControlError> {
    if text.is_empty() || text.len() > max || text.chars().any(char::is_control) {
        return Err(ControlError::invalid(format!(
            "{field} must have 1 to {max} bytes and no control characters"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_random_and_parse_back() {
        let (one, two) = (ApiToken::random(), ApiToken::random());
        assert_ne!(one.reveal(), two.reveal());
        assert_eq!(one.reveal().len(), PREFIX.len() + 64);
        assert_eq!(ApiToken::parse(one.reveal()), Some(one.clone()));
        assert_eq!(TokenHash::parse(one.hash().as_str()), Some(one.hash()));
        assert!(!format!("{one:?}").contains(&one.reveal()[5..]));
    }

    #[test]
    fn what_is_no_token_is_not_looked_up() {
        let long = format!("cove_{}", "a".repeat(65));
        let upper = format!("cove_{}", "A".repeat(64));
        for bad in ["", "cove_", "x", &long, &upper, "cove_\0"] {
            assert!(ApiToken::parse(bad).is_none(), "{bad:?}");
        }
    }
}
