//! What a sandbox can learn and do about itself, at the address that answers for Cove inside it.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::spec::{SpecError, identity_text};

/// Where a sandbox with an identity finds the metadata endpoint. Link-local, and not that of the clouds: tools
/// that look for a cloud there must not take us for one.
pub const METADATA_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 100, 100);
/// Not 80: a listener on one address keeps programs inside from listening on that port of all addresses, and web
/// servers do that. This one is registered for nothing and not in the range of ports for outgoing connections.
pub const METADATA_PORT: u16 = 16910;
/// The name of that address in `/etc/hosts`.
pub const METADATA_NAME: &str = "cove.internal";

/// An operation that a sandbox may do to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// Take a snapshot of its disk.
    Snapshot,
    /// Make a copy of itself.
    Fork,
    /// Postpone its idle rules.
    KeepAwake,
    /// Change its labels.
    Label,
    /// Delete itself.
    End,
}

impl Grant {
    pub const ALL: [Grant; 5] = [
        Grant::Snapshot,
        Grant::Fork,
        Grant::KeepAwake,
        Grant::Label,
        Grant::End,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Fork => "fork",
            Self::KeepAwake => "keep_awake",
            Self::Label => "label",
            Self::End => "end",
        }
    }
}

/// The identity of a sandbox: with it, the metadata endpoint is there inside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Identity"))]
#[serde(deny_unknown_fields, default)]
pub struct IdentitySpec {
    /// Operations that it may do to itself. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 5)))]
    pub grants: Vec<Grant>,
    /// Its task; a claim of its tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = cove_limits::IDENTITY_TEXT_MAX)))]
    pub task: Option<String>,
    /// Person or service that it acts for; a claim of its tokens. Needs a key with the scope
    /// `admin`, because verifiers trust it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = cove_limits::IDENTITY_TEXT_MAX)))]
    pub on_behalf_of: Option<String>,
}

impl IdentitySpec {
    pub fn allows(&self, grant: Grant) -> bool {
        self.grants.contains(&grant)
    }

    pub fn check(&self) -> Result<(), SpecError> {
        let mut seen = self.grants.clone();
        seen.sort_unstable();
        seen.dedup();
        if seen.len() != self.grants.len() {
            return Err(SpecError::Field {
                field: "identity.grants",
                problem: "names a grant twice".into(),
            });
        }
        for (field, text) in [
            ("identity.task", &self.task),
            ("identity.on_behalf_of", &self.on_behalf_of),
        ] {
            if let Some(text) = text {
                identity_text(field, text)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_names_each_grant_once_and_plain_texts() {
        let grants = |grants: &[Grant]| IdentitySpec {
            grants: grants.to_vec(),
            ..IdentitySpec::default()
        };
        grants(&Grant::ALL).check().unwrap();
        grants(&[Grant::End, Grant::End]).check().unwrap_err();
        for bad in ["", "a\nb", &"a".repeat(cove_limits::IDENTITY_TEXT_MAX + 1)] {
            let named = IdentitySpec {
                on_behalf_of: Some(bad.to_owned()),
                ..IdentitySpec::default()
            };
            assert!(named.check().is_err(), "{bad:?} was accepted");
        }
        for grant in Grant::ALL {
            let text = serde_json::to_string(&grant).unwrap();
            assert_eq!(text, format!("\"{}\"", grant.as_str()));
        }
        serde_json::from_str::<IdentitySpec>(r#"{"grant":["end"]}"#).unwrap_err();
        serde_json::from_str::<IdentitySpec>(r#"{"grants":["admin"]}"#).unwrap_err();
    }
}
