//! The key of one organisation: names of chunks, and how they are sealed.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use zeroize::Zeroizing;

use crate::ObjectsError;

const KEY_BYTES: usize = 32;
/// The first byte of everything in the bucket.
const VERSION: u8 = 1;
/// How hard zstd tries. Three is its default; more costs CPU of the host for little.
const LEVEL: i32 = 3;

/// A chunk by its content, under the organisation's key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(&self.0[..6]))
    }
}

/// Names and seals what one organisation has in the bucket.
pub struct OrgKey {
    names: hmac::Key,
    /// Each object has a key of its own, derived from this one and its name.
    sealing: hmac::Key,
}

impl std::fmt::Debug for OrgKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OrgKey")
    }
}

impl OrgKey {
    /// New bytes for [`OrgKey::new`]. They are the caller's to wrap and keep.
    pub fn random() -> Zeroizing<Vec<u8>> {
        Zeroizing::new(rand::random::<[u8; KEY_BYTES]>().to_vec())
    }

    /// `None` when it has another length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != KEY_BYTES {
            return None;
        }
        let root = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let derived = |what: &[u8]| {
            let tag = hmac::sign(&root, what);
            hmac::Key::new(hmac::HMAC_SHA256, tag.as_ref())
        };
        Some(Self {
            names: derived(b"cove objects 1: names of chunks"),
            sealing: derived(b"cove objects 1: contents"),
        })
    }

    pub fn digest(&self, plain: &[u8]) -> Digest {
        let tag = hmac::sign(&self.names, plain);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(tag.as_ref());
        Digest(bytes)
    }

    fn key_of(&self, name: &str) -> Option<LessSafeKey> {
        let tag = hmac::sign(&self.sealing, name.as_bytes());
        let key = UnboundKey::new(&AES_256_GCM, tag.as_ref()).ok()?;
        Some(LessSafeKey::new(key))
    }

    /// Compressed, then encrypted and bound to its name.
    pub(crate) fn seal(&self, name: &str, plain: &[u8]) -> Result<Vec<u8>, ObjectsError> {
        let failed = |problem| ObjectsError::Damaged {
            name: name.to_owned(),
            problem,
        };
        let packed = zstd::bulk::compress(plain, LEVEL).map_err(|_| failed("not compressed"))?;
        let length = u32::try_from(plain.len()).map_err(|_| ObjectsError::TooLarge)?;
        let mut inside = Vec::with_capacity(4 + packed.len() + AES_256_GCM.tag_len());
        inside.extend_from_slice(&length.to_le_bytes());
        inside.extend_from_slice(&packed);
        let nonce: [u8; NONCE_LEN] = rand::random();
        let key = self.key_of(name).ok_or_else(|| failed("not encrypted"))?;
        key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(name.as_bytes()),
            &mut inside,
        )
        .map_err(|_| failed("not encrypted"))?;
        let mut whole = Vec::with_capacity(1 + NONCE_LEN + inside.len());
        whole.push(VERSION);
        whole.extend_from_slice(&nonce);
        whole.extend_from_slice(&inside);
        Ok(whole)
    }

    /// What [`OrgKey::seal`] made of at most `most` bytes, under the same key and name.
    pub(crate) fn open(
        &self,
        name: &str,
        sealed: &[u8],
        most: usize,
    ) -> Result<Vec<u8>, ObjectsError> {
        let damaged = |problem| ObjectsError::Damaged {
            name: name.to_owned(),
            problem,
        };
        let (version, rest) = sealed.split_first().ok_or_else(|| damaged("it is empty"))?;
        if *version != VERSION {
            return Err(damaged("it is of another version"));
        }
        let (nonce, rest) = rest
            .split_first_chunk::<NONCE_LEN>()
            .ok_or_else(|| damaged("it is truncated"))?;
        let mut inside = rest.to_vec();
        let key = self.key_of(name).ok_or_else(|| damaged("not decrypted"))?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = key
            .open_in_place(nonce, Aad::from(name.as_bytes()), &mut inside)
            .map_err(|_| damaged("it was changed, or belongs to another organisation"))?;
        let (length, packed) = plain
            .split_first_chunk::<4>()
            .ok_or_else(|| damaged("it is truncated"))?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > most {
            return Err(damaged("it is too long"));
        }
        let plain = zstd::bulk::decompress(packed, length).map_err(|_| damaged("not unpacked"))?;
        match plain.len() == length {
            true => Ok(plain),
            false => Err(damaged("its length is wrong")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(byte: u8) -> OrgKey {
        OrgKey::new(&[byte; KEY_BYTES]).unwrap()
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_under_its_key_and_name_alone(
            plain in proptest::collection::vec(any::<u8>(), 0..4096),
            flip in any::<prop::sample::Index>(),
        ) {
            let sealed = key(1).seal("a", &plain).unwrap();
            prop_assert_eq!(&key(1).open("a", &sealed, 4096).unwrap(), &plain);
            prop_assert!(key(1).open("b", &sealed, 4096).is_err());
            prop_assert!(key(2).open("a", &sealed, 4096).is_err());
            let mut changed = sealed.clone();
            changed[flip.index(sealed.len())] ^= 1;
            prop_assert!(key(1).open("a", &changed, 4096).is_err());
            prop_assert!(key(1).open("a", &sealed[..flip.index(sealed.len())], 4096).is_err());
            prop_assert_ne!(key(1).digest(&plain), key(2).digest(&plain));
        }
    }

    #[test]
    fn a_small_object_cannot_fill_memory() {
        let sealed = key(1).seal("a", &vec![0; 1 << 20]).unwrap();
        assert!(sealed.len() < 4096);
        assert!(key(1).open("a", &sealed, (1 << 20) - 1).is_err());
    }

    #[test]
    fn keys_of_another_length_are_refused() {
        assert!(OrgKey::new(&[0; 31]).is_none());
    }
}
