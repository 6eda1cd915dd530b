//! The host's own key: outside of the database, readable by root alone.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

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
const ROOT: u32 = 0;
/// How long the command that prints the key may take.
const COMMAND: Duration = Duration::from_secs(30);
/// How often it is asked whether the command has ended, once it has printed everything.
const COMMAND_STEP: Duration = Duration::from_millis(5);
/// Two first uses at once in this process make one key.
static MAKING: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

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
    /// From a file of lines with 64 hexadecimal digits each, the newest first. One that is missing, that others may
    /// read or that belongs to somebody else is refused.
    pub fn load(path: &Path) -> Result<Self, VaultError> {
        let failed = |source| VaultError::File {
            doing: "read the host key",
            path: path.display().to_string(),
            source,
        };
        let unusable = |problem: String| VaultError::HostKey {
            path: path.display().to_string(),
            problem,
        };
        let named = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(unusable(
                    "it does not exist; restore it from a backup, or make one with \
                     `(umask 077; openssl rand -hex 32 > FILE)` if no secret was ever set"
                        .into(),
                ));
            }
            other => other.map_err(failed)?,
        };
        if !named.is_file() {
            return Err(unusable("it must be a file with mode 0600".into()));
        }
        let file = fs::File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if found.ino() != named.ino() || found.dev() != named.dev() {
            return Err(unusable("it was replaced while it was read".into()));
        }
        if found.mode() & 0o077 != 0 {
            return Err(unusable("it must be a file with mode 0600".into()));
        }
        let own = rustix::process::geteuid().as_raw();
        if ![ROOT, own].contains(&found.uid()) {
            return Err(unusable(format!(
                "it belongs to user {}, not to root",
                found.uid()
            )));
        }
        let mut text = Zeroizing::new(String::new());
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(failed)?;
        Self::parse(&text).map_err(unusable)
    }

    /// Like [`HostKeys::load`], but made when it is missing. A file that exists is never replaced, also when two
    /// processes make it at once: both then read the one that came first.
    pub fn load_or_make(path: &Path) -> Result<Self, VaultError> {
        let failed = |source| VaultError::File {
            doing: "write the host key",
            path: path.display().to_string(),
            source,
        };
        let _making = MAKING.lock();
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                sweep(path).and_then(|()| make(path)).map_err(failed)?;
            }
            // It was made by a process that was killed right then.
            Ok(found) if found.nlink() > 1 => sweep(path).map_err(failed)?,
            _ => {}
        }
        Self::load(path)
    }

    /// From what a command prints, in the form of the file: how a key management service is asked.
    pub fn from_command(command: &[String]) -> Result<Self, VaultError> {
        Self::from_command_within(command, COMMAND)
    }

    fn from_command_within(command: &[String], within: Duration) -> Result<Self, VaultError> {
        let failed = |problem: String| VaultError::Command { problem };
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| failed("it is empty".into()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0)
            .spawn()
            .map_err(|error| failed(format!("{program}: {error}")))?;
        let printed = printed(&mut child, within);
        if printed.is_err() {
            end(&mut child);
        }
        let printed = printed.map_err(|problem| failed(format!("{program}: {problem}")))?;
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

    /// Encrypts with the newest key, for `about` alone.
    pub fn wrap(&self, about: &[u8], plain: &[u8]) -> Result<WrappedKeys, VaultError> {
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
    pub fn unwrap(
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

/// All that a command prints, once it has ended well.
fn printed(child: &mut Child, within: Duration) -> Result<Zeroizing<Vec<u8>>, String> {
    let deadline = Instant::now() + within;
    let late = || format!("it did not end within {} s", within.as_secs());
    let stdout = child.stdout.take().ok_or("it has no output")?;
    let (sender, receiver) = mpsc::channel();
    // Ends with the pipe, at the latest when the command and what it started are killed.
    std::thread::spawn(move || {
        let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
        let read = stdout.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
        // Nobody waits any more when it was late.
        let _ = sender.send(read.map(|_| bytes));
    });
    let read = receiver.recv_timeout(within).map_err(|_| late())?;
    let bytes = read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it printed more than {FILE_BYTES_MAX} bytes"));
    }
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(bytes),
            Some(status) => return Err(status.to_string()),
            None if Instant::now() >= deadline => return Err(late()),
            None => std::thread::sleep(COMMAND_STEP),
        }
    }
}

/// The command and everything it started: it leads a process group of its own.
fn end(child: &mut Child) {
    if let Ok(None) = child.try_wait() {
        let group = i32::try_from(child.id()).ok();
        if let Some(group) = group.and_then(rustix::process::Pid::from_raw) {
            // It may end by itself meanwhile.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = child.wait();
    }
}

/// On disk before it is used: what it wraps is lost without it.
fn make(path: &Path) -> io::Result<()> {
    let key = Zeroizing::new(rand::random::<[u8; KEY_BYTES]>());
    let line = Zeroizing::new(format!("{}\n", hex::encode(&key[..])));
    let fresh = fresh_prefix(path) + &hex::encode(rand::random::<[u8; 8]>());
    let fresh = path.with_file_name(fresh);
    let made = place(path, &fresh, line.as_bytes());
    let removed = fs::remove_file(&fresh);
    match made {
        // Another process was first; its key counts.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    removed?;
    fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// How files are named that become the key at `path`.
fn fresh_prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{name}.new-")
}

/// Removes what processes left that were killed while they made the key.
fn sweep(path: &Path) -> io::Result<()> {
    let prefix = fresh_prefix(path);
    for entry in fs::read_dir(path.parent().unwrap_or(Path::new("/")))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn place(path: &Path, fresh: &Path, line: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(MODE)
        .open(fresh)?;
    file.write_all(line)?;
    file.sync_all()?;
    // Unlike a rename this fails when there is one already.
    fs::hard_link(fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn first_uses_at_once_make_one_key() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("secret.key");
            let start = std::sync::Barrier::new(8);
            let ids: Vec<String> = std::thread::scope(|scope| {
                let makers: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            start.wait();
                            HostKeys::load_or_make(&path).unwrap().newest().to_owned()
                        })
                    })
                    .collect();
                makers.into_iter().map(|it| it.join().unwrap()).collect()
            });
            assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_key_that_exists_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        let first = HostKeys::load_or_make(&path).unwrap();
        // Another process, which did not see the file in time, and one that was killed while it made it.
        make(&path).unwrap();
        fs::hard_link(&path, folder.path().join("secret.key.new-1")).unwrap();
        let again = HostKeys::load_or_make(&path).unwrap();
        assert_eq!(first.newest(), again.newest());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_configured_key_is_never_made_and_another_users_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        let missing = HostKeys::load(&path).unwrap_err().to_string();
        assert!(missing.contains("does not exist"), "{missing}");
        assert!(!path.exists());
        HostKeys::load_or_make(&path).unwrap();
        HostKeys::load(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(HostKeys::load(&path).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            let refused = HostKeys::load(&path).unwrap_err().to_string();
            assert!(refused.contains("12345"), "{refused}");
        }
    }

    #[test]
    fn a_command_that_hangs_or_prints_without_end_is_killed() {
        let run = |script: &str, within| {
            let command = ["sh", "-c", script].map(str::to_owned);
            HostKeys::from_command_within(&command, within).map(drop)
        };
        let short = Duration::from_millis(200);
        for script in ["sleep 1000 & sleep 1000", "exec >&-; sleep 1000"] {
            let late = run(script, short).unwrap_err().to_string();
            assert!(late.contains("did not end"), "{late}");
        }
        let long = Duration::from_secs(100);
        let much = run("yes 5a", long).unwrap_err().to_string();
        assert!(much.contains("more than"), "{much}");
        run(&format!("echo {}", "5a".repeat(32)), long).unwrap();
    }
}
