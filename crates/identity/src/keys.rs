//! The keys of an issuer and their rotation.
//!
//! A key is published some time before it signs, so that verifiers that keep the list of keys know it by
//! then, and stays published after its successor took over, until the last token it signed has ended.
//!
//! ```text
//!   published  │←──────────── signs ────────────→│←─ overlap ─→│ removed
//!   ahead ─────┘                                 successor signs
//! ```

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair, RsaPublicKeyComponents};
use rsa::pkcs8::EncodePrivateKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Claims, Jwk, Jwks};

const KEY_BITS: usize = 2048;
/// How long a key signs before the next one does.
pub const ROTATE_AFTER_S: i64 = 30 * 86_400;
/// How long a key is published before it signs. Verifiers may keep the list of keys for less than this.
pub const PUBLISH_AHEAD_S: i64 = 3600;
/// How long a key stays published after the last token it signed: the longest token, and clocks that differ.
pub const OVERLAP_S: i64 = cove_limits::IDENTITY_TOKEN_MAX_S.cast_signed() + 900;
/// A file with more keys than this is not ours; rotation by hand stops here as well.
pub(crate) const KEYS_MAX: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot make an RSA key")]
    Make(#[source] rsa::Error),
    #[error("cannot encode an RSA key")]
    Encode(#[source] rsa::pkcs8::Error),
    #[error("this is not an RSA key: {0}")]
    Unusable(ring::error::KeyRejected),
    #[error("cannot sign")]
    Sign,
    #[error("{KEYS_MAX} keys are published already; wait until old ones have ended")]
    TooMany,
    #[error("cannot encode the claims")]
    Claims(#[source] serde_json::Error),
    #[error("cannot {doing} {path}")]
    File {
        doing: &'static str,
        path: String,
        source: std::io::Error,
    },
    #[error("{path} does not hold identity keys: {problem}")]
    Damaged { path: String, problem: String },
}

/// A private key. Shows itself to nobody; [`SigningKey::jwk`] is its public half.
pub struct SigningKey {
    kid: String,
    pub(crate) created_at: i64,
    signs_from: i64,
    pub(crate) pkcs8: Vec<u8>,
    pair: RsaKeyPair,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({})", self.kid)
    }
}

/// What is written down of a key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stored {
    pub created_at: i64,
    pub signs_from: i64,
    pub pkcs8: String,
}

impl SigningKey {
    /// Takes part of a second.
    pub fn generate(now: i64, signs_from: i64) -> Result<Self, KeyError> {
        let mut rng = rsa::rand_core::OsRng;
        let key = rsa::RsaPrivateKey::new(&mut rng, KEY_BITS).map_err(KeyError::Make)?;
        let der = key.to_pkcs8_der().map_err(KeyError::Encode)?;
        Self::from_pkcs8(der.as_bytes().to_vec(), now, signs_from)
    }

    fn from_pkcs8(pkcs8: Vec<u8>, created_at: i64, signs_from: i64) -> Result<Self, KeyError> {
        let pair = RsaKeyPair::from_pkcs8(&pkcs8).map_err(KeyError::Unusable)?;
        let (n, e) = components(&pair);
        // RFC 7638: the members in this order, without spaces.
        let canonical = format!(r#"{{"e":"{e}","kty":"RSA","n":"{n}"}}"#);
        let kid = URL_SAFE_NO_PAD.encode(Sha256::digest(canonical));
        Ok(Self {
            kid,
            created_at,
            signs_from,
            pkcs8,
            pair,
        })
    }

    pub(crate) fn stored(&self) -> Stored {
        Stored {
            created_at: self.created_at,
            signs_from: self.signs_from,
            pkcs8: STANDARD.encode(&self.pkcs8),
        }
    }

    pub(crate) fn restore(stored: &Stored) -> Result<Self, String> {
        let pkcs8 = STANDARD.decode(&stored.pkcs8).map_err(|e| e.to_string())?;
        Self::from_pkcs8(pkcs8, stored.created_at, stored.signs_from).map_err(|e| e.to_string())
    }

    pub fn kid(&self) -> &str {
        &self.kid
    }

    pub fn jwk(&self) -> Jwk {
        let (n, e) = components(&self.pair);
        Jwk {
            kty: "RSA".into(),
            usage: "sig".into(),
            alg: "RS256".into(),
            kid: self.kid.clone(),
            n,
            e,
        }
    }

    /// The token: header, claims and signature. About a millisecond of CPU.
    pub fn sign(&self, claims: &Claims) -> Result<String, KeyError> {
        let header = format!(r#"{{"alg":"RS256","kid":"{}","typ":"JWT"}}"#, self.kid);
        let claims = serde_json::to_vec(claims).map_err(KeyError::Claims)?;
        let mut token = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header),
            URL_SAFE_NO_PAD.encode(claims)
        );
        let mut signature = vec![0; self.pair.public().modulus_len()];
        self.pair
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                token.as_bytes(),
                &mut signature,
            )
            .map_err(|_| KeyError::Sign)?;
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(signature));
        Ok(token)
    }
}

fn components(pair: &RsaKeyPair) -> (String, String) {
    let public: RsaPublicKeyComponents<Vec<u8>> = pair.public().into();
    (
        URL_SAFE_NO_PAD.encode(public.n),
        URL_SAFE_NO_PAD.encode(public.e),
    )
}

/// How keys change by an operator's hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// The new key signs once verifiers had time to learn of it; tokens stay good.
    Overlapping,
    /// The new key signs at once and the others are withdrawn: for keys that somebody else may have. Tokens
    /// that they signed are refused as soon as verifiers read the list of keys again.
    AtOnce,
}

/// All keys that are published, in the order in which they sign.
#[derive(Debug, Clone, Default)]
pub struct KeySet {
    pub(crate) keys: Vec<std::sync::Arc<SigningKey>>,
}

impl KeySet {
    /// The key that signs now. After a clock that went back, the oldest there is.
    pub fn signing(&self, now: i64) -> Option<&std::sync::Arc<SigningKey>> {
        let due = self.keys.iter().rev().find(|key| key.signs_from <= now);
        due.or(self.keys.first())
    }

    pub fn jwks(&self) -> Jwks {
        Jwks {
            keys: self.keys.iter().map(|key| key.jwk()).collect(),
        }
    }

    /// Without those that have ended and that nobody has removed yet.
    pub fn published(&self, now: i64) -> Jwks {
        let living = self.keys.iter().skip(self.ended(now));
        Jwks {
            keys: living.map(|key| key.jwk()).collect(),
        }
    }

    /// Since when the next key must be there and has to sign, if there is to be one now.
    fn due(&self, now: i64) -> Option<i64> {
        match self.keys.last() {
            None => Some(now),
            Some(newest) => (now >= newest.signs_from + ROTATE_AFTER_S - PUBLISH_AHEAD_S)
                .then_some(now + PUBLISH_AHEAD_S),
        }
    }

    /// Whether [`KeySet::tend`] would change something.
    pub fn is_due(&self, now: i64) -> bool {
        self.due(now).is_some() || self.ended(now) > 0
    }

    /// How many of the oldest have signed nothing that is still good.
    fn ended(&self, now: i64) -> usize {
        let successors = self.keys.iter().skip(1);
        successors
            .take_while(|successor| successor.signs_from + OVERLAP_S < now)
            .count()
    }

    /// Makes the next key when it is time and removes what has ended. Makes the first one as well.
    pub fn tend(&mut self, now: i64) -> Result<(), KeyError> {
        if let Some(signs_from) = self.due(now) {
            self.add(now, signs_from)?;
        }
        self.keys.drain(..self.ended(now));
        Ok(())
    }

    pub fn rotate(&mut self, now: i64, how: Rotation) -> Result<(), KeyError> {
        match how {
            Rotation::Overlapping => self.add(now, now + PUBLISH_AHEAD_S),
            Rotation::AtOnce => {
                self.keys = vec![SigningKey::generate(now, now)?.into()];
                Ok(())
            }
        }
    }

    fn add(&mut self, now: i64, signs_from: i64) -> Result<(), KeyError> {
        if self.keys.len() >= KEYS_MAX {
            return Err(KeyError::TooMany);
        }
        self.keys
            .push(SigningKey::generate(now, signs_from)?.into());
        Ok(())
    }
}
