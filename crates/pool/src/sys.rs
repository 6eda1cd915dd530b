//! The ioctls this crate needs that no library wraps: those of btrfs here, of loop devices below.
//!
//! Each function is one system call with its argument block built and read here, so that the rest of
//! the crate sees only safe functions and `Errno`.

pub(crate) mod chunks;
pub(crate) mod extents;
pub(crate) mod loops;

use std::ffi::{CStr, OsStr, c_ulong};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

const BTRFS: u32 = 0x94;
const WRITE: u32 = 1;
const READ: u32 = 2;

const fn code(direction: u32, number: u32, size: usize) -> c_ulong {
    // The size field of an ioctl number has 14 bits; every block used here is at most 4096 bytes.
    ((direction << 30) | ((size as u32) << 16) | (BTRFS << 8) | number) as c_ulong
}

const RESIZE: c_ulong = code(WRITE, 3, size_of::<VolArgs>());
const SYNC: c_ulong = code(0, 8, 0);
const TREE_SEARCH: c_ulong = code(READ | WRITE, 17, size_of::<SearchArgs>());
const SNAP_CREATE_V2: c_ulong = code(WRITE, 23, size_of::<VolArgsV2>());
const SUBVOL_CREATE_V2: c_ulong = code(WRITE, 24, size_of::<VolArgsV2>());
const SUBVOL_GETFLAGS: c_ulong = code(READ, 25, size_of::<u64>());
const SUBVOL_SETFLAGS: c_ulong = code(WRITE, 26, size_of::<u64>());
const DEV_INFO: c_ulong = code(READ | WRITE, 30, size_of::<DevInfo>());
const FS_INFO: c_ulong = code(READ, 31, size_of::<FsInfo>());
const QUOTA_CTL: c_ulong = code(READ | WRITE, 40, size_of::<QuotaCtl>());
const QGROUP_CREATE: c_ulong = code(WRITE, 42, size_of::<QgroupCreate>());
const QGROUP_LIMIT: c_ulong = code(READ, 43, size_of::<QgroupLimit>());
const GET_SUBVOL_INFO: c_ulong = code(READ, 60, size_of::<SubvolInfoRaw>());
const SNAP_DESTROY_V2: c_ulong = code(WRITE, 63, size_of::<VolArgsV2>());

/// Of every filesystem, not of btrfs alone, hence under another letter.
const TRIM: c_ulong =
    code(READ | WRITE, 121, size_of::<TrimRange>()) & !(0xff << 8) | (b'X' as c_ulong) << 8;

const SUBVOL_RDONLY: u64 = 1 << 1;
const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;
const QUOTA_ENABLE_SIMPLE: u64 = 4;
const LIMIT_MAX_REFERENCED: u64 = 1;

/// The root tree, where every subvolume has its items.
const ROOT_TREE: u64 = 1;
const ROOT_ITEM: u32 = 132;
const ROOT_REF: u32 = 156;

#[repr(C)]
struct TrimRange {
    start: u64,
    length: u64,
    least: u64,
}

#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; 4088],
}

#[repr(C)]
struct VolArgsV2 {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

#[repr(C)]
struct DevInfo {
    devid: u64,
    uuid: [u8; 16],
    bytes_used: u64,
    total_bytes: u64,
    unused: [u64; 379],
    path: [u8; 1024],
}

#[repr(C)]
struct FsInfo {
    max_id: u64,
    num_devices: u64,
    fsid: [u8; 16],
    rest: [u64; 124],
}

#[repr(C)]
struct QuotaCtl {
    cmd: u64,
    status: u64,
}

#[repr(C)]
struct QgroupCreate {
    create: u64,
    qgroup: u64,
}

#[repr(C)]
struct QgroupLimit {
    qgroup: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Timespec {
    sec: u64,
    nsec: u32,
}

#[repr(C)]
struct SubvolInfoRaw {
    treeid: u64,
    name: [u8; 256],
    parent_id: u64,
    dirid: u64,
    generation: u64,
    flags: u64,
    uuids: [[u8; 16]; 3],
    transids: [u64; 4],
    changed: Timespec,
    created: Timespec,
    sent: Timespec,
    received: Timespec,
    reserved: [u64; 8],
}

#[repr(C)]
struct SearchArgs {
    tree_id: u64,
    min_objectid: u64,
    max_objectid: u64,
    min_offset: u64,
    max_offset: u64,
    min_transid: u64,
    max_transid: u64,
    min_type: u32,
    max_type: u32,
    nr_items: u32,
    unused: u32,
    unused_more: [u64; 4],
    buf: [u8; 4096 - 104],
}

const _: () = {
    assert!(size_of::<VolArgs>() == 4096);
    assert!(size_of::<VolArgsV2>() == 4096);
    assert!(size_of::<DevInfo>() == 4096);
    assert!(size_of::<FsInfo>() == 1024);
    assert!(size_of::<SearchArgs>() == 4096);
    assert!(size_of::<SubvolInfoRaw>() == 504);
};

/// What the kernel tells about one subvolume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubvolInfo {
    pub id: u64,
    pub read_only: bool,
    pub created: SystemTime,
    /// The last transaction that changed something in it.
    pub generation: u64,
}

fn ioctl<T>(fd: BorrowedFd<'_>, request: c_ulong, arg: &mut T) -> Result<i32, Errno> {
    // SAFETY: `fd` is open for the length of the call, and every request of this module reads and
    // writes at most the `#[repr(C)]` block of the size encoded beside it, which `arg` owns.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, std::ptr::from_mut(arg)) };
    check(rc)
}

fn ioctl_value(fd: BorrowedFd<'_>, request: c_ulong, value: c_ulong) -> Result<i32, Errno> {
    // SAFETY: the requests called this way take an integer or nothing; no memory is passed.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, value) };
    check(rc)
}

fn check(rc: i32) -> Result<i32, Errno> {
    if rc < 0 {
        let last = std::io::Error::last_os_error();
        Err(Errno::from_io_error(&last).unwrap_or(Errno::IO))
    } else {
        Ok(rc)
    }
}

fn v2(name: &str, fd: i64, flags: u64) -> Box<VolArgsV2> {
    let mut args = Box::new(VolArgsV2 {
        fd,
        transid: 0,
        flags,
        unused: [0; 4],
        name: [0; 4040],
    });
    // Names come from `VolumeId` or are our own, so they are far below the 4039 bytes that fit.
    args.name[..name.len()].copy_from_slice(name.as_bytes());
    args
}

pub(crate) fn subvol_create(folder: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    ioctl(folder, SUBVOL_CREATE_V2, &mut *v2(name, 0, 0)).map(drop)
}

pub(crate) fn snap_create(
    source: BorrowedFd<'_>,
    folder: BorrowedFd<'_>,
    name: &str,
    read_only: bool,
) -> Result<(), Errno> {
    let flags = if read_only { SUBVOL_RDONLY } else { 0 };
    let mut args = v2(name, i64::from(source.as_raw_fd()), flags);
    ioctl(folder, SNAP_CREATE_V2, &mut *args).map(drop)
}

pub(crate) fn snap_destroy(folder: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    ioctl(folder, SNAP_DESTROY_V2, &mut *v2(name, 0, 0)).map(drop)
}

pub(crate) fn snap_destroy_by_id(anywhere: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
    let mut args = v2("", 0, SUBVOL_SPEC_BY_ID);
    args.name[..8].copy_from_slice(&id.to_ne_bytes());
    ioctl(anywhere, SNAP_DESTROY_V2, &mut *args).map(drop)
}

pub(crate) fn subvol_set_read_only(subvol: BorrowedFd<'_>, read_only: bool) -> Result<(), Errno> {
    let mut flags = 0u64;
    ioctl(subvol, SUBVOL_GETFLAGS, &mut flags)?;
    let mut wanted = if read_only {
        flags | SUBVOL_RDONLY
    } else {
        flags & !SUBVOL_RDONLY
    };
    if wanted != flags {
        ioctl(subvol, SUBVOL_SETFLAGS, &mut wanted)?;
    }
    Ok(())
}

pub(crate) fn subvol_info(subvol: BorrowedFd<'_>) -> Result<SubvolInfo, Errno> {
    let zero = Timespec { sec: 0, nsec: 0 };
    let mut raw = SubvolInfoRaw {
        treeid: 0,
        name: [0; 256],
        parent_id: 0,
        dirid: 0,
        generation: 0,
        flags: 0,
        uuids: [[0; 16]; 3],
        transids: [0; 4],
        changed: zero,
        created: zero,
        sent: zero,
        received: zero,
        reserved: [0; 8],
    };
    ioctl(subvol, GET_SUBVOL_INFO, &mut raw)?;
    // The root item keeps the read-only flag as bit 0, unlike the flags ioctl which uses bit 1.
    Ok(SubvolInfo {
        id: raw.treeid,
        read_only: raw.flags & 1 != 0,
        generation: raw.generation,
        created: UNIX_EPOCH + Duration::new(raw.created.sec, raw.created.nsec),
    })
}

pub(crate) fn fs_id(anywhere: BorrowedFd<'_>) -> Result<[u8; 16], Errno> {
    let mut info = FsInfo {
        max_id: 0,
        num_devices: 0,
        fsid: [0; 16],
        rest: [0; 124],
    };
    ioctl(anywhere, FS_INFO, &mut info)?;
    Ok(info.fsid)
}

/// The device a filesystem of one device is mounted from.
pub(crate) fn only_device(anywhere: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    let mut info = Box::new(DevInfo {
        devid: 1,
        uuid: [0; 16],
        bytes_used: 0,
        total_bytes: 0,
        unused: [0; 379],
        path: [0; 1024],
    });
    ioctl(anywhere, DEV_INFO, &mut *info)?;
    let path = CStr::from_bytes_until_nul(&info.path).map_err(|_| Errno::ILSEQ)?;
    Ok(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

pub(crate) fn resize_to_device(root: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut args = Box::new(VolArgs {
        fd: 0,
        name: [0; 4088],
    });
    args.name[..3].copy_from_slice(b"max");
    ioctl(root, RESIZE, &mut *args).map(drop)
}

/// Puts everything on disk and wakes the kernel's cleaner of deleted subvolumes, which otherwise looks
/// only every 30 seconds.
pub(crate) fn sync_and_clean(anywhere: BorrowedFd<'_>) -> Result<(), Errno> {
    ioctl_value(anywhere, SYNC, 0).map(drop)
}

/// Tells the device below which blocks of a part of the filesystem's address space hold nothing, so that it
/// can forget them. What no chunk covers is always passed on.
pub(crate) fn trim(root: BorrowedFd<'_>, start: u64, length: u64) -> Result<(), Errno> {
    let mut range = TrimRange {
        start,
        length,
        least: 0,
    };
    ioctl(root, TRIM, &mut range).map(drop)
}

pub(crate) fn quota_enable_simple(root: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut ctl = QuotaCtl {
        cmd: QUOTA_ENABLE_SIMPLE,
        status: 0,
    };
    ioctl(root, QUOTA_CTL, &mut ctl).map(drop)
}

/// Sets the limit of a subvolume's own qgroup; `None` clears it.
pub(crate) fn qgroup_limit(
    root: BorrowedFd<'_>,
    subvol: u64,
    limit: Option<u64>,
) -> Result<(), Errno> {
    let mut args = QgroupLimit {
        qgroup: subvol,
        flags: LIMIT_MAX_REFERENCED,
        // The kernel takes all ones as "no limit".
        max_referenced: limit.unwrap_or(u64::MAX),
        max_exclusive: 0,
        reserved_referenced: 0,
        reserved_exclusive: 0,
    };
    ioctl(root, QGROUP_LIMIT, &mut args).map(drop)
}

pub(crate) fn qgroup_remove(root: BorrowedFd<'_>, qgroup: u64) -> Result<(), Errno> {
    let mut args = QgroupCreate { create: 0, qgroup };
    ioctl(root, QGROUP_CREATE, &mut args).map(drop)
}

/// The ids of the subvolumes directly inside subvolume `parent`.
pub(crate) fn child_subvols(root: BorrowedFd<'_>, parent: u64) -> Result<Vec<u64>, Errno> {
    let mut children = Vec::new();
    let mut from = 0u64;
    loop {
        let batch = search_root_tree(root, parent, ROOT_REF, from)?;
        let Some(&last) = batch.last() else {
            return Ok(children);
        };
        children.extend(batch);
        if last == u64::MAX {
            return Ok(children);
        }
        from = last + 1;
    }
}

/// Whether subvolume `id` still exists, also while its deletion is being carried out.
pub(crate) fn subvol_exists(root: BorrowedFd<'_>, id: u64) -> Result<bool, Errno> {
    Ok(!search_root_tree(root, id, ROOT_ITEM, 0)?.is_empty())
}

/// One batch of key offsets of the items `(objectid, kind, from..)` of the root tree.
fn search_root_tree(
    root: BorrowedFd<'_>,
    objectid: u64,
    kind: u32,
    from: u64,
) -> Result<Vec<u64>, Errno> {
    const HEADER: usize = 32;
    let mut args = Box::new(SearchArgs {
        tree_id: ROOT_TREE,
        min_objectid: objectid,
        max_objectid: objectid,
        min_offset: from,
        max_offset: u64::MAX,
        min_transid: 0,
        max_transid: u64::MAX,
        min_type: kind,
        max_type: kind,
        nr_items: u32::MAX,
        unused: 0,
        unused_more: [0; 4],
        buf: [0; 4096 - 104],
    });
    ioctl(root, TREE_SEARCH, &mut *args)?;
    let mut offsets = Vec::new();
    let mut rest = &args.buf[..];
    for _ in 0..args.nr_items {
        let Some((header, after)) = rest.split_at_checked(HEADER) else {
            break;
        };
        // transid, objectid and offset of eight bytes each, then type and length of four.
        let offset: [u8; 8] = header[16..24].try_into().expect("a slice of eight bytes");
        let length: [u8; 4] = header[28..32].try_into().expect("a slice of four bytes");
        offsets.push(u64::from_ne_bytes(offset));
        rest = after
            .get(u32::from_ne_bytes(length) as usize..)
            .unwrap_or_default();
    }
    Ok(offsets)
}
