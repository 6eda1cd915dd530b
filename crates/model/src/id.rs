//! Prefixed random ids (`sbx_…`, `img_…`): 100 bits of randomness in 20 lowercase base32 letters,
//! so that nobody can guess a neighbour's and a person can tell what an id names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const RANDOM_CHARS: usize = 20;

/// An id that does not have the form its type asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{given}' is not a valid id: expected {prefix}_ followed by {RANDOM_CHARS} letters a-z or digits 2-7"
)]
pub struct InvalidId {
    given: String,
    prefix: &'static str,
}

fn random_part(bits: u128) -> String {
    (0..RANDOM_CHARS)
        .map(|i| ALPHABET[((bits >> (5 * i)) & 31) as usize] as char)
        .collect()
}

fn is_valid(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('_'))
        .is_some_and(|rest| {
            rest.len() == RANDOM_CHARS && rest.bytes().all(|b| ALPHABET.contains(&b))
        })
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// A new id nobody has had before.
            pub fn random() -> Self {
                Self::of(rand::random())
            }

            /// The id of these bits, for programs with a source of randomness of their own.
            pub fn of(bits: u128) -> Self {
                Self(format!("{}_{}", $prefix, random_part(bits)))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether `text` has this id's form; cheaper than parsing when names and ids share a place.
            pub fn matches(text: &str) -> bool {
                is_valid(text, $prefix)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                if is_valid(text, $prefix) {
                    Ok(Self(text.to_owned()))
                } else {
                    let given = text.chars().take(64).collect();
                    Err(InvalidId { given, prefix: $prefix })
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

id!(
    /// One sandbox, for its whole life: pause, rollback and migration keep it.
    SandboxId, "sbx"
);
id!(
    /// One immutable state of a sandbox's disk, with memory or without.
    SnapshotId, "snap"
);
id!(
    /// One volume: a directory that outlives sandboxes.
    VolumeId, "vol"
);
id!(
    /// One version of a template.
    TemplateId, "tpl"
);
id!(
    /// A build of a template.
    BuildId, "bld"
);
id!(
    /// One image on a host.
    ImageId, "img"
);
id!(
    /// One process the guest started; unlike a pid it is never used twice.
    ProcessId, "prc"
);
id!(
    /// One API key (not the key itself).
    KeyId, "key"
);
id!(
    /// One stored secret.
    SecretId, "sec"
);
id!(
    /// One request with a secret that somebody must agree to.
    ApprovalId, "apr"
);
id!(
    /// One organisation, the unit of tenancy.
    OrgId, "org"
);
id!(
    /// One host: a data directory with the sandboxes, snapshots and images in it. It keeps its id when it is
    /// rebooted, upgraded, or moved to another machine as a whole.
    HostId, "host"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_id_parses_back() {
        let id = SandboxId::random();
        assert_eq!(id.as_str().parse::<SandboxId>().unwrap(), id);
        assert_ne!(SandboxId::random(), id);
    }

    #[test]
    fn foreign_prefixes_and_odd_characters_are_refused() {
        for bad in [
            "",
            "sbx_",
            "img_aaaaaaaaaaaaaaaaaaaa",
            "sbx_aaaaaaaaaaaaaaaaaaa",
            "sbx_aaaaaaaaaaaaaaaaaaaaa",
            "sbx_aaaaaaaaaaaaaaaaaaa/",
            "sbx_AAAAAAAAAAAAAAAAAAAA",
            "sbx-aaaaaaaaaaaaaaaaaaaa",
        ] {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad:?} was accepted");
        }
    }
}
