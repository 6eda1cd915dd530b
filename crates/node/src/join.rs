//! What a new host and control say to each other, and what the host keeps of it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cove_model::{HostId, HostTraits};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::token::{JoinToken, TokenKey};
use crate::{NodeError, NodeKey};

const REQUEST: &str = "cove node join 1";
const ANSWER: &str = "cove node join answer 1";

/// Longest name of a node.
const NAME_MAX: usize = cove_limits::NODE_NAME_MAX;

/// Lowercase letters, digits and hyphens: what a host may be called.
pub fn check_name(name: &str) -> Result<(), NodeError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = |byte: u8| plain(byte) || byte == b'-';
    let bytes = name.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| plain(*byte));
    let fits = bytes.len() <= NAME_MAX
        && bytes.iter().all(|byte| inner(*byte))
        && ends(bytes.first())
        && ends(bytes.last());
    match fits {
        true => Ok(()),
        false => Err(NodeError::Join(format!(
            "a node's name has 1 to {NAME_MAX} lowercase letters, digits and hyphens, and begins and ends with a \
             letter or digit"
        ))),
    }
}

/// A host that wants to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The id of the token.
    pub token: String,
    pub host: HostId,
    pub name: String,
    /// Where control reaches the relay: host and port.
    pub address: String,
    /// Hexadecimal, as [`NodeKey::public`] tells it.
    pub public_key: String,
    /// What its operator says of it.
    #[serde(default, skip_serializing_if = "HostTraits::is_empty")]
    pub traits: HostTraits,
    pub proof: String,
}

impl JoinRequest {
    pub fn make(
        token: &JoinToken,
        host: &HostId,
        name: &str,
        address: &str,
        traits: HostTraits,
        key: &NodeKey,
    ) -> Self {
        let mut request = Self {
            token: token.id.clone(),
            host: host.clone(),
            name: name.to_owned(),
            address: address.to_owned(),
            public_key: hex::encode(key.public()),
            traits,
            proof: String::new(),
        };
        request.proof = request.proved(|parts| token.key.prove(REQUEST, parts));
        request
    }

    pub fn is_proved(&self, key: &TokenKey) -> bool {
        self.proved(|parts| key.verify(REQUEST, parts, &self.proof))
    }

    /// Over everything it says. A request without traits is proved as before there were any.
    fn proved<T>(&self, over: impl FnOnce(&[&[u8]]) -> T) -> T {
        let traits = serde_json::to_vec(&self.traits).expect("names are JSON");
        let mut parts = vec![
            self.token.as_bytes(),
            self.host.as_str().as_bytes(),
            self.name.as_bytes(),
            self.address.as_bytes(),
            self.public_key.as_bytes(),
        ];
        if !self.traits.is_empty() {
            parts.push(&traits);
        }
        over(&parts)
    }
}

/// What control answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinAnswer {
    pub fleet: String,
    /// PEM.
    pub authority: String,
    /// PEM.
    pub certificate: String,
    pub proof: String,
}

impl JoinAnswer {
    pub fn make(
        key: &TokenKey,
        request: &JoinRequest,
        fleet: &str,
        authority: &str,
        certificate: String,
    ) -> Self {
        let mut answer = Self {
            fleet: fleet.to_owned(),
            authority: authority.to_owned(),
            certificate,
            proof: String::new(),
        };
        answer.proof = key.prove(ANSWER, &answer.parts(request));
        answer
    }

    /// Refuses an answer that does not come from the fleet of the token.
    pub fn check(&self, token: &JoinToken, request: &JoinRequest) -> Result<(), NodeError> {
        if !token.pins(&self.authority) {
            return Err(NodeError::Join(
                "the server belongs to another fleet than the join token".into(),
            ));
        }
        match token.key.verify(ANSWER, &self.parts(request), &self.proof) {
            true => Ok(()),
            false => Err(NodeError::Join(
                "the answer does not come from the server that made the join token".into(),
            )),
        }
    }

    fn parts<'a>(&'a self, request: &'a JoinRequest) -> [&'a [u8]; 4] {
        [
            request.proof.as_bytes(),
            self.fleet.as_bytes(),
            self.authority.as_bytes(),
            self.certificate.as_bytes(),
        ]
    }
}

/// What a node keeps: who it is in which fleet. In the relay's own directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub fleet: String,
    pub name: String,
    pub host: HostId,
    /// PEM, of the fleet.
    pub authority: String,
    /// PEM, of this node.
    pub certificate: String,
    /// PKCS #8, hexadecimal.
    pub key: String,
    /// Where the relay listens.
    pub listen: String,
}

impl Identity {
    pub const FILE: &'static str = "node.json";
    const BYTES_MAX: u64 = 64 * 1024;

    /// `None` where this host has not joined. Root reads this, and the relay owns the directory: links are not
    /// followed, only a plain file is read, and no more of it than a limit.
    pub fn load(directory: &Path) -> Result<Option<Self>, NodeError> {
        let path = directory.join(Self::FILE);
        let failed = |source| NodeError::File {
            doing: "read",
            path: path.display().to_string(),
            source,
        };
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits() as i32)
            .open(&path);
        let file = match opened {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(failed(std::io::Error::other("it is not a plain file")));
        }
        let mut text = Vec::new();
        let read = file.take(Self::BYTES_MAX + 1).read_to_end(&mut text);
        if read.map_err(failed)? as u64 > Self::BYTES_MAX {
            return Err(failed(std::io::Error::other("it is too long")));
        }
        let parsed = serde_json::from_slice(&text);
        parsed.map(Some).map_err(|error| failed(error.into()))
    }

    /// The file has this content or the one before, whenever the machine stops.
    pub fn save(&self, directory: &Path) -> Result<(), NodeError> {
        let path = directory.join(Self::FILE);
        let failed = |source| NodeError::File {
            doing: "write",
            path: path.display().to_string(),
            source,
        };
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        let next = directory.join(format!("{}.next", Self::FILE));
        let written = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&next)
            .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()));
        written.map_err(failed)?;
        fs::rename(&next, &path).map_err(failed)?;
        let flushed = fs::File::open(directory).and_then(|directory| directory.sync_all());
        flushed.map_err(failed)
    }

    pub(crate) fn key_bytes(&self) -> Result<zeroize::Zeroizing<Vec<u8>>, NodeError> {
        let key = hex::decode(&self.key);
        key.map(zeroize::Zeroizing::new)
            .map_err(|error| NodeError::Tls(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_relay_puts_in_the_place_of_its_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(Identity::FILE);
        assert!(Identity::load(folder.path()).unwrap().is_none());
        let reason = || {
            let refused = Identity::load(folder.path()).unwrap_err();
            let reason = std::error::Error::source(&refused).unwrap().to_string();
            fs::remove_file(&path).unwrap();
            reason
        };
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, "{}").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let followed = reason();
        assert!(followed.contains("symbolic link"), "{followed}");
        // Nobody writes to it, so a plain open would wait for ever.
        let fifo = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(fifo.unwrap().success());
        assert_eq!(reason(), "it is not a plain file");
        let long = fs::File::create(&path).unwrap();
        long.set_len(Identity::BYTES_MAX + 1).unwrap();
        assert_eq!(reason(), "it is too long");
    }
}
