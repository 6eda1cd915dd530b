//! How the host follows the first process of a seat and reaches the guest in it.

use std::os::fd::OwnedFd;

use cove_isolation::IsolationError;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::cgroup::{Group, MemoryWatch};
use crate::reach::{Answerer, GuestSocket};

pub struct Senses {
    pub pid: i32,
    pub pidfd: AsyncFd<OwnedFd>,
    pub reach: GuestSocket,
    pub watch: MemoryWatch,
    pub mark: tokio::sync::watch::Sender<u64>,
}

impl Senses {
    /// Needs a runtime.
    pub fn open(
        pid: i32,
        pidfd: OwnedFd,
        group: &Group,
        mark: u64,
        answerer: Answerer,
    ) -> Result<Self, IsolationError> {
        let mark = tokio::sync::watch::Sender::new(mark);
        let watch = group
            .watch(mark.subscribe())
            .map_err(IsolationError::failed("watch the memory"))?;
        let pidfd = crate::watched::owned(pidfd, Interest::READABLE)
            .map_err(IsolationError::failed("watch PID 1"))?;
        Ok(Self {
            pid,
            pidfd,
            reach: GuestSocket::open(pid, answerer),
            watch,
            mark,
        })
    }
}
