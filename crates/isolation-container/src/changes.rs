//! The images in which a copy differs from what was captured: ids, name, limits, terminals, timers,
//! connections to the outside. Changed ones are handed over in a file that only lives in memory.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use cove_criu::image::{self, ImageError};
use cove_isolation::IsolationError;
use cove_spawner::message::Replacement;
use cove_spawner::shared;

use crate::restore::Plan;

/// Largest image that is read to be changed.
const CHANGED_IMAGE_MAX: u64 = 32 << 20;
/// The image of the first process.
const FIRST: &str = "core-1.img";
/// What is before the first object in an image of these; one with none is no longer.
const EMPTY_IMAGE_BYTES: u64 = 8;

pub fn replacements(plan: &Plan<'_>) -> Result<OwnedFd, IsolationError> {
    let failed = IsolationError::failed("change the images");
    let list = changed(plan).map_err(failed)?;
    let packed = postcard::to_stdvec(&list).map_err(io::Error::other);
    let failed = IsolationError::failed("hand the changed images over");
    packed.and_then(|packed| in_memory(&packed)).map_err(failed)
}

fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("cove-images", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = fs::File::from(memory);
    file.write_all(bytes)?;
    Ok(file.into())
}

fn changed(plan: &Plan<'_>) -> io::Result<Vec<Replacement>> {
    let first = read(&plan.memory.join(FIRST))?;
    // The guest's own limit is what the sandbox allowed then.
    let before = image::open_files(&first)
        .map_err(io::Error::other)?
        .unwrap_or(plan.open_files);
    let segments = has_segments(plan.memory)?;
    let mut list = Vec::new();
    for entry in fs::read_dir(plan.memory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let change = |bytes: &[u8]| match kind(&name) {
            "userns" => image::with_ids_from(bytes, plan.uid_base).map(Some),
            "utsns" => image::with_hostname(bytes, plan.hostname).map(Some),
            "files.img" => files(bytes),
            "core" => image::with_open_files(bytes, before, plan.open_files),
            "ipcns-var" => {
                let pages = shared::segment_pages(plan.shm_bytes);
                image::with_segment_pages(bytes, pages, segments)
            }
            _ => Ok(None),
        };
        if kind(&name).is_empty() {
            continue;
        }
        let content = change(&read(&entry.path())?).map_err(io::Error::other)?;
        if let Some(content) = content {
            list.push(Replacement { name, content });
        }
    }
    Ok(list)
}

/// Which of the images that may have to be changed this is; nothing for all others.
fn kind(name: &str) -> &str {
    const KINDS: [&str; 5] = ["userns", "utsns", "core", "ipcns-var", "files.img"];
    KINDS
        .into_iter()
        .find(|kind| {
            let rest = name.strip_prefix(kind);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        })
        .unwrap_or_default()
}

fn files(bytes: &[u8]) -> Result<Option<Vec<u8>>, ImageError> {
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

fn has_segments(memory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(memory)? {
        let entry = entry?;
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with("ipcns-shm-")
        {
            return Ok(entry.metadata()?.len() > EMPTY_IMAGE_BYTES);
        }
    }
    Ok(false)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let length = fs::metadata(path)?.len();
    if length > CHANGED_IMAGE_MAX {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        return Err(io::Error::other(format!(
            "{name} has {length} bytes and {CHANGED_IMAGE_MAX} are read at most"
        )));
    }
    fs::read(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_that_may_change_are_known_by_their_names() {
        for (name, wanted) in [
            ("userns-13.img", "userns"),
            ("core-1.img", "core"),
            ("files.img", "files.img"),
            ("ipcns-var-11.img", "ipcns-var"),
            ("ipcns-shm-11.img", ""),
            ("corex-1.img", ""),
            ("pages-1.img", ""),
        ] {
            assert_eq!(kind(name), wanted, "{name}");
        }
    }
}
