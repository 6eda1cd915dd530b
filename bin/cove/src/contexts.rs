//! Servers this user has logged in to: a file in the user's configuration directory, readable by that user alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::args::Global;
use crate::report::CliError;

/// Longest name of a context.
const NAME_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    pub url: String,
    pub api_key: String,
    /// Certificates to trust for https, PEM; the system's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_pem: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    #[serde(default)]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
}

impl Contexts {
    /// Empty where this user never logged in.
    pub fn load() -> Result<Self, CliError> {
        match file() {
            Some(path) => Self::read(&path),
            None => Ok(Self::default()),
        }
    }

    fn read(path: &Path) -> Result<Self, CliError> {
        let failed = |error| CliError::io(format!("cannot read {}", path.display()), error);
        let mut file = match fs::File::open(path) {
            Ok(file) => file,
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(Self::default());
            }
            Err(error) => return Err(failed(error)),
        };
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(CliError::hinted(
                format!(
                    "other users may read or change {}, which has API keys",
                    path.display()
                ),
                format!("run: chmod 600 {}", path.display()),
            ));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(failed)?;
        serde_json::from_slice(&text).map_err(|error| {
            CliError::hinted(
                format!("cannot read {}: {error}", path.display()),
                "delete the file and run `cove login` again",
            )
        })
    }

    /// Replaces the file as a whole: a reader sees the old one or the new one.
    pub fn save(&self) -> Result<(), CliError> {
        let path = file().ok_or_else(|| {
            CliError::hinted(
                "cannot find a directory for logins",
                "set HOME or XDG_CONFIG_HOME",
            )
        })?;
        self.write(&path)
            .map_err(|error| CliError::io(format!("cannot write {}", path.display()), error))
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        let next = path.with_extension(format!("{}.new", std::process::id()));
        fs::remove_file(&next).ok();
        let written = (|| {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&next)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&next, path)
        })();
        if written.is_err() {
            fs::remove_file(&next).ok();
        }
        written
    }

    pub fn get(&self, name: &str) -> Result<&Context, CliError> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let hint = match known.is_empty() {
                true => "`cove login URL` adds one".to_owned(),
                false => format!("known contexts: {}", known.join(", ")),
            };
            CliError::hinted(format!("there is no context {name:?}"), hint)
        })
    }
}

/// The context that decides where a command goes, if one does. `--url` and `--data-dir` name a server themselves.
pub fn chosen(global: &Global) -> Result<Option<Context>, CliError> {
    if let Some(name) = &global.context {
        if global.url.is_some() {
            return Err(CliError::usage(
                "--context and --url (or COVE_CONTEXT and COVE_URL) both name a server; give one of them",
            ));
        }
        return Contexts::load()?.get(name).cloned().map(Some);
    }
    if global.url.is_some() || global.data_dir.is_some() {
        return Ok(None);
    }
    let contexts = Contexts::load()?;
    match &contexts.current {
        Some(name) => contexts.get(name).cloned().map(Some),
        None => Ok(None),
    }
}

pub fn check_name(name: &str) -> Result<(), CliError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
        return Err(CliError::usage(format!(
            "{name:?} cannot be the name of a context: 1 to {NAME_MAX} letters, digits, '.', '-' and '_'"
        )));
    }
    Ok(())
}

fn file() -> Option<PathBuf> {
    let directory = |name| {
        let value = std::env::var_os(name)?;
        Some(PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let config = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")));
    Some(config?.join("cove/contexts.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_by_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("deep/cove/contexts.json");
        assert_eq!(Contexts::read(&path).expect("empty"), Contexts::default());
        let mut contexts = Contexts {
            current: Some("a".into()),
            ..Contexts::default()
        };
        let context = Context {
            url: "https://cove.example.com".into(),
            api_key: "k".into(),
            ca_pem: None,
        };
        contexts.contexts.insert("a".into(), context);
        contexts.write(&path).expect("written");
        contexts.write(&path).expect("written again");
        assert_eq!(Contexts::read(&path).expect("read"), contexts);
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let left = fs::read_dir(path.parent().expect("a parent")).expect("listed");
        assert_eq!(left.count(), 1, "a temporary file was left behind");
        assert!(contexts.get("b").is_err());
        for mode in [0o640, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changed");
            Contexts::read(&path).expect_err("others have access to the file");
        }
    }

    #[test]
    fn names_are_plain_words() {
        for good in ["work", "cove.example.com", "a-b_1"] {
            check_name(good).expect(good);
        }
        for bad in ["", "a b", "../x", "é", &"x".repeat(65)] {
            check_name(bad).expect_err(bad);
        }
    }
}
