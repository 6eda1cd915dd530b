//! A seat: a child parked in its namespaces, with a uid range and a cgroup, waiting for a root.
//! Nothing about it depends on an image or a spec, so seats can be made ahead.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cove_isolation::IsolationError;
use cove_isolation::claims::{UidRange, UidRanges};
use cove_spawner::message::{ChildReply, Prepare, Start};
use cove_spawner::socket;
use rustix::event::{PollFd, PollFlags, poll};

use crate::cgroup::{Cgroups, Group};
use crate::spawner::{self, Prepared, Spawner};

/// What every seat of a tier has in common.
#[derive(Debug)]
pub struct SeatMaker {
    pub spawner: Arc<Spawner>,
    pub cgroups: Arc<Cgroups>,
    pub ranges: Arc<UidRanges>,
    pub guest_dir: String,
    pub staging: String,
}

/// Dropping a seat ends its child and removes its cgroup.
#[derive(Debug)]
pub struct Seat {
    /// Empty once the seat became a machine, which then owns the clean-up.
    parts: Option<Parts>,
    parked: bool,
}

#[derive(Debug)]
struct Parts {
    range: UidRange,
    group: Group,
    child: Prepared,
}

/// The parts of a seat that a machine keeps.
pub struct Taken {
    pub range: UidRange,
    pub group: Group,
    pub pid: i32,
    pub pidfd: OwnedFd,
}

pub fn group_name(range: &UidRange) -> String {
    format!("sandbox-{}", range.index())
}

impl SeatMaker {
    /// Makes a child; it goes on preparing by itself when this returns.
    pub fn make(&self) -> Result<Seat, IsolationError> {
        let range = self
            .ranges
            .take()
            .map_err(IsolationError::failed("claim a uid range"))?
            .ok_or(IsolationError::Exhausted("uid range"))?;
        let group = self
            .cgroups
            .create(&group_name(&range))
            .map_err(IsolationError::failed("make the cgroup"))?;
        let request = Prepare {
            uid_base: range.base(),
            cgroup: group.entry(),
            guest_dir: self.guest_dir.clone(),
            staging: self.staging.clone(),
        };
        match self.spawner.prepare(request) {
            Ok(child) => Ok(Seat {
                parts: Some(Parts {
                    range,
                    group,
                    child,
                }),
                parked: false,
            }),
            Err(error) => {
                // The spawner killed what it may have made; the group can be in use for a moment more.
                let _ = remove_when_empty(&group);
                Err(error)
            }
        }
    }
}

impl Seat {
    fn parts(&self) -> &Parts {
        self.parts
            .as_ref()
            .expect("only `start` takes the parts, and it consumes the seat")
    }

    pub fn uid_base(&self) -> u32 {
        self.parts().range.base()
    }

    pub fn group(&self) -> &Group {
        &self.parts().group
    }

    pub fn user_ns(&self) -> std::os::fd::BorrowedFd<'_> {
        self.parts().child.user_ns.as_fd()
    }

    pub fn pid(&self) -> i32 {
        self.parts().child.pid
    }

    /// Whether its child still waits; one that was killed must not be given to a boot.
    pub fn is_alive(&self) -> bool {
        let pidfd = self.parts().child.pidfd.as_fd();
        let now = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ended = &mut [PollFd::new(&pidfd, PollFlags::IN)];
        matches!(poll(ended, Some(&now)), Ok(0))
    }

    /// Waits until everything that needs no image is in place.
    pub fn wait_parked(&mut self) -> Result<(), IsolationError> {
        if !self.parked {
            self.expect("prepare the sandbox", |reply| {
                matches!(reply, ChildReply::Parked)
            })?;
            self.parked = true;
        }
        Ok(())
    }

    /// Tells the child to become the guest in `root` and waits until its socket listens.
    pub fn start(mut self, start: &Start, root: OwnedFd) -> Result<Taken, IsolationError> {
        self.wait_parked()?;
        socket::send(&self.parts().child.socket, start, &[root.as_fd()])
            .map_err(IsolationError::failed("tell the child to start"))?;
        drop(root);
        self.expect("start the guest", |reply| {
            matches!(reply, ChildReply::Ready)
        })?;
        self.expect_exec()?;
        let Parts {
            range,
            group,
            child,
        } = self.parts.take().expect("nothing took them before");
        Ok(Taken {
            range,
            group,
            pid: child.pid,
            pidfd: child.pidfd,
        })
    }

    /// The child's end of the socket closes when it becomes the guest; a failure to do so is told.
    fn expect_exec(&self) -> Result<(), IsolationError> {
        match spawner::receive::<ChildReply>(&self.parts().child.socket) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(IsolationError::failed("run the guest")(error)),
            Ok((ChildReply::Failed(failure), _)) => Err(IsolationError::Failed {
                step: failure.step,
                source: std::io::Error::from_raw_os_error(failure.errno),
            }),
            Ok(_) => Err(IsolationError::failed("run the guest")(
                std::io::Error::other("the child answered out of turn"),
            )),
        }
    }

    fn expect(&self, step: &str, wanted: fn(&ChildReply) -> bool) -> Result<(), IsolationError> {
        match spawner::receive::<ChildReply>(&self.parts().child.socket)
            .map_err(IsolationError::failed(step))?
        {
            (ChildReply::Failed(failure), _) => Err(IsolationError::Failed {
                step: failure.step,
                source: std::io::Error::from_raw_os_error(failure.errno),
            }),
            (reply, _) if wanted(&reply) => Ok(()),
            _ => Err(IsolationError::failed(step)(std::io::Error::other(
                "the child answered out of turn",
            ))),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else {
            return;
        };
        if let Err(errno) =
            rustix::process::pidfd_send_signal(&parts.child.pidfd, rustix::process::Signal::KILL)
        {
            tracing::debug!(%errno, "a parked child had ended already");
        }
        if let Err(error) = remove_when_empty(&parts.group) {
            tracing::warn!(%error, group = group_name(&parts.range), "the cgroup of an unused seat stays behind until the next sweep");
        }
    }
}

/// Waits for the group to be empty, for a bounded time, and removes it.
pub fn remove_when_empty(group: &Group) -> std::io::Result<()> {
    // Ten seconds: freeing the memory of a large sandbox takes a while on a busy host.
    const TRIES: u32 = 2000;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
    for _ in 0..TRIES {
        match group.remove() {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(PAUSE)
            }
            other => return other,
        }
    }
    group.remove()
}
