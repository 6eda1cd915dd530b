//! Roots that can only be read: one directory, several as one, or nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount, move_mount, open_tree,
};

use super::{privileges, step};
use crate::report::Failure;

/// Covered by a file system of stage 1's own, so any directory that every host has will do.
const STAGING: &str = "/tmp";

fn flags() -> MountAttrFlags {
    MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOATIME
}

/// Detached read-only copies whose ids are shifted into the namespace's range.
pub fn copy(layers: &[PathBuf], user_namespace: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Failure> {
    let copied = layers.iter().map(|layer| {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = step("copy of a directory's mount", open_tree(CWD, layer, flags))?;
        step(
            "idmapped mount",
            privileges::map_mount(tree.as_fd(), user_namespace, true),
        )?;
        Ok(tree)
    });
    copied.collect()
}

/// One directory as it is, or an overlay of several. Called in a mount namespace of its own, because older
/// kernels take layers only by paths.
pub fn join(layers: Vec<OwnedFd>) -> Result<OwnedFd, Failure> {
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
pub fn host_directory() -> Result<OwnedFd, Failure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = step("copy of a directory's mount", open_tree(CWD, ".", flags))?;
    step("read-only mount", privileges::seal_mount(tree.as_fd()))?;
    Ok(tree)
}

pub fn nothing() -> Result<OwnedFd, Failure> {
    let context = step("empty root", fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC))?;
    step("empty root", fsconfig_set_string(&context, "size", "4k"))?;
    step("empty root", fsconfig_create(&context))?;
    step(
        "empty root",
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags()),
    )
}
