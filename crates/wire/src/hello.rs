//! What a side says about itself, and what it accepts of the other.

use serde::{Deserialize, Serialize};

use crate::feature::{self, Feature, Missing, Needs};
use crate::limits::{FEATURES_MAX, HELLO_BYTES_MAX};

/// The first thing on a connection, in the same write as the first message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of the wire whose form the message has: the lowest that can carry it.
    pub version: u32,
    /// What the sender has.
    #[serde(default)]
    pub features: Vec<String>,
    /// What the receiver must have to take the message.
    #[serde(default)]
    pub needs: Vec<String>,
}

/// One side of one wire, as this build speaks it.
#[derive(Debug, Clone, Copy)]
pub struct Side {
    pub wire: &'static str,
    pub version: u32,
    /// The oldest version whose form is still understood.
    pub oldest: u32,
    pub features: &'static [Feature],
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    #[error(
        "the message has the form of version {theirs} of the {wire} wire, and this process understands {oldest} to {newest}"
    )]
    Version {
        wire: String,
        theirs: u32,
        oldest: u32,
        newest: u32,
    },
    #[error(transparent)]
    Missing(#[from] Missing),
}

/// The bytes are no hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the hello at the beginning of the connection cannot be read")]
pub struct BadHello;

impl Side {
    /// What this side says before a message that needs these features.
    pub fn hello(&self, needs: &Needs) -> Hello {
        Hello {
            version: self.version,
            features: self.names(),
            needs: needs.names(),
        }
    }

    pub fn names(&self) -> Vec<String> {
        let names = self.features.iter().map(|it| it.name().to_owned());
        names.collect()
    }

    pub fn accept(&self, hello: &Hello) -> Result<(), Refusal> {
        self.accept_version(hello.version)?;
        Ok(self.accept_needs(hello.needs.iter().map(String::as_str))?)
    }

    pub fn accept_version(&self, theirs: u32) -> Result<(), Refusal> {
        match (self.oldest..=self.version).contains(&theirs) {
            true => Ok(()),
            false => Err(Refusal::Version {
                wire: self.wire.to_owned(),
                theirs,
                oldest: self.oldest,
                newest: self.version,
            }),
        }
    }

    pub fn accept_needs<'a>(
        &self,
        needed: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Missing> {
        feature::check(self.features, needed)
    }

    /// [`Side::accept_needs`] for what a message needs by its content, whatever its sender named.
    pub fn accept_content(&self, needs: &Needs) -> Result<(), Missing> {
        self.accept_needs(needs.iter().map(Feature::name))
    }
}

impl Hello {
    /// Appends the hello to `out`, after its length. What later versions append to a hello is skipped by those who
    /// do not know it.
    ///
    /// ```text
    /// length: u16 │ version: u32 │ features: u8 × (u8, name) │ needs: u8 × (u8, name)     little-endian
    /// ```
    pub fn put(&self, out: &mut Vec<u8>) -> Result<(), BadHello> {
        let begin = out.len();
        out.extend([0; 2]);
        out.extend(self.version.to_le_bytes());
        put_names(&self.features, out)?;
        put_names(&self.needs, out)?;
        let length = out.len() - begin - 2;
        if length > HELLO_BYTES_MAX {
            return Err(BadHello);
        }
        let length = u16::try_from(length).map_err(|_| BadHello)?;
        out[begin..begin + 2].copy_from_slice(&length.to_le_bytes());
        Ok(())
    }

    /// The hello at the beginning of `bytes`, and what comes after it.
    pub fn take(bytes: &[u8]) -> Result<(Self, &[u8]), BadHello> {
        let (length, rest) = bytes.split_first_chunk().ok_or(BadHello)?;
        let length = usize::from(u16::from_le_bytes(*length));
        if length > HELLO_BYTES_MAX {
            return Err(BadHello);
        }
        let (mut hello, rest) = rest.split_at_checked(length).ok_or(BadHello)?;
        let (version, after) = hello.split_first_chunk().ok_or(BadHello)?;
        hello = after;
        let taken = Self {
            version: u32::from_le_bytes(*version),
            features: take_names(&mut hello)?,
            needs: take_names(&mut hello)?,
        };
        Ok((taken, rest))
    }
}

fn put_names(names: &[String], out: &mut Vec<u8>) -> Result<(), BadHello> {
    if names.len() > FEATURES_MAX || !names.iter().all(|it| feature::is_name(it.as_bytes())) {
        return Err(BadHello);
    }
    out.push(u8::try_from(names.len()).map_err(|_| BadHello)?);
    for name in names {
        out.push(u8::try_from(name.len()).map_err(|_| BadHello)?);
        out.extend(name.as_bytes());
    }
    Ok(())
}

fn take_names(bytes: &mut &[u8]) -> Result<Vec<String>, BadHello> {
    let count = usize::from(take_byte(bytes)?);
    if count > FEATURES_MAX {
        return Err(BadHello);
    }
    let mut names = Vec::new();
    for _ in 0..count {
        let length = usize::from(take_byte(bytes)?);
        let (name, rest) = bytes.split_at_checked(length).ok_or(BadHello)?;
        *bytes = rest;
        match std::str::from_utf8(name) {
            Ok(name) if feature::is_name(name.as_bytes()) => names.push(name.to_owned()),
            _ => return Err(BadHello),
        }
    }
    Ok(names)
}

fn take_byte(bytes: &mut &[u8]) -> Result<u8, BadHello> {
    let (byte, rest) = bytes.split_first().ok_or(BadHello)?;
    *bytes = rest;
    Ok(*byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Feature = Feature::new("limit");
    const FENCE: Feature = Feature::new("fence");
    const OLDER: Side = Side {
        wire: "test",
        version: 3,
        oldest: 2,
        features: &[LIMIT],
    };
    const NEWER: Side = Side {
        version: 4,
        features: &[LIMIT, FENCE],
        ..OLDER
    };

    fn needing(feature: Feature) -> Needs {
        let mut needs = Needs::default();
        needs.add(feature);
        needs
    }

    #[test]
    fn a_new_restriction_at_an_older_side_is_refused_by_name() {
        let mut hello = NEWER.hello(&needing(FENCE));
        // The form did not change, only what is asked.
        hello.version = OLDER.version;
        let refusal = OLDER.accept(&hello).expect_err("it lacks the feature");
        let features = vec!["fence".to_owned()];
        assert_eq!(refusal, Refusal::Missing(Missing { features }));
        NEWER.accept(&hello).expect("it has the feature");
        hello.needs = needing(LIMIT).names();
        OLDER.accept(&hello).expect("both have it");
    }

    #[test]
    fn the_version_before_is_understood_and_the_next_is_not() {
        for (version, understood) in [(1, false), (2, true), (3, true), (4, false)] {
            assert_eq!(OLDER.accept_version(version).is_ok(), understood);
        }
    }

    #[test]
    fn what_a_later_version_appends_is_skipped() {
        let hello = NEWER.hello(&needing(LIMIT));
        let mut bytes = Vec::new();
        hello.put(&mut bytes).expect("it fits");
        let later = b"informational";
        let length = u16::try_from(bytes.len() - 2 + later.len()).expect("it fits");
        bytes.extend(later);
        bytes[..2].copy_from_slice(&length.to_le_bytes());
        bytes.extend(b"message");
        assert_eq!(Hello::take(&bytes), Ok((hello, &b"message"[..])));
    }

    fn names() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec("[a-z0-9-]{1,64}", 0..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_hello_is_read_as_it_was_written(
            version in any::<u32>(), features in names(), needs in names(), message in any::<Vec<u8>>(),
        ) {
            let hello = Hello { version, features, needs };
            let mut bytes = Vec::new();
            prop_assert_eq!(hello.put(&mut bytes), Ok(()));
            for end in 0..bytes.len() {
                prop_assert_eq!(Hello::take(&bytes[..end]), Err(BadHello));
            }
            bytes.extend(&message);
            prop_assert_eq!(Hello::take(&bytes), Ok((hello, &message[..])));
        }

        #[test]
        fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok((hello, _)) = Hello::take(&bytes) {
                prop_assert!(hello.features.len() <= FEATURES_MAX);
                prop_assert!(hello.put(&mut Vec::new()).is_ok());
            }
        }
    }
}
