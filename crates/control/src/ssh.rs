//! Who may log in to a sandbox over SSH: holders of a token that was signed for it, and holders of a
//! public key that its organisation registered.
//!
//! A token carries its sandbox, its times and the API key of its maker and is signed like links to ports
//! are, so nothing of it is kept but a count that taking all of them back raises. It ends with that key.
//! Whoever is logged in stays as long as what let them in is good.

use async_recursion::async_recursion as boxed;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use cove_model::{KeyId, OrgId, SandboxId};
use cove_store::{Page, PageRequest, PortShare, SandboxRecord, SandboxRef, Scope, SshKey};
use sha2::{Digest, Sha256};
use time::{Duration, OffsetDateTime};

use crate::Control;
use crate::admission::{Admission, By, Taken};
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::keys::check_label;
use crate::principal::{Origin, Principal};
use cove_limits::{SSH_PUBLIC_KEY_MAX, SSH_TOKEN_DEFAULT_S, SSH_TOKEN_MAX_S, TITLE_MAX};

const PURPOSE: &str = "ssh";
/// Tokens are counted in the row of the port that nobody can share.
const NO_PORT: u16 = 0;
/// A user name longer than this names nothing here.
const USER_MAX: usize = 256;
/// Longer texts are no tokens.
const TOKEN_TEXT_MAX: usize = 512;
/// In the place of a token's key when it has none.
const NO_KEY: &str = "-";
/// Between the user inside and the sandbox in a login's name.
const USER_SEPARATOR: char = '+';

/// A token at the one moment it is known.
#[derive(Debug, Clone)]
pub struct SshToken {
    pub sandbox: SandboxId,
    pub token: String,
    pub expires_at: OffsetDateTime,
}

/// What a token is to be.
#[derive(Debug, Clone, Copy, Default)]
pub struct SshTokenRequest {
    /// Until who logged in with it has to go; default: [`SSH_TOKEN_DEFAULT_S`].
    pub expires_s: Option<u64>,
    /// Until when it lets in; default: as long as it is good.
    pub login_s: Option<u64>,
}

/// What a token says besides its sandbox and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claims {
    /// The key of whoever made it, and with which it ends.
    pub key: Option<KeyId>,
    login_until: i64,
}

impl Claims {
    fn shown(&self) -> String {
        let key = self.key.as_ref().map_or(NO_KEY, KeyId::as_str);
        format!("{key}.{}", self.login_until)
    }

    fn about(&self, id: &SandboxId) -> String {
        format!("{id}:{}", self.shown())
    }
}

/// A token without its sandbox. Not looked at yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignedToken {
    pub claims: Claims,
    signed: String,
}

impl SignedToken {
    fn parse(text: &str) -> Option<(SandboxId, Self)> {
        if text.len() > TOKEN_TEXT_MAX {
            return None;
        }
        let mut parts = text.splitn(4, '.');
        let id = parts.next()?.parse().ok()?;
        let key = match parts.next()? {
            NO_KEY => None,
            key => Some(key.parse().ok()?),
        };
        let login_until = parts.next()?.parse().ok()?;
        let signed = parts.next()?.to_owned();
        let claims = Claims { key, login_until };
        Some((id, Self { claims, signed }))
    }
}

/// Somebody who logged in.
#[derive(Debug, Clone)]
pub struct SshLogin {
    pub principal: Principal,
    pub sandbox: SandboxId,
    /// The user inside, where one was named.
    pub user: Option<String>,
}

/// A login, and how long it may last.
pub type SshEntry = (SshLogin, Admission);

#[derive(Debug, Clone)]
pub struct AddSshKey {
    pub name: String,
    /// A line of a `.pub` file.
    pub public_key: String,
    pub expires_at: Option<OffsetDateTime>,
}

/// `user+sandbox`, or the sandbox alone.
fn parts(login: &str) -> (Option<&str>, &str) {
    match login.rsplit_once(USER_SEPARATOR) {
        Some((user, sandbox)) => (Some(user), sandbox),
        None => (None, login),
    }
}

/// One refusal for everything, so that an unauthenticated caller learns nothing from it.
fn refused() -> ControlError {
    ControlError::new(ErrorCode::Unauthenticated, "the login is not valid")
        .hint("make a token with POST /v1/sandboxes/{id}/ssh, or use `cove ssh SANDBOX`")
}

impl Control {
    /// Needs `use`. Answers with a token that lets its holder log in to this sandbox.
    #[boxed]
    pub async fn ssh_token(
        &self,
        principal: &Principal,
        which: &str,
        request: SshTokenRequest,
    ) -> Result<SshToken, ControlError> {
        let outcome = self.try_ssh_token(principal, which, request).await;
        let operation = Operation::new("ssh.token", which);
        self.conclude(principal, operation, outcome).await
    }

    async fn try_ssh_token(
        &self,
        principal: &Principal,
        which: &str,
        request: SshTokenRequest,
    ) -> Result<SshToken, ControlError> {
        principal.require(Scope::Use)?;
        let seconds = request.expires_s.unwrap_or(SSH_TOKEN_DEFAULT_S);
        if !(1..=SSH_TOKEN_MAX_S).contains(&seconds) {
            return Err(ControlError::invalid(format!(
                "expires_s must be between 1 and {SSH_TOKEN_MAX_S}"
            )));
        }
        let login = request.login_s.unwrap_or(seconds);
        if !(1..=seconds).contains(&login) {
            return Err(ControlError::invalid(
                "login_s must be between 1 and expires_s",
            ));
        }
        let sandbox = self.find(principal, which).await?;
        let counted = self
            .store()
            .share_port(&PortShare {
                sandbox: sandbox.id.clone(),
                port: NO_PORT,
                org: sandbox.org.clone(),
                epoch: 0,
                public: false,
                public_until: None,
            })
            .await?;
        let now = self.now();
        let expires_at = now + Duration::seconds(seconds.cast_signed());
        let claims = Claims {
            key: principal.key.clone(),
            login_until: (now + Duration::seconds(login.cast_signed())).unix_timestamp(),
        };
        let signed = self.config().link_key.sign(
            PURPOSE,
            &claims.about(&sandbox.id),
            expires_at.unix_timestamp(),
            counted.epoch,
        );
        Ok(SshToken {
            token: format!("{}.{}.{signed}", sandbox.id, claims.shown()),
            sandbox: sandbox.id,
            expires_at,
        })
    }

    /// Needs `read`. The sandbox that a token opens now; `None` when it opens none of the caller's.
    #[boxed]
    pub async fn ssh_token_sandbox(
        &self,
        principal: &Principal,
        token: &str,
    ) -> Result<Option<SandboxId>, ControlError> {
        principal.require(Scope::Read)?;
        let Some((id, token)) = SignedToken::parse(token) else {
            return Ok(None);
        };
        match self.find(principal, id.as_str()).await {
            Err(error) if error.code == ErrorCode::NotFound => return Ok(None),
            found => found?,
        };
        let in_time = self.now().unix_timestamp() < token.claims.login_until;
        let good = in_time && self.ssh_token_until(&id, &token).await?.is_some();
        Ok(good.then_some(id))
    }

    /// Needs `use`. Makes every token of the sandbox worthless; who is logged in by one has to go.
    #[boxed]
    pub async fn revoke_ssh_tokens(
        &self,
        principal: &Principal,
        which: &str,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = async {
                principal.require(Scope::Use)?;
                let sandbox = control.find(&principal, &which).await?;
                control.store().unshare_port(&sandbox.id, NO_PORT).await?;
                control
                    .0
                    .callers
                    .taken_back
                    .tell(Taken::SshTokens(sandbox.id));
                Ok(())
            }
            .await;
            let operation = Operation::new("ssh.revoke", which);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Needs `admin`: a registered key opens every sandbox of the organisation.
    #[boxed]
    pub async fn add_ssh_key(
        &self,
        principal: &Principal,
        request: AddSshKey,
    ) -> Result<SshKey, ControlError> {
        let operation = Operation::new("ssh_key.add", request.name.as_str());
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let outcome = control.try_add_ssh_key(&principal, request).await;
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_add_ssh_key(
        &self,
        principal: &Principal,
        request: AddSshKey,
    ) -> Result<SshKey, ControlError> {
        principal.require(Scope::Admin)?;
        check_label("name", &request.name, TITLE_MAX)?;
        let now = self.now();
        if request.expires_at.is_some_and(|at| at <= now) {
            return Err(ControlError::invalid("expires_at must be in the future"));
        }
        let (public_key, fingerprint) = read_public_key(&request.public_key)?;
        let key = SshKey {
            id: KeyId::random(),
            org: principal.org.clone(),
            name: request.name,
            public_key,
            fingerprint,
            created_at: now,
            expires_at: request.expires_at,
        };
        self.store().create_ssh_key(&key).await?;
        Ok(key)
    }

    /// Needs `admin`.
    #[boxed]
    pub async fn list_ssh_keys(
        &self,
        principal: &Principal,
        page: &PageRequest,
    ) -> Result<Page<SshKey>, ControlError> {
        principal.require(Scope::Admin)?;
        Ok(self.store().ssh_keys(&principal.org, page).await?)
    }

    /// Needs `admin`. Its holder cannot log in any more, and has to go where that is done.
    #[boxed]
    pub async fn remove_ssh_key(
        &self,
        principal: &Principal,
        id: &KeyId,
    ) -> Result<(), ControlError> {
        let (control, principal, id) = (self.clone(), principal.clone(), id.clone());
        self.to_the_end(async move {
            let outcome = async {
                principal.require(Scope::Admin)?;
                control.store().remove_ssh_key(&principal.org, &id).await?;
                control.0.callers.taken_back.tell(Taken::SshKey(id.clone()));
                Ok(())
            }
            .await;
            let operation = Operation::new("ssh_key.remove", id.as_str());
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Whether it is worth proving that a key is held: some organisation has registered it.
    #[boxed]
    pub async fn ssh_key_is_known(&self, fingerprint: &str) -> Result<bool, ControlError> {
        Ok(!self.living_ssh_keys(fingerprint).await?.is_empty())
    }

    pub(crate) async fn living_ssh_keys(
        &self,
        fingerprint: &str,
    ) -> Result<Vec<SshKey>, ControlError> {
        let now = self.now();
        let mut found = self.store().ssh_keys_by_fingerprint(fingerprint).await?;
        found.retain(|key| key.expires_at.is_none_or(|at| now < at));
        Ok(found)
    }

    /// Until when a token opens this sandbox, with the key it is bound to; `None` when it does not.
    pub(crate) async fn ssh_token_until(
        &self,
        id: &SandboxId,
        token: &SignedToken,
    ) -> Result<Option<OffsetDateTime>, ControlError> {
        let now = self.now();
        let link_key = &self.config().link_key;
        let about = token.claims.about(id);
        let Some((epoch, end)) = link_key.verify(PURPOSE, &about, &token.signed, now) else {
            return Ok(None);
        };
        let counted = self.store().port_shares(id, Some(NO_PORT)).await?.pop();
        if counted.is_none_or(|counted| counted.epoch != epoch) {
            return Ok(None);
        }
        let Some(key) = &token.claims.key else {
            return Ok(Some(end));
        };
        let key = self.store().key(key).await?;
        let living =
            key.filter(|key| key.revoked_at.is_none() && key.expires_at.is_none_or(|at| now < at));
        Ok(living.map(|key| key.expires_at.map_or(end, |at| at.min(end))))
    }

    /// Who logs in with a token. `login` names its sandbox, by id or by name.
    #[boxed]
    pub async fn ssh_login_by_token(
        &self,
        login: &str,
        token: &str,
        origin: Origin,
    ) -> Result<SshEntry, ControlError> {
        // From before the look that lets in, so that nothing is missed in between.
        let told = self.taken_back();
        let (user, which) = parts(login);
        if login.len() > USER_MAX {
            return Err(refused());
        }
        let (id, token) = SignedToken::parse(token).ok_or_else(refused)?;
        let Some(sandbox) = self.living(&id).await? else {
            return Err(refused());
        };
        let named = which == id.as_str() || sandbox.spec.name.as_deref() == Some(which);
        let in_time = self.now().unix_timestamp() < token.claims.login_until;
        let good = named && in_time && self.ssh_token_until(&id, &token).await?.is_some();
        // Whose key it says is known only when the signature is good.
        let key = token.claims.key.clone().filter(|_| good);
        let principal = self.holder(sandbox.org.clone(), key, origin);
        let outcome = match good {
            true => Ok(SshLogin {
                principal: principal.clone(),
                sandbox: id.clone(),
                user: user.map(str::to_owned),
            }),
            false => Err(refused()),
        };
        let login = self
            .conclude_login(&principal, &id, "token", outcome)
            .await?;
        let by = By::SshToken { sandbox: id, token };
        Ok((login, self.admission(by, told)))
    }

    /// Who logs in with a key that was proven to be held.
    #[boxed]
    pub async fn ssh_login_by_key(
        &self,
        login: &str,
        fingerprint: &str,
        origin: Origin,
    ) -> Result<SshEntry, ControlError> {
        let told = self.taken_back();
        if login.len() > USER_MAX {
            return Err(refused());
        }
        let (user, which) = parts(login);
        let keys = self.living_ssh_keys(fingerprint).await?;
        let by_id: Option<SandboxId> = which.parse().ok();
        // Anybody may register anybody's public key. A name that could mean the sandbox of another
        // organisation is therefore no name at all; ids are unique.
        if by_id.is_none() && keys.len() > 1 {
            return Err(refused());
        }
        for key in keys {
            let reference = by_id
                .as_ref()
                .map_or(SandboxRef::Name(which), SandboxRef::Id);
            let Some(sandbox) = self.store().sandbox(&key.org, reference).await? else {
                continue;
            };
            let by = By::SshKey {
                id: key.id.clone(),
                fingerprint: fingerprint.to_owned(),
            };
            let principal = self.holder(key.org, Some(key.id), origin);
            let login = Ok(SshLogin {
                principal: principal.clone(),
                sandbox: sandbox.id.clone(),
                user: user.map(str::to_owned),
            });
            let login = self
                .conclude_login(&principal, &sandbox.id, fingerprint, login)
                .await?;
            return Ok((login, self.admission(by, told)));
        }
        Err(refused())
    }

    async fn living(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, ControlError> {
        let found = self.store().any_sandbox(id).await?;
        let Some(found) = found else {
            return Ok(None);
        };
        // The one question that knows of deletion asks for the organisation.
        let reference = SandboxRef::Id(id);
        Ok(self.store().sandbox(&found.org, reference).await?)
    }

    fn holder(&self, org: OrgId, key: Option<KeyId>, origin: Origin) -> Principal {
        Principal {
            org,
            key,
            scopes: vec![Scope::Use],
            home: false,
            sandbox: None,
            origin,
        }
    }

    async fn conclude_login(
        &self,
        principal: &Principal,
        sandbox: &SandboxId,
        by: &str,
        outcome: Result<SshLogin, ControlError>,
    ) -> Result<SshLogin, ControlError> {
        let mut operation = Operation::new("ssh.login", sandbox.as_str());
        operation.detail = Some(format!("by {by}"));
        self.conclude(principal, operation, outcome).await
    }
}

/// Kind and key of a `.pub` line and the fingerprint, for kinds the gateway can check.
fn read_public_key(line: &str) -> Result<(String, String), ControlError> {
    let wrong = |message: &str| {
        ControlError::invalid(format!("public_key {message}"))
            .hint("paste the one line of a .pub file; `ssh-keygen -t ed25519` makes one")
    };
    if line.len() > SSH_PUBLIC_KEY_MAX {
        return Err(wrong("is too long"));
    }
    let mut words = line.split_ascii_whitespace();
    let (Some(kind), Some(text)) = (words.next(), words.next()) else {
        return Err(wrong("must be a kind and a key in base64"));
    };
    let blob = STANDARD
        .decode(text)
        .map_err(|_| wrong("is not base64 after its kind"))?;
    let mut rest = blob.as_slice();
    let fields: Vec<&[u8]> = std::iter::from_fn(|| field(&mut rest)).collect();
    let fits = rest.is_empty()
        && match (kind, fields.as_slice()) {
            ("ssh-ed25519", [own, key]) => *own == kind.as_bytes() && key.len() == 32,
            (
                "ecdsa-sha2-nistp256" | "ecdsa-sha2-nistp384" | "ecdsa-sha2-nistp521",
                [own, curve, point],
            ) => {
                *own == kind.as_bytes()
                    && kind.as_bytes().ends_with(curve)
                    && curve.starts_with(b"nistp")
                    && point.first() == Some(&4)
            }
            _ => false,
        };
    if kind == "ssh-rsa" {
        return Err(wrong("is an RSA key, which the gateway cannot check"));
    }
    if !fits {
        return Err(wrong("must be an ssh-ed25519 or ecdsa-sha2-nistp key"));
    }
    let fingerprint = format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(&blob)));
    Ok((format!("{kind} {text}"), fingerprint))
}

/// A length and as many bytes.
fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_at_checked(4)?;
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
    let (taken, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_names_a_sandbox_and_perhaps_a_user() {
        assert_eq!(parts("box"), (None, "box"));
        assert_eq!(parts("ann+box"), (Some("ann"), "box"));
        assert_eq!(parts("a+b+box"), (Some("a+b"), "box"));
    }

    #[test]
    fn public_keys_are_what_they_say() {
        let good = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl me@here";
        let (kept, fingerprint) = read_public_key(good).unwrap();
        assert!(!kept.contains("me@here"));
        assert_eq!(
            fingerprint,
            "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"
        );
        for bad in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 !!!",
            "ssh-ed25519 AAAA",
            "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
            "ecdsa-sha2-nistp256 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJlAAAA",
        ] {
            assert!(read_public_key(bad).is_err(), "{bad}");
        }
        let long = format!("ssh-ed25519 {}", "A".repeat(SSH_PUBLIC_KEY_MAX));
        assert!(read_public_key(&long).is_err());
    }
}
