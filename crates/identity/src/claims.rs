//! What a token says.

use std::collections::BTreeMap;

use cove_limits::AUDIENCE_MAX;
use serde::{Deserialize, Serialize};

/// Labels beyond this many bytes are left out of tokens: a token travels in a header.
const LABEL_BYTES_MAX: usize = 2048;

/// The claims of a sandbox's token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    pub iss: String,
    /// The sandbox's SPIFFE id.
    pub sub: String,
    pub aud: String,
    pub iat: i64,
    pub nbf: i64,
    pub exp: i64,
    pub jti: String,
    pub cove: CoveClaims,
}

/// What Cove says about the sandbox, in one object so that it meets no registered claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoveClaims {
    pub org: String,
    pub sandbox: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The digest of the image it began from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The snapshot it began from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_snapshot: Option<String>,
    /// What it works on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// For whom it acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<String>,
    /// What it may do to itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// There are labels that are not in the token: too long, or the sandbox may have set them itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub labels_omitted: bool,
}

impl CoveClaims {
    /// Sets the labels, or says that they were left out. A verifier that needs one then refuses.
    pub fn set_labels(&mut self, labels: &BTreeMap<String, String>) {
        let bytes: usize = labels
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        self.labels_omitted = bytes > LABEL_BYTES_MAX;
        self.labels = match self.labels_omitted {
            true => BTreeMap::new(),
            false => labels.clone(),
        };
    }
}

/// Why a text cannot be the audience of a token. One audience per token, in a form that every verifier
/// compares alike: visible ASCII, so that no two different texts look or fold the same.
pub fn audience_problem(audience: &str) -> Option<String> {
    if audience.is_empty() || audience.len() > AUDIENCE_MAX {
        return Some(format!(
            "audience must have 1 to {AUDIENCE_MAX} bytes, not {}",
            audience.len()
        ));
    }
    if !audience.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Some("audience must be visible ASCII without spaces".into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audience_is_one_plain_text() {
        for good in [
            "sts.amazonaws.com",
            "//iam.googleapis.com/projects/1",
            "api://AzureADTokenExchange",
        ] {
            assert_eq!(audience_problem(good), None);
        }
        for bad in [
            "",
            "a b",
            "a\n",
            "a\0b",
            "ä",
            "a\u{200b}",
            &"a".repeat(AUDIENCE_MAX + 1),
        ] {
            assert!(audience_problem(bad).is_some(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn long_labels_are_left_out_and_that_is_said() {
        let mut claims = CoveClaims::default();
        let short = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        claims.set_labels(&short);
        assert_eq!((&claims.labels, claims.labels_omitted), (&short, false));
        let long = BTreeMap::from([("team".to_owned(), "a".repeat(LABEL_BYTES_MAX))]);
        claims.set_labels(&long);
        assert!(claims.labels.is_empty() && claims.labels_omitted);
    }
}
