//! The new mount API in the few shapes a sandbox needs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

const ATTR_RDONLY: u64 = 0x1;
const ATTR_NOSUID: u64 = 0x2;
const ATTR_NODEV: u64 = 0x4;
const ATTR_NOEXEC: u64 = 0x8;

/// A new filesystem instance, not attached anywhere yet.
pub fn new_filesystem(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A detached copy of the tree at a path that can only be read, never run with more rights.
pub fn clone_read_only(path: &str) -> Result<OwnedFd, Errno> {
    let mount = crate::clone::detached(path)?;
    set_attributes(&mount, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV)?;
    Ok(mount)
}

fn set_attributes(mount: &OwnedFd, attr_set: u64) -> Result<(), Errno> {
    #[repr(C)]
    struct MountAttr {
        attr_set: u64,
        attr_clr: u64,
        propagation: u64,
        userns_fd: u64,
    }
    let attributes = MountAttr {
        attr_set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the path is an empty C string, and the struct and its size match the kernel's.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(Errno::from_raw_os_error(crate::clone::last_errno()))
    }
}

/// Attaches a detached mount at a path of ours.
pub fn attach(mount: impl AsFd, path: &str) -> Result<(), Errno> {
    move_mount(
        mount,
        "",
        rustix::fs::CWD,
        path,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
}

/// Attaches (or moves) a mount to a place inside `root` that is reached without following any link:
/// the tree under `root` belongs to a guest and may hold anything.
pub fn attach_inside(mount: impl AsFd, root: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    let target = resolve_inside(root, path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

fn resolve_inside(root: BorrowedFd<'_>, path: &str) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(
        root,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )
}

/// Moves a whole attached tree to a place inside `root`.
pub fn move_inside(from: &str, root: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    let target = resolve_inside(root, path)?;
    move_mount(
        rustix::fs::CWD,
        from,
        target,
        "",
        MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
}

/// A detached copy of the mount at a path, with its attributes.
pub fn copy_of(path: &str) -> Result<OwnedFd, Errno> {
    open_tree(
        rustix::fs::CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
}

/// Shows `from` at `at` as well.
pub fn bind(from: &str, at: &str) -> Result<(), Errno> {
    attach(copy_of(from)?, at)
}

/// Shows `from` inside `root` as well.
pub fn bind_inside(from: &str, root: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    attach_inside(copy_of(from)?, root, path)
}

/// Covers `at` with `from`, unchangeable. A path this kernel does not have needs no cover.
pub fn cover(from: &str, at: &str) -> Result<(), Errno> {
    let mount = copy_of(from)?;
    set_attributes(&mount, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC)?;
    match attach(mount, at) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Makes `at` read-only in place.
pub fn freeze(at: &str) -> Result<(), Errno> {
    match copy_of(at) {
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
        Ok(mount) => {
            set_attributes(&mount, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC)?;
            attach(mount, at)
        }
    }
}
