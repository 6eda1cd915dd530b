//! One secret, sealed to its organisation's public key (HPKE, RFC 9180, base mode).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cove_model::OrgId;
use cove_model::secret::SecretBinding;
use hpke::aead::ChaCha20Poly1305;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable, Kem, OpModeR, OpModeS, Serializable};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::VaultError;

const PURPOSE: &[u8] = b"cove secret 1";
const ENCAPSULATED_BYTES: usize = 32;

type Private = <X25519HkdfSha256 as Kem>::PrivateKey;
type Public = <X25519HkdfSha256 as Kem>::PublicKey;
type Encapsulated = <X25519HkdfSha256 as Kem>::EncappedKey;

/// What a value belongs to. It opens with exactly this.
#[derive(Debug, Clone, Serialize)]
pub struct About<'a> {
    pub org: &'a OrgId,
    pub name: &'a str,
    pub version: u64,
    pub binding: &'a SecretBinding,
}

impl About<'_> {
    fn bytes(&self) -> Result<Vec<u8>, VaultError> {
        serde_json::to_vec(self).map_err(|_| VaultError::Sealed)
    }
}

/// Each value has a key of its own, which only the organisation's opening key recovers.
pub fn seal(public: &str, about: &About<'_>, value: &[u8]) -> Result<String, VaultError> {
    let unusable = || VaultError::Make("the organisation's public key is invalid".into());
    let public = STANDARD.decode(public).map_err(|_| unusable())?;
    let public = Public::from_bytes(&public).map_err(|_| unusable())?;
    let (encapsulated, sealed) =
        hpke::single_shot_seal::<ChaCha20Poly1305, HkdfSha256, X25519HkdfSha256, _>(
            &OpModeS::Base,
            &public,
            PURPOSE,
            value,
            &about.bytes()?,
            &mut rand::rng(),
        )
        .map_err(|error| VaultError::Make(error.to_string()))?;
    let whole = [&encapsulated.to_bytes()[..], &sealed].concat();
    Ok(STANDARD.encode(whole))
}

pub(crate) fn open(
    key: &Private,
    about: &About<'_>,
    sealed: &str,
) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let whole = STANDARD.decode(sealed).map_err(|_| VaultError::Sealed)?;
    let parts = whole.split_at_checked(ENCAPSULATED_BYTES);
    let (encapsulated, sealed) = parts.ok_or(VaultError::Sealed)?;
    let encapsulated = Encapsulated::from_bytes(encapsulated).map_err(|_| VaultError::Sealed)?;
    let opened = hpke::single_shot_open::<ChaCha20Poly1305, HkdfSha256, X25519HkdfSha256>(
        &OpModeR::Base,
        key,
        &encapsulated,
        PURPOSE,
        sealed,
        &about.bytes()?,
    );
    opened.map(Zeroizing::new).map_err(|_| VaultError::Sealed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostKeys, OpenedKeys, make_keys, rewrap_keys};
    use cove_model::secret::OrgKeys;

    fn binding(host: &str) -> SecretBinding {
        SecretBinding {
            hosts: vec![host.parse().unwrap()],
            usage: "bearer".parse().unwrap(),
            ask: false,
            limits: Vec::new(),
        }
    }

    #[test]
    fn a_value_opens_with_what_it_was_sealed_for_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let host = HostKeys::load_or_make(&folder.path().join("secret.key")).unwrap();
        let (org, other) = (OrgId::random(), OrgId::random());
        let keys = make_keys(&org, &host).unwrap();
        let bound = binding("api.example");
        let about = About {
            org: &org,
            name: "github",
            version: 1,
            binding: &bound,
        };
        let sealed = seal(&keys.public, &about, b"canary").unwrap();
        assert!(!sealed.contains("canary"));
        let opened = OpenedKeys::unwrap(&keys, &host).unwrap();
        assert_eq!(&opened.open(&about, &sealed).unwrap()[..], b"canary");
        let elsewhere = binding("evil.example");
        let asking = SecretBinding {
            ask: true,
            ..bound.clone()
        };
        let limited = SecretBinding {
            limits: vec!["requests=1/day".parse().unwrap()],
            ..bound.clone()
        };
        for changed in [
            About {
                org: &other,
                ..about.clone()
            },
            About {
                name: "gitlab",
                ..about.clone()
            },
            About {
                version: 2,
                ..about.clone()
            },
            About {
                binding: &asking,
                ..about.clone()
            },
            About {
                binding: &limited,
                ..about.clone()
            },
            About {
                binding: &elsewhere,
                ..about.clone()
            },
        ] {
            assert!(opened.open(&changed, &sealed).is_err(), "{changed:?}");
        }
        // Another organisation's keys open nothing of it.
        let theirs = make_keys(&other, &host).unwrap();
        let theirs = OpenedKeys::unwrap(&theirs, &host).unwrap();
        assert!(theirs.open(&about, &sealed).is_err());
        // Nor do keys that were passed off as this one's.
        let forged = OrgKeys { org: other, ..keys };
        assert!(matches!(
            OpenedKeys::unwrap(&forged, &host).map(drop),
            Err(VaultError::Wrapped { .. })
        ));
    }

    #[test]
    fn a_new_host_key_wraps_and_the_old_one_still_unwraps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        let before = HostKeys::load_or_make(&path).unwrap();
        let keys = make_keys(&OrgId::random(), &before).unwrap();
        let old = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{}\n{old}", "5a".repeat(32))).unwrap();
        let both = HostKeys::load_or_make(&path).unwrap();
        let rewrapped = rewrap_keys(&keys, &both).unwrap();
        assert_ne!(rewrapped.wrapped.host_key, keys.wrapped.host_key);
        std::fs::write(&path, "5a".repeat(32)).unwrap();
        let new = HostKeys::load_or_make(&path).unwrap();
        OpenedKeys::unwrap(&rewrapped, &new).unwrap();
        assert!(matches!(
            OpenedKeys::unwrap(&keys, &new).map(drop),
            Err(VaultError::OtherHostKey { .. })
        ));
    }

    #[test]
    fn a_host_key_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        HostKeys::load_or_make(&path).unwrap();
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode(0o644)).unwrap();
        let refused = HostKeys::load_or_make(&path).map(drop);
        assert!(matches!(refused, Err(VaultError::HostKey { .. })));
        let command = ["echo".to_owned(), "5a".repeat(32)];
        assert!(HostKeys::from_command(&command).is_ok());
        let failing = ["false".to_owned()];
        assert!(HostKeys::from_command(&failing).is_err());
    }
}
