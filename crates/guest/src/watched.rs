//! Descriptors that the event loop watches.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub type Watched = AsyncFd<OwnedFd>;

/// Makes the descriptor non-blocking and watches it.
pub fn watch(fd: OwnedFd, interest: Interest) -> io::Result<Watched> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // SAFETY: an `OwnedFd` is open until dropped and always names the same descriptor.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
