//! The file that keys are kept in: readable by its owner alone, whole or not there.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::keys::{KEYS_MAX, KeyError, KeySet, SigningKey, Stored};

const MODE: u32 = 0o600;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    keys: Vec<Stored>,
}

impl KeySet {
    /// Empty when there is no file. A file that others may read is refused: its keys may be known.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| file_error("read", path, source);
        let found = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(failed)?,
        };
        let damaged = |problem: String| KeyError::Damaged {
            path: path.display().to_string(),
            problem,
        };
        if !found.is_file() || found.permissions().mode() & 0o077 != 0 {
            return Err(damaged(
                "it must be a file with mode 0600; if others may have read it, remove it and new keys are made"
                    .into(),
            ));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let content: Content =
            serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if content.keys.len() > KEYS_MAX {
            return Err(damaged(format!("it has more than {KEYS_MAX} keys")));
        }
        let keys = content.keys.iter().map(SigningKey::restore);
        let keys = keys
            .map(|key| key.map(Into::into))
            .collect::<Result<_, _>>();
        Ok(Self {
            keys: keys.map_err(damaged)?,
        })
    }

    /// Returns when it is on disk: a key that signed must not be forgotten by a crash.
    pub fn save(&self, path: &Path) -> Result<(), KeyError> {
        let content = Content {
            keys: self.keys.iter().map(|key| key.stored()).collect(),
        };
        let text = serde_json::to_string(&content).map_err(KeyError::Claims)?;
        write(path, &text).map_err(|source| file_error("write", path, source))
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
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
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(folder)?.sync_all()
}

fn file_error(doing: &'static str, path: &Path, source: io::Error) -> KeyError {
    KeyError::File {
        doing,
        path: path.display().to_string(),
        source,
    }
}
