//! The whole file system of a snapshot, its image and its changes made one, as a tar stream.
//!
//! The two are put together by a read-only overlay that is attached nowhere: it is gone with its
//! descriptor, however the engine ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// A directory that shows `volume`'s changes over `image`.
pub fn open(image: &Path, volume: &Path) -> io::Result<OwnedFd> {
    let upper = volume.join("upper");
    if upper.symlink_metadata().is_err() {
        // Nothing was ever changed.
        return Ok(File::open(image)?.into());
    }
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let mut layers = escaped(&upper)?;
    layers.push(':');
    layers.push_str(&escaped(image)?);
    fsconfig_set_string(&context, "lowerdir", layers)?;
    // Directories of the image that were renamed inside point back to where they were.
    fsconfig_set_string(&context, "redirect_dir", "follow")?;
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// A path as the list of layers wants it.
fn escaped(path: &Path) -> io::Result<String> {
    let text = std::str::from_utf8(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    Ok(text.replace('\\', "\\\\").replace(':', "\\:"))
}

/// Starts packing a directory; the archive comes from its standard output. Sockets are left out, as
/// from any archive.
pub fn pack(root: &OwnedFd) -> io::Result<Child> {
    Command::new("tar")
        .args([
            "--create",
            "--format=posix",
            "--numeric-owner",
            "--sparse",
            "--one-file-system",
            "--xattrs",
            "--xattrs-include=*",
            "--sort=name",
            ".",
        ])
        .current_dir(format!("/proc/self/fd/{}", root.as_raw_fd()))
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}
