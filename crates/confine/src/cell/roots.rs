//! What can become a root directory: one directory, several as one, or nothing. Also the mount attributes
//! behind them, for which there is no safe wrapper.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, move_mount, open_tree,
};

use crate::{ConfineError, check, step};

/// Covered by a file system of stage 1's own, so any directory that every host has will do.
const STAGING: &str = "/tmp";

/// The working directory, writable, with its ids shifted into the namespace's range.
pub fn working_directory(user_namespace: BorrowedFd<'_>) -> Result<OwnedFd, ConfineError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = step("copy of the target's mount", open_tree(CWD, ".", flags))?;
    step(
        "idmapped mount",
        map_mount(tree.as_fd(), user_namespace, false),
    )?;
    Ok(tree)
}

fn flags() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOATIME
}

/// Detached read-only copies whose ids are shifted into the namespace's range.
pub fn copy(
    layers: &[PathBuf],
    user_namespace: BorrowedFd<'_>,
) -> Result<Vec<OwnedFd>, ConfineError> {
    let copied = layers.iter().map(|layer| {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = step("copy of a directory's mount", open_tree(CWD, layer, flags))?;
        step(
            "idmapped mount",
            map_mount(tree.as_fd(), user_namespace, true),
        )?;
        Ok(tree)
    });
    copied.collect()
}

/// One directory as it is, or an overlay of several. Called in a mount namespace of its own, because older
/// kernels take layers only by paths.
pub fn join(layers: Vec<OwnedFd>) -> Result<OwnedFd, ConfineError> {
    let layers = match <[OwnedFd; 1]>::try_from(layers) {
        Ok([only]) => return Ok(only),
        Err(layers) => layers,
    };
    let staging = mount("none", STAGING, "tmpfs", MountFlags::empty(), None);
    step("staging directory", staging)?;
    let mut places = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let place = format!("{STAGING}/{number}");
        step("place of a layer", std::fs::create_dir(&place))?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        step("layer", move_mount(layer, "", CWD, &place, flags))?;
        places.push(place);
    }
    let context = step("overlay", fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC))?;
    let lower = fsconfig_set_string(&context, "lowerdir", places.join(":"));
    step("overlay", lower)?;
    // Directories that were renamed in an upper layer point back to where they were.
    let redirected = fsconfig_set_string(&context, "redirect_dir", "follow");
    step("overlay", redirected)?;
    step("overlay", fsconfig_create(&context))?;
    step(
        "overlay",
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags()),
    )
}

/// A read-only copy of the working directory's mount, without what is mounted below it.
pub fn host_directory() -> Result<OwnedFd, ConfineError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = step("copy of a directory's mount", open_tree(CWD, ".", flags))?;
    step("read-only mount", seal_mount(tree.as_fd()))?;
    Ok(tree)
}

pub fn nothing() -> Result<OwnedFd, ConfineError> {
    let context = step("empty root", fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC))?;
    step("empty root", fsconfig_set_string(&context, "size", "4k"))?;
    step("empty root", fsconfig_create(&context))?;
    step(
        "empty root",
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags()),
    )
}

const MOUNT_ATTR_RDONLY: u64 = 0x01;
const MOUNT_ATTR_NOSUID: u64 = 0x02;
const MOUNT_ATTR_NODEV: u64 = 0x04;
const MOUNT_ATTR_NOEXEC: u64 = 0x08;
const MOUNT_ATTR_ATIME: u64 = 0x70;
const MOUNT_ATTR_NOATIME: u64 = 0x10;
const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn map_mount(
    tree: BorrowedFd<'_>,
    user_namespace: BorrowedFd<'_>,
    read_only: bool,
) -> io::Result<()> {
    set_attributes(tree, Some(user_namespace), read_only)
}

/// A mount that only the caller has, which nobody can change anything through.
fn seal_mount(tree: BorrowedFd<'_>) -> io::Result<()> {
    set_attributes(tree, None, true)
}

fn set_attributes(
    tree: BorrowedFd<'_>,
    user_namespace: Option<BorrowedFd<'_>>,
    read_only: bool,
) -> io::Result<()> {
    let read_only = match read_only {
        true => MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOATIME,
        false => 0,
    };
    let safe = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
    let attributes = MountAttr {
        set: safe | read_only | user_namespace.map_or(0, |_| MOUNT_ATTR_IDMAP),
        // How times of access are kept is a field of its own in the set.
        clear: if read_only == 0 { 0 } else { MOUNT_ATTR_ATIME },
        propagation: 0,
        user_namespace: user_namespace.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: the path is a NUL-terminated empty string and the structure has the size given; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    check(result)
}
