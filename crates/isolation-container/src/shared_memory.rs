//! The size of a restored sandbox's shared memory: CRIU makes its filesystem as it was captured, and the
//! limit in force may be another.

use std::io;
use std::os::fd::AsFd;

use cove_spawner::shared;
use rustix::fs::fstatfs;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_string, fspick};

use crate::own_tmpfs;

/// Sets what may be kept in it, while no process of the sandbox runs. What is there already stays, also
/// beyond the limit; nothing can be added then.
pub fn limit(pid: i32, bytes: u64) -> io::Result<()> {
    let place = own_tmpfs::open(pid)?;
    let now = fstatfs(&place)?;
    let used_bytes = (now.f_blocks - now.f_bfree) * now.f_bsize as u64;
    let used_inodes = now.f_files - now.f_ffree;
    let size = bytes.max(used_bytes);
    let inodes = shared::inodes(bytes).max(used_inodes);
    let context = fspick(
        place.as_fd(),
        "",
        FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH,
    )?;
    fsconfig_set_string(&context, "size", size.to_string())?;
    fsconfig_set_string(&context, "nr_inodes", inodes.to_string())?;
    Ok(fsconfig_reconfigure(&context)?)
}
