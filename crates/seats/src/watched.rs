//! Descriptors the runtime watches. Registering is unsafe in tokio because a foreign type could
//! change its descriptor; the two standard owners used here never do.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub fn owned(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd keeps its one descriptor open until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

pub fn file(file: File, interest: Interest) -> io::Result<AsyncFd<File>> {
    // SAFETY: a File keeps its one descriptor open until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(file, interest) }?)
}
