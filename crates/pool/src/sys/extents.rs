//! FIEMAP: where a file's bytes lie on disk, and whether somebody else uses the same place.

use std::ffi::c_ulong;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `_IOWR('f', 11, struct fiemap)`; the size is that of the head without extents.
const FIEMAP: c_ulong = (3 << 30) | (32 << 16) | ((b'f' as c_ulong) << 8) | 11;
/// Extents asked for at once.
const BATCH: usize = 64;

const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const INLINE: u32 = 0x200;
const SHARED: u32 = 0x2000;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_more: [u32; 3],
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; BATCH],
}

const _: () = {
    assert!(size_of::<Extent>() == 56);
    assert!(size_of::<Request>() == 32 + 56 * BATCH);
};

/// Bytes of one file by who uses them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FileShares {
    pub exclusive: u64,
    pub shared: u64,
}

/// Sums the extents of a file. Content small enough to lie among the metadata counts as exclusive
/// nowhere: it goes and comes with the tree it is in.
pub(crate) fn shares(file: BorrowedFd<'_>) -> Result<FileShares, Errno> {
    let mut sum = FileShares::default();
    let mut start = 0;
    loop {
        let mut request = Box::new(Request {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: BATCH as u32,
            reserved: 0,
            extents: [Extent::default(); BATCH],
        });
        // SAFETY: `file` is open for the length of the call; the kernel writes the head and at most
        // `count` extents, which the block owns.
        let rc = unsafe {
            libc::ioctl(
                file.as_raw_fd(),
                FIEMAP as _,
                std::ptr::from_mut(&mut *request),
            )
        };
        super::check(rc)?;
        let mapped = (request.mapped as usize).min(BATCH);
        for extent in &request.extents[..mapped] {
            if extent.flags & (INLINE | UNKNOWN) == 0 {
                if extent.flags & SHARED != 0 {
                    sum.shared += extent.length;
                } else {
                    sum.exclusive += extent.length;
                }
            }
            start = extent.logical.saturating_add(extent.length);
        }
        let last = request.extents[..mapped].last();
        if last.is_none_or(|extent| extent.flags & LAST != 0) || start == u64::MAX {
            return Ok(sum);
        }
    }
}
