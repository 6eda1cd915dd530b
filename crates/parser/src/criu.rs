//! What CRIU leaves: images, of which a copy needs some changed, and a log.

use std::fs::File;
use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::answer::{REPLACEMENTS_MAX, editable, end_replacements, put_replacement};
use crate::order::{Edits, Failed};
use crate::tree;
use image::ImageError;

pub mod image;
pub mod log;

/// Read of a log to find out why CRIU failed.
pub const LOG_MAX: u64 = 8 << 20;
/// Largest image that is read to be changed.
const IMAGE_MAX: u64 = 32 << 20;
/// The image of the first process.
const FIRST: &[u8] = b"core-1.img";
/// What is before the first object in an image of these; one with none is no longer.
const EMPTY_IMAGE_BYTES: i64 = 8;

impl From<ImageError> for Failed {
    fn from(error: ImageError) -> Self {
        Self::damaged(error.to_string())
    }
}

/// The images in which a copy differs from what was captured: ids, name, limits, terminals, timers,
/// connections to the outside.
pub fn edit_images(root: BorrowedFd<'_>, edits: &Edits) -> Result<Vec<u8>, Failed> {
    // The guest's own limit is what the sandbox allowed then.
    let before = image::open_files(&read(root, FIRST)?)?.unwrap_or(edits.open_files);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory: OwnedFd = rustix::fs::openat(root, c".", flags, Mode::empty())?;
    let names = tree::names(&directory)?;
    let segments = has_segments(root, &names)?;
    let mut frames = Vec::new();
    for name in &names {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        let kind = editable(name);
        if kind.is_empty() {
            continue;
        }
        let bytes = read(root, name.as_bytes())?;
        let changed = match kind {
            "userns" => Some(image::with_ids_from(&bytes, edits.uid_base)?),
            "utsns" => Some(image::with_hostname(&bytes, &edits.hostname)?),
            "files.img" => files(&bytes, &edits.volumes)?,
            "core" => image::with_open_files(&bytes, before, edits.open_files)?,
            _ => image::with_segment_pages(&bytes, edits.segment_pages, segments)?,
        };
        if let Some(content) = changed {
            put_replacement(name, &content, &mut frames);
        }
        if frames.len() >= REPLACEMENTS_MAX {
            return Err(Failed::too_large("too many images must be changed"));
        }
    }
    end_replacements(&mut frames);
    Ok(frames)
}

fn files(bytes: &[u8], volumes: &[String]) -> Result<Option<Vec<u8>>, ImageError> {
    image::refuse_files_below(bytes, volumes)?;
    let mut changed = None;
    for change in [
        image::with_terminals_by_name,
        image::with_running_timers,
        image::without_outside_connections,
    ] {
        let now = change(changed.as_deref().unwrap_or(bytes))?;
        changed = now.or(changed);
    }
    Ok(changed)
}

fn has_segments(root: BorrowedFd<'_>, names: &[Vec<u8>]) -> Result<bool, Failed> {
    let Some(name) = names.iter().find(|name| name.starts_with(b"ipcns-shm-")) else {
        return Ok(false);
    };
    let stat = rustix::fs::statat(root, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(stat.st_size > EMPTY_IMAGE_BYTES)
}

fn read(root: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Failed> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(root, name, flags, Mode::empty())?);
    let length = file.metadata()?.len();
    if length > IMAGE_MAX {
        let name = name.escape_ascii();
        return Err(Failed::too_large(format!(
            "{name} has {length} bytes and {IMAGE_MAX} are read at most"
        )));
    }
    let mut bytes = Vec::new();
    file.take(IMAGE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
