//! The boot id of a restored sandbox: a resume keeps it, a copy gets another before it runs.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use cove_model::SandboxId;
use cove_spawner::boot_id::{self, FILE, OWNER_FILE};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use crate::own_tmpfs;

/// An id is a few dozen bytes; the file is the sandbox's and may hold anything.
const OWNER_BYTES_MAX: u64 = 256;

/// While no process of the sandbox runs. Memory from before sandboxes had such an id has no file for
/// it, and whoever removed theirs inside harms nobody: both go without.
pub fn renew(pid: i32, sandbox: &SandboxId) -> io::Result<()> {
    let place = own_tmpfs::open(pid)?;
    let (Some(mut owner), Some(mut id)) = (open(&place, OWNER_FILE)?, open(&place, FILE)?) else {
        return Ok(());
    };
    let mut before = String::new();
    let read = (&mut owner)
        .take(OWNER_BYTES_MAX)
        .read_to_string(&mut before);
    if read.is_ok() && before == sandbox.to_string() {
        return Ok(());
    }
    write(&mut id, &boot_id::random()?)?;
    write(&mut owner, &sandbox.to_string())
}

/// A plain file of the tmpfs itself, or nothing.
fn open(place: &OwnedFd, name: &str) -> io::Result<Option<File>> {
    let opened = openat2(
        place,
        name,
        OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV,
    );
    let Ok(opened) = opened else {
        return Ok(None);
    };
    let file = File::from(opened);
    let plain = file.metadata()?.is_file();
    Ok(plain.then_some(file))
}

fn write(file: &mut File, text: &str) -> io::Result<()> {
    use std::io::Seek;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}
