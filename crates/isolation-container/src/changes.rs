//! The images in which a copy differs from what was captured. They are edited by the confined parser; what
//! it answers is checked and handed on in a file that only lives in memory.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use cove_isolation::IsolationError;
use cove_parser::Edits;
use cove_spawner::message::Replacement;
use cove_spawner::shared;

use crate::capturer::Capturer;
use crate::restore::RestorePlan;

pub fn replacements(
    capturer: &Capturer,
    plan: &RestorePlan<'_>,
) -> Result<OwnedFd, IsolationError> {
    let edits = Edits {
        uid_base: plan.uid_base,
        hostname: plan.hostname.to_owned(),
        open_files: plan.open_files,
        segment_pages: shared::segment_pages(plan.shm_bytes),
        volumes: plan
            .places
            .iter()
            .map(|place| place.found.clone())
            .collect(),
    };
    let edited = capturer
        .parser
        .edit_images(plan.memory, edits)
        .map_err(|error| IsolationError::failed("change the images")(io::Error::other(error)))?;
    let list: Vec<Replacement> = edited
        .into_iter()
        .map(|edited| Replacement {
            name: edited.name,
            content: edited.content,
        })
        .collect();
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
