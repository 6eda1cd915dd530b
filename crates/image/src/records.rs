//! The records of images on disk: one JSON file each, replaced whole.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use cove_model::ImageId;

use crate::error::ImageError;
use crate::image::Image;

/// A record is a few kilobytes; a larger file is not one.
const MAX_RECORD_BYTES: u64 = 1 << 20;

pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    pub fn open(dir: PathBuf) -> Result<Self, ImageError> {
        fs::create_dir_all(&dir).map_err(ImageError::file("creating", &dir))?;
        Ok(Self { dir })
    }

    /// All readable records, and the names of those that cannot be read. They are left where they are.
    pub fn load(&self) -> Result<(Vec<Image>, Vec<String>), ImageError> {
        let (mut images, mut damaged) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.dir).map_err(ImageError::file("listing", &self.dir))? {
            let path = entry
                .map_err(ImageError::file("listing", &self.dir))?
                .path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                match read(&path) {
                    Some(image) => images.push(image),
                    None => damaged.extend(
                        path.file_stem()
                            .map(|name| name.to_string_lossy().into_owned()),
                    ),
                }
            }
        }
        Ok((images, damaged))
    }

    /// On disk when this returns.
    pub fn save(&self, image: &Image) -> Result<(), ImageError> {
        let path = self.path(&image.id);
        let json = serde_json::to_vec_pretty(image).expect("a record is plain data");
        let written = (|| {
            let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
            file.write_all(&json)?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            File::open(&self.dir)?.sync_all()
        })();
        written.map_err(ImageError::file("writing", path))
    }

    pub fn delete(&self, id: &ImageId) -> Result<(), ImageError> {
        let path = self.path(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(ImageError::file("deleting", path)),
        }
    }

    /// Removes files that were being written when a process died.
    pub fn sweep(&self) -> usize {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return 0;
        };
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(".tmp"))
            .filter(|entry| fs::remove_file(entry.path()).is_ok())
            .count()
    }

    fn path(&self, id: &ImageId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}

fn read(path: &Path) -> Option<Image> {
    if fs::metadata(path).ok()?.len() > MAX_RECORD_BYTES {
        return None;
    }
    let image: Image = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (!image.layers.is_empty()).then_some(image)
}
