//! The key this host signs exported snapshots with, made once per data directory, and the keys whose
//! signatures it trusts.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cove_parser::Signature;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

pub const KEY_BYTES: usize = 32;

/// Signs, and says whom to believe.
pub struct Keys {
    pair: Ed25519KeyPair,
    trusted: Vec<[u8; KEY_BYTES]>,
}

/// Why a signature counts for nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    #[error("it is signed by the key {key}, which this host does not trust")]
    Stranger { key: String },
    #[error("its signature does not match its content")]
    Forged,
}

impl Keys {
    pub fn open(data_dir: &Path, trusted: &[[u8; KEY_BYTES]]) -> io::Result<Self> {
        let path = data_dir.join("signing.key");
        let pair = match fs::read(&path) {
            Ok(bytes) => parse(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(data_dir, &path)?,
            Err(error) => return Err(error),
        };
        Ok(Self {
            pair,
            trusted: trusted.to_vec(),
        })
    }

    /// Names this host to those who want to trust it.
    pub fn public(&self) -> String {
        hex::encode(self.pair.public_key().as_ref())
    }

    pub fn sign(&self, message: &[u8]) -> String {
        hex::encode(self.pair.sign(message).as_ref())
    }

    pub fn check(&self, signed: Option<&Signature>, message: &[u8]) -> Result<(), Untrusted> {
        let Signature { key, signature } = signed.ok_or(Untrusted::Forged)?;
        let known = key == self.pair.public_key().as_ref() || self.trusted.contains(key);
        if !known {
            return Err(Untrusted::Stranger {
                key: hex::encode(key),
            });
        }
        UnparsedPublicKey::new(&ED25519, key)
            .verify(message, signature)
            .map_err(|_| Untrusted::Forged)
    }
}

fn parse(bytes: &[u8]) -> io::Result<Ed25519KeyPair> {
    Ed25519KeyPair::from_pkcs8(bytes).map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("signing.key is damaged: {error}"),
        )
    })
}

fn make(data_dir: &Path, path: &Path) -> io::Result<Ed25519KeyPair> {
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| io::Error::other("the system provides no random data"))?;
    let draft = data_dir.join("signing.key.new");
    let _ = fs::remove_file(&draft);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    file.write_all(document.as_ref())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    fs::File::open(data_dir)?.sync_all()?;
    parse(document.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(keys: &Keys, message: &[u8]) -> Signature {
        Signature {
            key: keys.pair.public_key().as_ref().try_into().unwrap(),
            signature: keys.pair.sign(message).as_ref().try_into().unwrap(),
        }
    }

    #[test]
    fn a_key_is_made_once_and_only_its_own_signatures_fit() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path(), &[]).unwrap();
        let again = Keys::open(dir.path(), &[]).unwrap();
        assert_eq!(keys.public(), again.public());
        let good = signed(&keys, b"message");
        assert_eq!(hex::encode(good.signature), keys.sign(b"message"));
        again.check(Some(&good), b"message").unwrap();
        let empty = Signature {
            signature: [0; 64],
            ..good.clone()
        };
        for (signature, message) in [
            (Some(&good), &b"another"[..]),
            (Some(&empty), b"message"),
            (None, b"message"),
        ] {
            assert_eq!(again.check(signature, message), Err(Untrusted::Forged));
        }
    }

    #[test]
    fn strangers_are_believed_only_when_listed() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stranger = Keys::open(theirs.path(), &[]).unwrap();
        let signature = signed(&stranger, b"message");
        let keys = Keys::open(ours.path(), &[]).unwrap();
        assert_eq!(
            keys.check(Some(&signature), b"message"),
            Err(Untrusted::Stranger {
                key: stranger.public()
            })
        );
        let keys = Keys::open(ours.path(), &[signature.key]).unwrap();
        keys.check(Some(&signature), b"message").unwrap();
    }
}
