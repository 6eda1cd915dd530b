//! A directory of JSON files, each replaced whole: what the engine knows about things it must find
//! again after a crash.

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
            return self.flush_directory();
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
            if text.is_empty() {
                fs::remove_file(&path)?;
                continue;
            }
            found.push(serde_json::from_slice(&text).map_err(|error| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{} is damaged: {error}", path.display()),
                )
            })?);
        }
        Ok(found)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.json"))
    }

    fn flush_directory(&self) -> io::Result<()> {
        fs::File::open(&self.dir as &Path)?.sync_all()
    }
}
