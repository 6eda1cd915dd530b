//! The host's own key: outside of the database, readable by root alone.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cove_model::secret::WrappedKeys;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::VaultError;

const KEY_BYTES: usize = 32;
/// Keys in one file: the newest and those that still wrap something.
const KEYS_MAX: usize = 16;
/// More than that many keys with their line ends take.
const FILE_BYTES_MAX: u64 = 4096;
const MODE: u32 = 0o600;

/// The first one wraps; each of them unwraps what it wrapped.
pub struct HostKeys(Vec<HostKey>);

struct HostKey {
    id: String,
    key: LessSafeKey,
}

impl std::fmt::Debug for HostKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|key| &key.id))
            .finish()
    }
}

impl HostKeys {
    /// From a file of lines with 64 hexadecimal digits each, the newest first. Made when it is missing. One
    /// that others may read is refused.
    pub fn load_or_make(path: &Path) -> Result<Self, VaultError> {
        let failed = |doing| {
            move |source| VaultError::File {
                doing,
                path: path.display().to_string(),
                source,
            }
        };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(path).map_err(failed("write the host key"))?;
            }
            Err(error) => return Err(failed("read the host key")(error)),
            Ok(found) if found.is_file() && found.permissions().mode() & 0o077 == 0 => {}
            Ok(_) => {
                return Err(VaultError::HostKey {
                    path: path.display().to_string(),
                    problem: "it must be a file with mode 0600".into(),
                });
            }
        }
        let mut text = Zeroizing::new(String::new());
        fs::File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(failed("read the host key"))?;
        Self::parse(&text).map_err(|problem| VaultError::HostKey {
            path: path.display().to_string(),
            problem,
        })
    }

    /// From what a command prints, in the form of the file: how a key management service is asked.
    pub fn from_command(command: &[String]) -> Result<Self, VaultError> {
        let failed = |problem: String| VaultError::Command { problem };
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| failed("it is empty".into()))?;
        let output = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| failed(format!("{program}: {error}")))?;
        if !output.status.success() {
            return Err(failed(format!("{program}: {}", output.status)));
        }
        let printed = Zeroizing::new(output.stdout);
        let text = std::str::from_utf8(&printed);
        let text = text.map_err(|_| failed(format!("{program} printed something else")))?;
        Self::parse(text).map_err(failed)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let keys = lines.map(HostKey::parse).collect::<Result<Vec<_>, _>>()?;
        match keys.len() {
            1..=KEYS_MAX => Ok(Self(keys)),
            count => Err(format!("it must have 1 to {KEYS_MAX} keys, not {count}")),
        }
    }

    /// Which key wraps.
    pub fn newest(&self) -> &str {
        self.0.first().map_or("", |key| &key.id)
    }

    pub(crate) fn wrap(&self, about: &[u8], plain: &[u8]) -> Result<WrappedKeys, VaultError> {
        let newest = self.0.first();
        let newest = newest.ok_or_else(|| VaultError::Make("there is no host key".into()))?;
        let nonce: [u8; NONCE_LEN] = rand::random();
        let mut bytes = Zeroizing::new(plain.to_vec());
        let tag = newest
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(about),
                &mut bytes,
            )
            .map_err(|_| VaultError::Make("the host key cannot wrap".into()))?;
        let whole = [&nonce[..], &bytes, tag.as_ref()].concat();
        Ok(WrappedKeys {
            host_key: newest.id.clone(),
            bytes: STANDARD.encode(whole),
        })
    }

    /// `None` when it was changed, or is about something else.
    pub(crate) fn unwrap(
        &self,
        about: &[u8],
        wrapped: &WrappedKeys,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, VaultError> {
        let key = self.0.iter().find(|key| key.id == wrapped.host_key);
        let key = key.ok_or_else(|| VaultError::OtherHostKey {
            wanted: wrapped.host_key.clone(),
        })?;
        let Ok(whole) = STANDARD.decode(&wrapped.bytes) else {
            return Ok(None);
        };
        let Some((nonce, bytes)) = whole.split_first_chunk::<NONCE_LEN>() else {
            return Ok(None);
        };
        let mut bytes = Zeroizing::new(bytes.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = key.key.open_in_place(nonce, Aad::from(about), &mut bytes);
        Ok(opened.ok().map(|plain| Zeroizing::new(plain.to_vec())))
    }
}

impl HostKey {
    fn parse(line: &str) -> Result<Self, String> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        hex::decode_to_slice(line, &mut bytes[..])
            .map_err(|_| format!("each line must have {} hexadecimal digits", 2 * KEY_BYTES))?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes[..]);
        let key = key.map_err(|_| "a key has the wrong length".to_owned())?;
        let id = ring::digest::digest(&ring::digest::SHA256, &bytes[..]);
        Ok(Self {
            // A hash of 256 random bits tells nothing of them.
            id: hex::encode(&id.as_ref()[..8]),
            key: LessSafeKey::new(key),
        })
    }
}

/// On disk before it is used: what it wraps is lost without it.
fn make(path: &Path) -> io::Result<()> {
    let key = Zeroizing::new(rand::random::<[u8; KEY_BYTES]>());
    let line = Zeroizing::new(format!("{}\n", hex::encode(&key[..])));
    let fresh = path.with_extension("new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(MODE)
        .open(&fresh)?;
    file.write_all(line.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
