//! Join tokens: a secret that both sides know, and the fingerprint of the fleet's authority.
//!
//! The secret never travels. Each side proves that it knows it, over everything it says: whoever sits between a new
//! node and control can neither take the token's place nor change a byte.

use ring::hmac::{self, HMAC_SHA256};
use zeroize::Zeroizing;

use crate::NodeError;
use crate::authority::fingerprint;

const PREFIX: &str = "covejoin_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;
const FINGERPRINT_BYTES: usize = 32;

/// As the operator carries it from control to the new node.
pub struct JoinToken {
    pub id: String,
    pub key: TokenKey,
    authority: [u8; FINGERPRINT_BYTES],
}

impl JoinToken {
    pub fn make(authority: &str) -> Result<Self, NodeError> {
        Ok(Self {
            id: hex::encode(rand::random::<[u8; ID_BYTES]>()),
            key: TokenKey(Zeroizing::new(rand::random())),
            authority: fingerprint(authority)?,
        })
    }

    pub fn parse(text: &str) -> Result<Self, NodeError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(NodeError::Token)?;
        let bytes = Zeroizing::new(hex::decode(digits).map_err(|_| NodeError::Token)?);
        let (id, rest) = bytes
            .split_first_chunk::<ID_BYTES>()
            .ok_or(NodeError::Token)?;
        let (secret, rest) = rest
            .split_first_chunk::<SECRET_BYTES>()
            .ok_or(NodeError::Token)?;
        Ok(Self {
            id: hex::encode(id),
            key: TokenKey(Zeroizing::new(*secret)),
            authority: rest.try_into().map_err(|_| NodeError::Token)?,
        })
    }

    pub fn text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(hex::encode(&self.key.0[..]));
        let authority = hex::encode(self.authority);
        Zeroizing::new(format!("{PREFIX}{}{}{authority}", self.id, *secret))
    }

    /// Whether this is the authority that the token was made for.
    pub fn pins(&self, authority: &str) -> bool {
        fingerprint(authority).is_ok_and(|found| found == self.authority)
    }
}

/// The secret of one token.
pub struct TokenKey(Zeroizing<[u8; SECRET_BYTES]>);

impl TokenKey {
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(|key| Self(Zeroizing::new(key)))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0[..]
    }

    /// Each part counts with its length, so that no byte can move from one to the next.
    pub(crate) fn prove(&self, purpose: &str, parts: &[&[u8]]) -> String {
        hex::encode(hmac::sign(&self.hmac(), &message(purpose, parts)))
    }

    /// Takes the same time whatever the proof is.
    pub(crate) fn verify(&self, purpose: &str, parts: &[&[u8]], proof: &str) -> bool {
        let Ok(proof) = hex::decode(proof) else {
            return false;
        };
        hmac::verify(&self.hmac(), &message(purpose, parts), &proof).is_ok()
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(HMAC_SHA256, &self.0[..])
    }
}

fn message(purpose: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut message = Vec::new();
    for part in std::iter::once(&purpose.as_bytes()).chain(parts) {
        message.extend((part.len() as u64).to_le_bytes());
        message.extend(*part);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;

    #[test]
    fn a_token_survives_being_written_down_and_pins_its_authority() {
        let (ours, theirs) = (Authority::make("a").unwrap(), Authority::make("b").unwrap());
        let token = JoinToken::make(&ours.certificate).unwrap();
        let read = JoinToken::parse(&format!(" {}\n", *token.text())).unwrap();
        assert_eq!(read.id, token.id);
        assert!(read.pins(&ours.certificate));
        assert!(!read.pins(&theirs.certificate));
        let proof = token.key.prove("join", &[b"ab", b"c"]);
        assert!(read.key.verify("join", &[b"ab", b"c"], &proof));
        for (purpose, parts) in [("answer", [&b"ab"[..], b"c"]), ("join", [b"a", b"bc"])] {
            assert!(!read.key.verify(purpose, &parts, &proof));
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let whole = JoinToken::make(&Authority::make("a").unwrap().certificate).unwrap();
        let whole = whole.text();
        for length in 0..whole.len() {
            assert!(JoinToken::parse(&whole[..length]).is_err());
        }
        assert!(JoinToken::parse(&format!("{}00", *whole)).is_err());
        assert!(JoinToken::parse(&whole.replace("covejoin_", "cove_")).is_err());
    }
}
