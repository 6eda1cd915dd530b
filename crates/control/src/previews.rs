//! Who may visit a port of a sandbox: key holders, holders of a signed link, or everybody.
//!
//! A link is worth something as long as its signature fits sandbox, port and expiry, and nobody took
//! the port's links back since. Nothing of it is kept but a count in the port's row, so any number of
//! links cost nothing and all of them end at once.

use async_recursion::async_recursion as boxed;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cove_model::SandboxId;
use cove_store::{PortShare, Scope};
use rand::TryRngCore;
use ring::hmac;
use time::{Duration, OffsetDateTime};

use crate::Control;
use crate::access::PORT_VISITS;
use crate::admission::{Admission, By, Taken};
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::guest::{GuestAccess, GuestAction};
use crate::principal::{Origin, Principal};
use cove_limits::{LINK_DEFAULT_S, LINK_MAX_S};

/// Longer texts are no tokens.
const TOKEN_MAX: usize = 128;
/// Tokens looked at in one request: a browser may hold old ones beside the good one.
pub const TOKENS_MAX: usize = 8;
const KEY_BYTES: usize = 32;

/// The secret that signs links. Whoever has it can visit every shared port.
#[derive(Clone, PartialEq, Eq)]
pub struct LinkKey([u8; KEY_BYTES]);

impl LinkKey {
    pub fn random() -> Self {
        let mut bytes = [0; KEY_BYTES];
        rand::rngs::OsRng
            .try_fill_bytes(&mut bytes)
            .expect("the kernel's random numbers are always there once it has booted");
        Self(bytes)
    }

    /// From what [`LinkKey::reveal`] said.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Some(Self(bytes.try_into().ok()?))
    }

    /// The secret as text. Mind where it goes.
    pub fn reveal(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    fn signer(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    /// `purpose` keeps a token for one thing from being good for another.
    pub(crate) fn sign(&self, purpose: &str, about: &str, expires: i64, epoch: u64) -> String {
        let message = message(purpose, about, expires, epoch);
        let tag = hmac::sign(&self.signer(), message.as_bytes());
        format!("{expires}.{epoch}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// The signature alone, for what does not expire.
    pub(crate) fn mark(&self, purpose: &str, about: &str) -> String {
        let message = message(purpose, about, 0, 0);
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.signer(), message.as_bytes()))
    }

    pub(crate) fn is_mark(&self, purpose: &str, about: &str, tag: &str) -> bool {
        let message = message(purpose, about, 0, 0);
        URL_SAFE_NO_PAD
            .decode(tag)
            .is_ok_and(|tag| hmac::verify(&self.signer(), message.as_bytes(), &tag).is_ok())
    }

    /// Epoch and end of a token that was signed for exactly this and has not expired.
    pub(crate) fn verify(
        &self,
        purpose: &str,
        about: &str,
        token: &str,
        now: OffsetDateTime,
    ) -> Option<(u64, OffsetDateTime)> {
        if token.len() > TOKEN_MAX {
            return None;
        }
        let mut parts = token.splitn(3, '.');
        let (expires, epoch, tag) = (parts.next()?, parts.next()?, parts.next()?);
        let (expires, epoch) = (expires.parse().ok()?, epoch.parse().ok()?);
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        let message = message(purpose, about, expires, epoch);
        hmac::verify(&self.signer(), message.as_bytes(), &tag).ok()?;
        let end = OffsetDateTime::from_unix_timestamp(expires).ok()?;
        (now < end).then_some((epoch, end))
    }
}

/// No part can hold the separator: purposes and subjects are ours, numbers are digits.
fn message(purpose: &str, about: &str, expires: i64, epoch: u64) -> String {
    format!("cove\n{purpose}\n{about}\n{expires}\n{epoch}")
}

impl std::fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkKey(…)")
    }
}

const PREVIEW: &str = "preview";

fn subject(id: &SandboxId, port: u16) -> String {
    format!("{id}:{port}")
}

#[derive(Debug, Clone, Copy, Default)]
pub struct ShareRequest {
    /// Default: [`LINK_DEFAULT_S`] for a link, for ever for everybody.
    pub expires_s: Option<u64>,
    /// Opens the port to everybody instead of signing a link.
    pub public: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub sandbox: SandboxId,
    pub port: u16,
    pub public: bool,
    /// What lets its holder in; absent when everybody may come.
    pub token: Option<String>,
    pub expires_at: Option<OffsetDateTime>,
}

/// What a visitor shows.
#[derive(Debug, Clone, Copy)]
pub enum Pass<'a> {
    Key(&'a str),
    /// A token for every port of the sandbox.
    Access(&'a str),
    /// Tokens of links; may be none at all.
    Tokens(&'a [&'a str]),
}

impl Control {
    /// Needs `use`. Signs a link for a port, or opens it to everybody.
    #[boxed]
    pub async fn share_port(
        &self,
        principal: &Principal,
        which: &str,
        port: u16,
        request: ShareRequest,
    ) -> Result<Share, ControlError> {
        let action = match request.public {
            true => "port.publish",
            false => "port.share",
        };
        let operation = Operation::new(action, port_target(which, port));
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let shared = control.try_share_port(&principal, &which, port, request);
            let outcome = shared.await;
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_share_port(
        &self,
        principal: &Principal,
        which: &str,
        port: u16,
        request: ShareRequest,
    ) -> Result<Share, ControlError> {
        principal.require(Scope::Use)?;
        check_port(port)?;
        if let Some(seconds) = request.expires_s
            && !(1..=LINK_MAX_S).contains(&seconds)
        {
            return Err(ControlError::invalid(format!(
                "expires_s must be between 1 and {LINK_MAX_S}"
            )));
        }
        let sandbox = self.find(principal, which).await?;
        let now = self.now();
        let until = |seconds: u64| now + Duration::seconds(seconds.cast_signed());
        let expires_at = match (request.public, request.expires_s) {
            (true, seconds) => seconds.map(until),
            (false, seconds) => Some(until(seconds.unwrap_or(LINK_DEFAULT_S))),
        };
        let share = self
            .store()
            .share_port(&PortShare {
                sandbox: sandbox.id.clone(),
                port,
                org: sandbox.org.clone(),
                epoch: 0,
                public: request.public,
                public_until: expires_at.filter(|_| request.public),
            })
            .await?;
        let token = match (request.public, expires_at) {
            (false, Some(at)) => Some(self.config().link_key.sign(
                PREVIEW,
                &subject(&sandbox.id, port),
                at.unix_timestamp(),
                share.epoch,
            )),
            _ => None,
        };
        Ok(Share {
            sandbox: sandbox.id,
            port,
            public: request.public,
            token,
            expires_at,
        })
    }

    /// Needs `use`. Makes every link of the port worthless and closes it to everybody.
    #[boxed]
    pub async fn unshare_port(
        &self,
        principal: &Principal,
        which: &str,
        port: u16,
    ) -> Result<(), ControlError> {
        let operation = Operation::new("port.unshare", port_target(which, port));
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.try_unshare_port(&principal, &which, port).await;
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_unshare_port(
        &self,
        principal: &Principal,
        which: &str,
        port: u16,
    ) -> Result<(), ControlError> {
        principal.require(Scope::Use)?;
        check_port(port)?;
        let sandbox = self.find(principal, which).await?;
        self.store().unshare_port(&sandbox.id, port).await?;
        // Those who are in by a link or by the port's openness leave now.
        self.0
            .callers
            .taken_back
            .tell(Taken::Port(sandbox.id, port));
        Ok(())
    }

    /// Which ports of a sandbox are open to everybody now.
    #[boxed]
    pub async fn public_ports(&self, id: &SandboxId) -> Result<Vec<u16>, ControlError> {
        let now = self.now();
        let shares = self.store().port_shares(id, None).await?;
        Ok(shares
            .iter()
            .filter(|share| is_public(share, now))
            .map(|share| share.port)
            .collect())
    }

    /// The way in for one visit, for whoever may. Unknown senders learn nothing: a sandbox that is not there
    /// refuses them as one that is.
    pub async fn visit(
        &self,
        id: &SandboxId,
        port: u16,
        pass: Pass<'_>,
        origin: Origin,
    ) -> Result<(GuestAccess, Admission), ControlError> {
        // From before the look that lets in, so that nothing is missed in between.
        let told = self.taken_back();
        let (principal, by) = match pass {
            Pass::Key(token) => {
                let principal = self.authenticate_bound(token, origin).await?;
                let by = By::of(&principal);
                (principal, by)
            }
            Pass::Access(token) => {
                let principal = self.token_holder(id, token, PORT_VISITS, origin).await?;
                let by = By::of(&principal);
                (principal, by)
            }
            Pass::Tokens(tokens) => {
                let kept = tokens.iter().take(TOKENS_MAX);
                let by = By::Port {
                    sandbox: id.clone(),
                    port,
                    tokens: kept.map(|token| (*token).to_owned()).collect(),
                };
                let (share, _) = self.admitted(id, port, tokens).await?;
                let principal = Principal {
                    org: share.org,
                    key: None,
                    scopes: vec![Scope::Use],
                    home: false,
                    sandbox: None,
                    origin,
                };
                (principal, by)
            }
        };
        let access = self
            .guest(&principal, id.as_str(), GuestAction::PortVisit)
            .await?;
        Ok((access, self.admission(by, told)))
    }

    /// The port's row, and until when whoever shows these tokens may stay as things are.
    pub(crate) async fn admitted(
        &self,
        id: &SandboxId,
        port: u16,
        tokens: &[&str],
    ) -> Result<(PortShare, Option<OffsetDateTime>), ControlError> {
        let now = self.now();
        let about = subject(id, port);
        let key = &self.config().link_key;
        let good: Vec<(u64, OffsetDateTime)> = tokens
            .iter()
            .take(TOKENS_MAX)
            .filter_map(|token| key.verify(PREVIEW, &about, token, now))
            .collect();
        let share = self.store().port_shares(id, Some(port)).await?.pop();
        let share = share.ok_or_else(not_allowed)?;
        let by_token = good.iter().filter(|(epoch, _)| *epoch == share.epoch);
        let last = by_token.map(|(_, end)| *end).max();
        match (is_public(&share, now), last) {
            (false, None) => Err(not_allowed()),
            (true, _) if share.public_until.is_none() => Ok((share, None)),
            (true, last) => {
                let until = share.public_until.max(last);
                Ok((share, until))
            }
            (false, last) => Ok((share, last)),
        }
    }
}

fn is_public(share: &PortShare, now: OffsetDateTime) -> bool {
    share.public && share.public_until.is_none_or(|until| now < until)
}

fn not_allowed() -> ControlError {
    ControlError::new(ErrorCode::Unauthenticated, "this preview is private").hint(
        "open it by a signed link from its owner (cove share SANDBOX PORT), or send an API key",
    )
}

fn check_port(port: u16) -> Result<(), ControlError> {
    if port == 0 {
        return Err(ControlError::invalid("port must be between 1 and 65535"));
    }
    Ok(())
}

fn port_target(which: &str, port: u16) -> String {
    format!("{which}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_exactly_what_it_was_signed_for() {
        let key = LinkKey::random();
        let now = OffsetDateTime::from_unix_timestamp(1000).unwrap();
        let token = key.sign(PREVIEW, "sbx_a:80", 1001, 7);
        let (epoch, _) = key.verify(PREVIEW, "sbx_a:80", &token, now).expect("good");
        assert_eq!(epoch, 7);
        assert_eq!(key.verify(PREVIEW, "sbx_a:81", &token, now), None);
        assert_eq!(key.verify(PREVIEW, "sbx_b:80", &token, now), None);
        assert_eq!(key.verify("ssh", "sbx_a:80", &token, now), None);
        let other = LinkKey::random();
        assert_eq!(other.verify(PREVIEW, "sbx_a:80", &token, now), None);
        let late = now + Duration::seconds(1);
        assert_eq!(key.verify(PREVIEW, "sbx_a:80", &token, late), None);
        let tag = token.splitn(3, '.').nth(2).unwrap();
        for forged in [
            format!("9999.7.{tag}"),
            format!("1001.8.{tag}"),
            format!("1001.7.{}", &tag[1..]),
            "1001.7.".into(),
            "1001.7".into(),
            String::new(),
            "x".repeat(10_000),
        ] {
            assert_eq!(key.verify(PREVIEW, "sbx_a:80", &forged, now), None);
        }
    }

    #[test]
    fn keys_are_kept_as_text_and_not_shown_by_accident() {
        let key = LinkKey::random();
        assert_eq!(LinkKey::parse(&key.reveal()), Some(key.clone()));
        assert!(LinkKey::parse("short").is_none());
        assert_eq!(format!("{key:?}"), "LinkKey(…)");
    }
}
