//! A directory of JSON files, each replaced whole: what the engine knows about things it must find
//! again after a crash.
//!
//! Most changes need not survive a power loss, but what was acknowledged before them must: while the
//! newest content of a file is not flushed, the last one that was stays beside it under another name.

use std::fs;
use std::io::{self, Write};
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

#[derive(Debug, Clone)]
pub struct Files {
    dir: PathBuf,
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
            // stand for an empty file, which `load` takes for one that was never acknowledged.
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

    /// Every file. One that cannot be read stops the engine: it stands for somebody's machine.
    pub fn load<T: DeserializeOwned>(&self) -> io::Result<Vec<T>> {
        let mut found = Vec::new();
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
            let text = fs::read(&path)?;
            let error = match serde_json::from_slice(&text) {
                Ok(content) => {
                    found.push(content);
                    continue;
                }
                Err(error) => error,
            };
            // The power failed before it was flushed: what was flushed before it counts.
            let kept = path.with_extension(KEPT);
            match fs::read(&kept).map(|text| serde_json::from_slice(&text)) {
                Ok(Ok(content)) => {
                    tracing::warn!(path = %path.display(), "an unflushed record was lost; the one before it is used");
                    found.push(content);
                }
                _ if text.is_empty() => fs::remove_file(&path)?,
                _ => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!("{} is damaged: {error}", path.display()),
                    ));
                }
            }
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
        assert_eq!(files.load::<i32>().unwrap(), [3]);
        // As a power loss leaves it on filesystems that write names before contents.
        for torn in ["", "{"] {
            fs::write(files.path("a"), torn).unwrap();
            assert_eq!(files.load::<i32>().unwrap(), [1], "{torn:?}");
        }
        files.write("a", &4, Durability::Flushed).unwrap();
        assert!(!files.kept("a").exists());
        fs::write(files.path("a"), "{").unwrap();
        assert!(files.load::<i32>().is_err());
    }

    #[test]
    fn one_that_was_never_acknowledged_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path().to_owned()).unwrap();
        fs::write(files.path("a"), "").unwrap();
        assert!(files.load::<i32>().unwrap().is_empty());
        files.write("b", &1, Durability::Flushed).unwrap();
        files.write("b", &2, Durability::Written).unwrap();
        files.remove("b").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
