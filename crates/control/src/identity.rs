//! Identity tokens of sandboxes, and the keys that sign them.
//!
//! Keys are made when a token is asked for, so that a server nobody asks has none; the list of keys, which anybody
//! may read, makes none. They stay in this process and in one file of its directory. A key that is due is made on
//! the way of whoever asks for the next token; where that fails the present one goes on signing.

use async_recursion::async_recursion as boxed;
use std::path::PathBuf;
use std::sync::Arc;

use cove_identity::{
    Claims, CoveClaims, Discovery, Issuer, Jwks, KeyError, KeySet, Rotation, SigningKey,
    audience_problem,
};
use cove_limits::{IDENTITY_TOKEN_DEFAULT_S, IDENTITY_TOKEN_MAX_S};
use cove_model::Grant;
use cove_store::{SandboxRecord, Scope};
use time::{Duration, OffsetDateTime};
use tokio::sync::Mutex;

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::sandboxes::{being_deleted, is_doomed};

#[derive(Debug, Clone)]
pub struct IdentityConfig {
    pub issuer: Issuer,
    /// Where keys are kept; without it they end with the process.
    pub key_file: Option<PathBuf>,
}

impl Default for IdentityConfig {
    fn default() -> Self {
        Self {
            issuer: Issuer::parse("http://localhost").expect("a URL with a host"),
            key_file: None,
        }
    }
}

/// What a token is to be.
#[derive(Debug, Clone, Default)]
pub struct IdentityTokenRequest {
    pub audience: String,
    /// Absent: [`IDENTITY_TOKEN_DEFAULT_S`].
    pub expires_s: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct IdentityToken {
    pub token: String,
    pub issuer: String,
    pub subject: String,
    pub audience: String,
    pub expires_at: OffsetDateTime,
}

/// Pause after keys could not be made: making one takes part of a second, and everybody else waits.
const MAKE_PAUSE_S: i64 = 60;

/// The keys, once somebody needed them.
#[derive(Default)]
pub(crate) struct IdentityKeys(Mutex<Held>);

#[derive(Default)]
struct Held {
    keys: Option<KeySet>,
    /// When keys could not be made.
    failed_at: Option<i64>,
}

impl IdentityKeys {
    /// Does `work` with the keys as they have to be now.
    async fn with<T>(
        &self,
        file: &Option<PathBuf>,
        now: i64,
        work: impl FnOnce(&KeySet) -> T,
    ) -> Result<T, ControlError> {
        let mut held = self.0.lock().await;
        let due = held.keys.as_ref().is_none_or(|keys| keys.is_due(now));
        // A clock that went back ends the pause.
        let failed_at = held.failed_at;
        let pausing = failed_at.is_some_and(|at| (at..at + MAKE_PAUSE_S).contains(&now));
        if due && !pausing {
            let changed = change(held.keys.clone(), file, move |keys| keys.tend(now)).await;
            held.failed_at = changed.is_err().then_some(now);
            match (changed, &held.keys) {
                (Ok(keys), _) => held.keys = Some(keys),
                (Err(error), None) => return Err(error),
                (Err(error), Some(_)) => tracing::error!(
                    %error, cause = ?std::error::Error::source(&error).map(ToString::to_string),
                    "cannot renew the identity keys; signing with the present one"
                ),
            }
        }
        let keys = held.keys.as_ref();
        let keys = keys.filter(|keys| keys.signing(now).is_some());
        let keys = keys.ok_or_else(|| {
            no_keys().hint(
                "the server's log or an earlier answer says why; it tries again within a minute",
            )
        })?;
        Ok(work(keys))
    }

    /// The public keys. Reads those on disk and makes none.
    async fn shown(&self, file: &Option<PathBuf>, now: i64) -> Result<Jwks, ControlError> {
        let mut held = self.0.lock().await;
        if held.keys.is_none()
            && let Some(file) = file.clone()
        {
            let read = tokio::task::spawn_blocking(move || KeySet::load(&file)).await;
            let read = read.map_err(|error| no_keys().because(error))?;
            let read = read.map_err(|error| no_keys().because(error))?;
            // With none there, whoever makes the first looks at the disk again.
            held.keys = Some(read).filter(|keys| keys.signing(now).is_some());
        }
        let keys = held.keys.as_ref();
        Ok(keys.map_or_else(|| KeySet::default().jwks(), |keys| keys.published(now)))
    }

    async fn rotate(
        &self,
        file: &Option<PathBuf>,
        now: i64,
        how: Rotation,
    ) -> Result<Jwks, ControlError> {
        let mut held = self.0.lock().await;
        let keys = change(held.keys.clone(), file, move |keys| {
            // With none there yet, the first one is made and then followed.
            if how == Rotation::Overlapping {
                keys.tend(now)?;
            }
            keys.rotate(now, how)
        })
        .await?;
        let shown = keys.jwks();
        *held = Held {
            keys: Some(keys),
            failed_at: None,
        };
        Ok(shown)
    }
}

/// The keys after a change that is on disk. Making a key and waiting for a disk both take long.
async fn change(
    held: Option<KeySet>,
    file: &Option<PathBuf>,
    work: impl FnOnce(&mut KeySet) -> Result<(), KeyError> + Send + 'static,
) -> Result<KeySet, ControlError> {
    let file = file.clone();
    let changed = tokio::task::spawn_blocking(move || {
        let mut keys = match (held, &file) {
            (Some(keys), _) => keys,
            (None, Some(file)) => KeySet::load(file)?,
            (None, None) => KeySet::default(),
        };
        work(&mut keys)?;
        if let Some(file) = &file {
            keys.save(file)?;
        }
        Ok(keys)
    });
    match changed.await {
        Ok(Ok(keys)) => Ok(keys),
        Ok(Err(error @ KeyError::TooMany)) => {
            Err(ControlError::new(ErrorCode::Conflict, error.to_string()))
        }
        Ok(Err(error)) => Err(no_keys().because(error)),
        Err(error) => Err(no_keys().because(error)),
    }
}

fn no_keys() -> ControlError {
    ControlError::internal("the identity keys cannot be used")
}

pub(crate) fn lifetime(request: &IdentityTokenRequest) -> Result<Duration, ControlError> {
    if let Some(problem) = audience_problem(&request.audience) {
        return Err(ControlError::invalid(problem));
    }
    let seconds = request.expires_s.unwrap_or(IDENTITY_TOKEN_DEFAULT_S);
    if !(1..=IDENTITY_TOKEN_MAX_S).contains(&seconds) {
        return Err(ControlError::invalid(format!(
            "expires_s must be between 1 and {IDENTITY_TOKEN_MAX_S}"
        )));
    }
    Ok(Duration::seconds(seconds.cast_signed()))
}

impl Control {
    /// For anybody: where the issuer's keys are.
    pub fn identity_discovery(&self) -> Discovery {
        Discovery::of(&self.config().identity.issuer)
    }

    /// For anybody: the public keys.
    #[boxed]
    pub async fn identity_keys(&self) -> Result<Jwks, ControlError> {
        let file = &self.config().identity.key_file;
        let now = self.now().unix_timestamp();
        self.0.identity.shown(file, now).await
    }

    /// Needs `use`: whoever may work in a sandbox can act for it. Answers with a token that says which
    /// sandbox its holder is.
    #[boxed]
    pub async fn identity_token(
        &self,
        principal: &Principal,
        which: &str,
        request: IdentityTokenRequest,
    ) -> Result<IdentityToken, ControlError> {
        let mut operation = Operation::new("identity.token", which);
        let outcome = async {
            principal.require(Scope::Use)?;
            let lifetime = lifetime(&request)?;
            let record = self.find(principal, which).await?;
            operation = Operation::new("identity.token", record.id.as_str());
            self.mint(&record, request.audience, lifetime).await
        }
        .await;
        operation.detail = outcome.as_ref().ok().map(audience_detail);
        self.conclude(principal, operation, outcome).await
    }

    /// The operator's alone. The public keys after it.
    #[boxed]
    pub async fn rotate_identity_keys(
        &self,
        principal: &Principal,
        how: Rotation,
    ) -> Result<Jwks, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let outcome = async {
                principal.require_operator()?;
                let file = &control.config().identity.key_file;
                let now = control.now().unix_timestamp();
                control.0.identity.rotate(file, now, how).await
            };
            let outcome = outcome.await;
            let mut operation = Operation::new("identity.rotate", "keys");
            operation.detail = Some(format!("{how:?}"));
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// A token for a sandbox whose right to it was checked.
    pub(crate) async fn mint(
        &self,
        record: &SandboxRecord,
        audience: String,
        lifetime: Duration,
    ) -> Result<IdentityToken, ControlError> {
        if is_doomed(record) {
            return Err(being_deleted());
        }
        let config = &self.config().identity;
        let now = self.now().unix_timestamp();
        let key = self.0.identity.with(&config.key_file, now, |keys| {
            let key: Option<Arc<SigningKey>> = keys.signing(now).cloned();
            key
        });
        let key = key.await?.ok_or_else(no_keys)?;
        let claims = Claims {
            iss: config.issuer.url().to_owned(),
            sub: config
                .issuer
                .subject(record.org.as_str(), record.id.as_str()),
            aud: audience,
            iat: now,
            nbf: now,
            exp: now + lifetime.whole_seconds(),
            jti: format!("{:032x}", rand::random::<u128>()),
            cove: about(record),
        };
        let expires_at = OffsetDateTime::from_unix_timestamp(claims.exp)
            .map_err(|error| ControlError::internal("the host's clock is wrong").because(error))?;
        // A millisecond of CPU that no async worker should spend.
        let signed = tokio::task::spawn_blocking(move || (key.sign(&claims), claims)).await;
        let (token, claims) = signed.map_err(|error| no_keys().because(error))?;
        Ok(IdentityToken {
            token: token.map_err(|error| no_keys().because(error))?,
            issuer: claims.iss,
            subject: claims.sub,
            audience: claims.aud,
            expires_at,
        })
    }
}

fn audience_detail(token: &IdentityToken) -> String {
    format!("audience {}", token.audience)
}

fn about(record: &SandboxRecord) -> CoveClaims {
    let mut claims = CoveClaims {
        org: record.org.to_string(),
        sandbox: record.id.to_string(),
        name: record.spec.name.clone(),
        image: record.facts.image.as_ref().map(ToString::to_string),
        parent_snapshot: record.origin.as_ref().map(ToString::to_string),
        ..CoveClaims::default()
    };
    if let Some(identity) = &record.spec.identity {
        claims.task.clone_from(&identity.task);
        claims.on_behalf_of.clone_from(&identity.on_behalf_of);
        let grants = identity.grants.iter();
        claims.grants = grants.map(|grant| grant.as_str().to_owned()).collect();
    }
    let labels_itself = record.spec.identity.as_ref();
    if labels_itself.is_some_and(|identity| identity.allows(Grant::Label)) {
        // They may be the sandbox's own words, which nobody is to take for its owner's.
        claims.labels_omitted = true;
    } else {
        claims.set_labels(&record.spec.labels);
    }
    claims
}
