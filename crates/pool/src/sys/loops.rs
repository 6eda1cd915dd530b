//! The ioctls of loop devices.

use std::ffi::c_ulong;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::{ioctl, ioctl_value};

const GET_STATUS64: c_ulong = 0x4c05;
const SET_CAPACITY: c_ulong = 0x4c07;
const CONFIGURE: c_ulong = 0x4c0a;
const CTL_GET_FREE: c_ulong = 0x4c82;

pub(crate) const AUTOCLEAR: u32 = 4;
pub(crate) const DIRECT_IO: u32 = 16;

#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = {
    assert!(size_of::<Info>() == 232);
    assert!(size_of::<Config>() == 304);
};

/// What a loop device is bound to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    pub device: u64,
    pub inode: u64,
}

pub(crate) fn get_free(control: BorrowedFd<'_>) -> Result<u32, Errno> {
    ioctl_value(control, CTL_GET_FREE, 0).map(|n| n.unsigned_abs())
}

/// Binds a loop device to a file in one step, so that no half-configured device is ever seen.
pub(crate) fn configure(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    block_size: u32,
    flags: u32,
) -> Result<(), Errno> {
    let mut config = Box::new(Config {
        fd: file.as_raw_fd().unsigned_abs(),
        block_size,
        info: loop_info(),
        reserved: [0; 8],
    });
    config.info.flags = flags;
    ioctl(device, CONFIGURE, &mut *config).map(drop)
}

pub(crate) fn status(device: BorrowedFd<'_>) -> Result<Status, Errno> {
    let mut info = loop_info();
    ioctl(device, GET_STATUS64, &mut info)?;
    Ok(Status {
        device: info.device,
        inode: info.inode,
    })
}

pub(crate) fn set_capacity(device: BorrowedFd<'_>) -> Result<(), Errno> {
    ioctl_value(device, SET_CAPACITY, 0).map(drop)
}

fn loop_info() -> Info {
    Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    }
}
