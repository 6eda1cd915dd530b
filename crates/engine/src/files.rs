//! A directory of JSON files, each replaced whole: what the engine knows about things it must find
//! again after a crash.
//!
//! Most changes need not survive a power loss, but what was acknowledged before them must: while the
//! newest content of a file is not flushed, the last one that was stays beside it under another name.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Survives the process.
    Written,
    /// Survives a power loss.
    Flushed,
}

/// The extension of what was flushed last.
const KEPT: &str = "flushed";

/// The form of what is written here. It is not written down; another form says so in a field `version`, and
/// is not read: it would be written back without what this engine does not know.
const VERSION: u64 = 1;
/// Bytes of a file that are read at most: records are a few kilobytes, and a damaged one may be anything.
const READ_MAX: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub struct Files {
    dir: PathBuf,
}

/// What [`Files::load`] found.
#[derive(Debug)]
pub struct Loaded<T> {
    /// By name.
    pub intact: Vec<(String, T)>,
    /// Of these, what is wrong with the newest content; the one flushed before it is used instead.
    pub older: BTreeMap<String, String>,
    pub damaged: Vec<Damaged>,
}

/// A file that does not hold what it should. It stays as it is, for whoever wants to look.
#[derive(Debug, Clone)]
pub struct Damaged {
    pub name: String,
    pub reason: String,
    /// What could be read of it.
    pub content: Vec<u8>,
}

impl Files {
    pub fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    pub fn write(
        &self,
        name: &str,
        content: &impl Serialize,
        durability: Durability,
    ) -> io::Result<()> {
        let draft = self.dir.join(format!("{name}.new"));
        let path = self.path(name);
        let mut file = fs::File::create(&draft)?;
        file.write_all(&serde_json::to_vec(content)?)?;
        let flush = durability == Durability::Flushed;
        if flush && path.exists() {
            // What is replaced was acknowledged: the new content must be there before its name is.
            file.sync_data()?;
            fs::rename(&draft, &path)?;
            self.flush_directory()?;
            return remove_if_there(&self.kept(name));
        }
        if !flush {
            match fs::hard_link(&path, self.kept(name)) {
                Ok(()) => {}
                // An older one is kept already, or there is nothing yet to keep.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        fs::rename(&draft, &path)?;
        if flush {
            // One flush for content and name. Should the power fail before it ends, the name may
            // stand for an empty file, which was never acknowledged.
            file.sync_all()?;
        }
        Ok(())
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        remove_if_there(&self.kept(name))?;
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.flush_directory(),
        }
    }

    /// Every file. One that cannot be used is reported beside the others, which must not suffer for it.
    pub fn load<T: DeserializeOwned>(&self) -> io::Result<Loaded<T>> {
        let mut found = Loaded {
            intact: Vec::new(),
            older: BTreeMap::new(),
            damaged: Vec::new(),
        };
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            match path.extension().and_then(|ext| ext.to_str()) {
                Some("json") => {}
                // A draft that never got its name was never acknowledged.
                Some("new") => {
                    fs::remove_file(&path)?;
                    continue;
                }
                _ => continue,
            }
            let Some(name) = path.file_stem().and_then(|name| name.to_str()) else {
                continue;
            };
            let name = name.to_owned();
            let (content, reason) = match read(&path) {
                Ok((_, Ok(content))) => {
                    found.intact.push((name, content));
                    continue;
                }
                Ok((text, Err(error))) => (text, error.to_string()),
                Err(error) => (Vec::new(), error.to_string()),
            };
            // The power failed before it was flushed: what was flushed before it counts.
            if let Ok((_, Ok(kept))) = read(&path.with_extension(KEPT)) {
                tracing::warn!(path = %path.display(), reason, "a record is damaged; the one flushed before it is used");
                found.older.insert(name.clone(), reason);
                found.intact.push((name, kept));
                continue;
            }
            found.damaged.push(Damaged {
                name,
                reason,
                content,
            });
        }
        Ok(found)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }

    fn kept(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.{KEPT}"))
    }

    fn flush_directory(&self) -> io::Result<()> {
        fs::File::open(&self.dir as &Path)?.sync_all()
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<(Vec<u8>, serde_json::Result<T>)> {
    let mut text = Vec::new();
    fs::File::open(path)?
        .take(READ_MAX)
        .read_to_end(&mut text)?;
    let content = parse(&text);
    Ok((text, content))
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    let content: serde_json::Value = serde_json::from_slice(text)?;
    match content.get("version").map(|version| version.as_u64()) {
        None | Some(Some(VERSION)) => serde_json::from_value(content),
        Some(_) => Err(serde::de::Error::custom(format!(
            "version {} is not known; this engine reads version {VERSION}",
            content["version"]
        ))),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_flushed_outlives_a_later_content_that_was_not() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path().to_owned()).unwrap();
        files.write("a", &1, Durability::Flushed).unwrap();
        files.write("a", &2, Durability::Written).unwrap();
        files.write("a", &3, Durability::Written).unwrap();
        let intact = || -> Vec<i32> {
            let found = files.load().unwrap();
            assert!(found.damaged.is_empty());
            found.intact.into_iter().map(|(_, number)| number).collect()
        };
        assert_eq!(intact(), [3]);
        // As a power loss leaves it on filesystems that write names before contents.
        for torn in ["", "{"] {
            fs::write(files.path("a"), torn).unwrap();
            assert_eq!(intact(), [1], "{torn:?}");
        }
        files.write("a", &4, Durability::Flushed).unwrap();
        assert!(!files.kept("a").exists());
        files.write("b", &5, Durability::Flushed).unwrap();
        for torn in ["", "{", "\u{0}\u{0}"] {
            fs::write(files.path("a"), torn).unwrap();
            let found = files.load::<i32>().unwrap();
            assert_eq!(found.intact, [("b".to_owned(), 5)]);
            assert_eq!(found.damaged[0].name, "a");
            assert_eq!(found.damaged[0].content, torn.as_bytes());
        }
    }

    #[test]
    fn what_is_removed_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path().to_owned()).unwrap();
        fs::write(dir.path().join("a.new"), "{").unwrap();
        assert!(files.load::<i32>().unwrap().intact.is_empty());
        files.write("b", &1, Durability::Flushed).unwrap();
        files.write("b", &2, Durability::Written).unwrap();
        files.remove("b").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
