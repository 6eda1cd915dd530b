//! The keys of one organisation, as the database holds them: public halves, and the rest wrapped.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cove_model::OrgId;
use cove_model::secret::{OrgKeys, WrappedKeys};
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable, Kem, Serializable};
use zeroize::Zeroizing;

use crate::host_key::HostKeys;
use crate::sealed::{self, About};
use crate::{VaultError, authority};

const PRIVATE_BYTES: usize = 32;

/// For one organisation's terminator alone.
pub struct OpenedKeys {
    opening: Zeroizing<Vec<u8>>,
    /// PKCS #8.
    authority: Zeroizing<Vec<u8>>,
}

/// New keys of an organisation, wrapped by the newest host key.
pub fn make_keys(org: &OrgId, host: &HostKeys) -> Result<OrgKeys, VaultError> {
    let seed = Zeroizing::new(rand::random::<[u8; PRIVATE_BYTES]>());
    let (private, public) = X25519HkdfSha256::derive_keypair(&seed[..]);
    let opening = Zeroizing::new(private.to_bytes().to_vec());
    let (certificate, key) = authority::make(org.as_str())?;
    let mut keys = OrgKeys {
        org: org.clone(),
        public: STANDARD.encode(public.to_bytes()),
        authority: certificate,
        wrapped: WrappedKeys {
            host_key: String::new(),
            bytes: String::new(),
        },
    };
    let plain = Zeroizing::new([&opening[..], key.serialized_der()].concat());
    keys.wrapped = host.wrap(&about(&keys)?, &plain)?;
    Ok(keys)
}

/// The same keys, wrapped by the newest host key.
pub fn rewrap_keys(keys: &OrgKeys, host: &HostKeys) -> Result<OrgKeys, VaultError> {
    let opened = OpenedKeys::unwrap(keys, host)?;
    let plain = Zeroizing::new([&opened.opening[..], &opened.authority].concat());
    Ok(OrgKeys {
        wrapped: host.wrap(&about(keys)?, &plain)?,
        ..keys.clone()
    })
}

/// What the wrapped bytes belong to: keys of one organisation cannot be passed off as another's.
fn about(keys: &OrgKeys) -> Result<Vec<u8>, VaultError> {
    let OrgKeys {
        org,
        public,
        authority,
        wrapped: _,
    } = keys;
    let about = ("cove organisation keys 1", org, public, authority);
    serde_json::to_vec(&about).map_err(|error| VaultError::Make(error.to_string()))
}

impl OpenedKeys {
    pub fn unwrap(keys: &OrgKeys, host: &HostKeys) -> Result<Self, VaultError> {
        let refused = || VaultError::Wrapped {
            org: keys.org.to_string(),
        };
        let plain = host.unwrap(&about(keys)?, &keys.wrapped)?;
        let plain = plain.ok_or_else(refused)?;
        let (opening, authority) = plain.split_at_checked(PRIVATE_BYTES).ok_or_else(refused)?;
        Ok(Self::from_parts(opening.to_vec(), authority.to_vec()))
    }

    /// From what [`OpenedKeys::parts`] gave, on the other side of a socket.
    pub fn from_parts(opening: Vec<u8>, authority: Vec<u8>) -> Self {
        Self {
            opening: Zeroizing::new(opening),
            authority: Zeroizing::new(authority),
        }
    }

    /// The opening key and the authority's.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        (&self.opening, &self.authority)
    }

    pub fn authority_key(&self) -> Result<rcgen::KeyPair, VaultError> {
        let key = self.authority.as_slice();
        rcgen::KeyPair::try_from(key).map_err(|error| VaultError::Make(error.to_string()))
    }

    pub fn open(&self, about: &About<'_>, sealed: &str) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let key = <X25519HkdfSha256 as Kem>::PrivateKey::from_bytes(&self.opening);
        sealed::open(&key.map_err(|_| VaultError::Sealed)?, about, sealed)
    }
}
