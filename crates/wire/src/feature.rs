//! Names for what a peer must be able to enforce.

use serde::{Deserialize, Serialize};

use crate::limits::{FEATURE_BYTES_MAX, FEATURES_MAX};

/// Something that a message may restrict: a kind of limit, of network policy, of fence. Its name is forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Feature(&'static str);

impl Feature {
    /// Refuses to compile with a name that could not be sent.
    pub const fn new(name: &'static str) -> Self {
        assert!(
            is_name(name.as_bytes()),
            "the name of a feature is lowercase letters, digits and hyphens"
        );
        Self(name)
    }

    pub const fn name(self) -> &'static str {
        self.0
    }
}

pub(crate) const fn is_name(name: &[u8]) -> bool {
    let mut at = 0;
    while at < name.len() {
        if !matches!(name[at], b'a'..=b'z' | b'0'..=b'9' | b'-') {
            return false;
        }
        at += 1;
    }
    !name.is_empty() && name.len() <= FEATURE_BYTES_MAX
}

/// The features that one message needs, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs(Vec<Feature>);

impl Needs {
    pub fn add(&mut self, feature: Feature) -> &mut Self {
        if !self.0.contains(&feature) {
            self.0.push(feature);
        }
        self
    }

    pub fn add_if(&mut self, needed: bool, feature: Feature) -> &mut Self {
        if needed {
            self.add(feature);
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = Feature> + '_ {
        self.0.iter().copied()
    }

    pub fn names(&self) -> Vec<String> {
        self.iter().map(|it| it.name().to_owned()).collect()
    }

    /// Whether a peer with these features can do all of it.
    pub fn are_among(&self, features: &[Feature]) -> bool {
        self.0.iter().all(|needed| features.contains(needed))
    }
}

/// The message was refused: it would have been weakened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("the receiving process lacks the features: {}", .features.join(", "))]
pub struct Missing {
    pub features: Vec<String>,
}

/// Refuses what is not among `known`. More names than there can be are refused as well.
pub fn check<'a>(
    known: &[Feature],
    needed: impl IntoIterator<Item = &'a str>,
) -> Result<(), Missing> {
    let lacks = |name: &&str| !known.iter().any(|feature| feature.name() == *name);
    let missing = needed.into_iter().filter(lacks);
    let features: Vec<String> = missing.take(FEATURES_MAX).map(shown).collect();
    match features.is_empty() {
        true => Ok(()),
        false => Err(Missing { features }),
    }
}

/// A name as it may stand in a log or an error, whoever chose it.
fn shown(name: &str) -> String {
    match is_name(name.as_bytes()) {
        true => name.to_owned(),
        false => "(not a name)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Feature = Feature::new("a");
    const B: Feature = Feature::new("b-2");

    #[test]
    fn what_is_not_known_is_missing_by_its_name() {
        assert_eq!(check(&[A, B], ["b-2", "a"]), Ok(()));
        let missing = check(&[A], ["a", "b-2", "c"]).expect_err("two are missing");
        assert_eq!(missing.features, ["b-2", "c"]);
        let missing = check(&[], ["\u{1b}[2J"]).expect_err("no name at all");
        assert_eq!(missing.features, ["(not a name)"]);
    }

    #[test]
    fn a_need_is_named_once() {
        let mut needs = Needs::default();
        needs.add(A).add_if(false, B).add(A);
        assert_eq!(needs.names(), ["a"]);
        assert!(needs.are_among(&[A]) && !needs.are_among(&[B]));
    }
}
