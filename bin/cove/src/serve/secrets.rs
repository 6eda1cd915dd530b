//! Secrets of the control side, made once and kept in its own directory, readable by it alone.

use std::path::Path;

use cove_control::LinkKey;
use cove_ssh::HostKey;

use super::ServeError;
use super::supervisor::write_file;

const HOST_KEY_FILE: &str = "ssh_host_ed25519_key";
/// What signs identity tokens. Removing the file makes those tokens invalid and creates new keys.
pub const IDENTITY_KEYS_FILE: &str = "identity.keys";
const LINK_KEY_FILE: &str = "link.key";

/// What signs links to previews. Removing the file makes all of them invalid.
pub fn link_key(directory: &Path) -> Result<LinkKey, ServeError> {
    let path = directory.join(LINK_KEY_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => LinkKey::parse(text.trim()).ok_or_else(|| {
            ServeError::start(
                format!("{} does not hold a key", path.display()),
                "remove it to have a new one made",
            )
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = LinkKey::random();
            write_file(&path, &key.reveal(), 0o600)?;
            Ok(key)
        }
        Err(source) => Err(ServeError::io(
            format!("cannot read {}", path.display()),
            source,
        )),
    }
}

/// By what SSH clients know this server, over restarts. Removing the file makes them ask again.
pub fn host_key(directory: &Path) -> Result<HostKey, ServeError> {
    let path = directory.join(HOST_KEY_FILE);
    let unusable = |_| {
        ServeError::start(
            format!("{} does not hold an ed25519 key", path.display()),
            "remove it to have a new one made",
        )
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => HostKey::parse(&text).map_err(unusable),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = HostKey::random();
            write_file(&path, &key.reveal().map_err(unusable)?, 0o600)?;
            Ok(key)
        }
        Err(source) => Err(ServeError::io(
            format!("cannot read {}", path.display()),
            source,
        )),
    }
}
