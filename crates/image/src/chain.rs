//! The identity of a volume: which archives were unpacked into it, one over the other.

use std::fmt;

use cove_pool::{Kind, VolumeId};
use cove_unpack::Content;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// `sha256-` and 64 hex digits. Made from digests this process computed or checked itself, never
/// from what an image claims about its content, so that no image can pass for another's layer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ChainId(String);

/// A chain id that does not have the form of one.
#[derive(Debug, thiserror::Error)]
#[error("not a chain id")]
pub struct InvalidChainId;

impl ChainId {
    /// The chain after unpacking the archive with this digest (of its bytes as they came) over `parent`.
    pub fn over(parent: Option<&ChainId>, content: Content, digest: &str) -> Self {
        let content = match content {
            Content::Tree => "tree",
            Content::Layer => "layer",
        };
        let parent = parent.map_or("", |chain| &chain.0);
        Self(format!(
            "sha256-{}",
            hex_digest(format!("{parent}\n{content}\n{digest}").as_bytes())
        ))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn volume(&self) -> VolumeId {
        VolumeId::new(Kind::Image, self.0.clone()).expect("a chain id is a valid volume name")
    }
}

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ChainId {
    type Error = InvalidChainId;
    fn try_from(text: String) -> Result<Self, InvalidChainId> {
        let hex = text.strip_prefix("sha256-").ok_or(InvalidChainId)?;
        let valid = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if valid {
            Ok(Self(text))
        } else {
            Err(InvalidChainId)
        }
    }
}

impl From<ChainId> for String {
    fn from(chain: ChainId) -> String {
        chain.0
    }
}

pub(crate) fn hex_digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
