//! The device that the interface of a virtual machine is made with.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

const DEVICE: &str = "/dev/net/tun";

/// Makes an interface called [`cove_network::TAP`] in the network namespace of the calling thread. It is gone with the
/// last copy of the descriptor.
pub fn open() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let tap = rustix::fs::open(DEVICE, flags, Mode::empty())?;
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(cove_network::TAP.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the request lives through the call and has the type that it reads and writes.
    match unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
        0 => Ok(tap),
        _ => Err(io::Error::last_os_error()),
    }
}
