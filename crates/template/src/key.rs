//! Names of states: a hash over everything that a step depends on.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// Counts up when the same step comes to mean something else.
const VERSION: &str = "1";

/// The name of the state after a step, in hexadecimal.
pub type Key = String;

/// Every field is written with its length, so that no two lists of fields look alike.
pub struct Hasher(Sha256);

impl Hasher {
    pub fn new(kind: &str) -> Self {
        let mut hasher = Self(Sha256::new());
        hasher.text(VERSION);
        hasher.text(kind);
        hasher
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub fn number(&mut self, number: u64) -> &mut Self {
        self.0.update(number.to_le_bytes());
        self
    }

    pub fn texts<'a>(&mut self, texts: impl IntoIterator<Item = &'a String>) -> &mut Self {
        let texts: Vec<&String> = texts.into_iter().collect();
        self.number(texts.len() as u64);
        for text in texts {
            self.text(text);
        }
        self
    }

    pub fn map(&mut self, map: &BTreeMap<String, String>) -> &mut Self {
        self.number(map.len() as u64);
        for (name, value) in map {
            self.text(name).text(value);
        }
        self
    }

    pub fn optional(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.number(1).text(text),
            None => self.number(0),
        }
    }

    pub fn finish(self) -> Key {
        hex::encode(self.0.finalize())
    }
}
