//! A seat: a child parked in its namespaces, with a slot and a cgroup, waiting for a root.
//! Nothing about it depends on an image or a spec, so seats can be made ahead.

use std::io;
use std::net::{SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cove_isolation::IsolationError;
use cove_isolation::slots::{Slot, Slots};
use cove_model::{NetworkMode, NetworkPolicy, SandboxId};
use cove_network::{Network, NetworkError};
use cove_spawner::message::{ChildReply, Keeper, MountPoints, Prepare, Start};
use cove_wire::packet;
use rustix::event::{PollFd, PollFlags, poll};

use crate::cgroup::{Cgroups, Group};
use crate::guest_program::Programs;
use crate::spawner::{self, Prepared, Spawner};

/// What every seat of a tier has in common.
#[derive(Debug)]
pub struct SeatMaker {
    pub spawner: Arc<Spawner>,
    pub cgroups: Arc<Cgroups>,
    pub slots: Arc<Slots>,
    pub programs: Programs,
    pub staging: String,
    /// Absent on a host that cannot have one; sandboxes reach nothing then.
    pub network: Option<Arc<Network>>,
    /// Whether each has an interface from the start, for programs that see no later one.
    pub always_attached: bool,
    /// How long a child may take to start the guest.
    pub patience: Duration,
}

/// A sandbox's place in the network: the namespace, and the interface that leads to it.
#[derive(Debug)]
pub struct Link {
    /// Keeps the interface, and with it the counters, until the sandbox is cleared away.
    namespace: OwnedFd,
    network: Option<Arc<Network>>,
    index: u32,
    /// Whether the interface is there, all set up. One that may reach nothing needs none.
    attached: AtomicBool,
    /// It is made whatever the first policy is, and its far end knows the gateway's hardware address.
    always: bool,
    /// It was started without an interface and would not see one that comes now.
    late: AtomicBool,
}

impl Link {
    /// The network namespace of a process that `pidfd` stands for.
    pub fn of(
        pid: i32,
        pidfd: BorrowedFd<'_>,
        slot: &Slot,
        network: Option<&Arc<Network>>,
    ) -> std::io::Result<Self> {
        let namespace = rustix::fs::open(
            format!("/proc/{pid}/ns/net"),
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        // It was still this process when its namespace was opened.
        if !is_alive(pidfd) {
            return Err(std::io::Error::other("the process ended"));
        }
        Ok(Self {
            namespace,
            network: network.cloned(),
            index: slot.network_index(),
            attached: AtomicBool::new(false),
            always: false,
            late: AtomicBool::new(false),
        })
    }

    /// Makes the interface, with nothing allowed.
    fn attach(&self) -> Result<(), IsolationError> {
        match &self.network {
            Some(network) => {
                network
                    .attach(self.index, self.namespace.as_fd())
                    .map_err(|error| IsolationError::failed("attach the network")(error.into()))?;
                if self.always {
                    network
                        .know_gateway(self.namespace.as_fd())
                        .map_err(|error| {
                            IsolationError::failed("announce the gateway's address")(error.into())
                        })?;
                }
                self.attached.store(true, Ordering::Release);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// What a namespace needs that processes are about to be restored in. They may have sockets with
    /// the sandbox's address, whatever its policy is now, so that it has an interface in any case.
    pub fn furnish(&self, slot: &Slot) -> Result<(), IsolationError> {
        // Older kernels take no group numbers as high as some slots have.
        if let Err(error) = cove_network::let_ping(self.namespace.as_fd(), slot.uids()) {
            tracing::warn!(%error, index = self.index, "ping does not work in a restored sandbox");
        }
        self.attach()
    }

    /// An interface comes with the first policy that lets it reach something.
    pub fn set(&self, id: &SandboxId, policy: &NetworkPolicy) -> Result<(), IsolationError> {
        match &self.network {
            Some(network) => {
                if !self.attached.load(Ordering::Acquire) {
                    let closed = policy.mode == NetworkMode::None;
                    match self.late.load(Ordering::Acquire) {
                        true if !closed => {
                            return Err(IsolationError::Unsupported(
                                "the sandbox was started on a host without a network and has no interface; stop and start it first".into(),
                            ));
                        }
                        true => return Ok(()),
                        false if closed && !self.always => return Ok(()),
                        false => {}
                    }
                    self.attach()?;
                }
                let namespace = self.namespace.as_fd();
                let closed = policy.mode == NetworkMode::None;
                let failed = |error: NetworkError| {
                    IsolationError::failed("set the network policy")(error.into())
                };
                network
                    .set(self.index, namespace, id, policy)
                    .map_err(failed)?;
                // A kernel of the sandbox's own sends by the interface, whatever this namespace has.
                match self.always {
                    true => Ok(()),
                    false => network
                        .keep_names_inside(self.index, namespace, closed)
                        .map_err(failed),
                }
            }
            None if policy.mode == NetworkMode::None => Ok(()),
            None => Err(IsolationError::Unsupported(
                "this host has no network for sandboxes; see `cove doctor`".into(),
            )),
        }
    }

    /// The interface of a machine with a network stack of its own; `None` where the sandbox has no network.
    pub fn tap(&self) -> Result<Option<OwnedFd>, IsolationError> {
        match &self.network {
            Some(network) if self.attached.load(Ordering::Acquire) => network
                .tap(self.namespace.as_fd(), crate::tap::open)
                .map(Some)
                .map_err(|error| IsolationError::failed("make the interface")(error.into())),
            _ => Ok(None),
        }
    }

    /// Listens on the loopback inside.
    pub fn listen(&self, address: SocketAddrV4) -> io::Result<TcpListener> {
        cove_network::listen(self.namespace.as_fd(), address)
    }

    /// Takes note of a sandbox that an earlier engine attached, if it did.
    pub fn adopt(&self, id: &SandboxId, policy: &NetworkPolicy) {
        let Some(network) = &self.network else {
            return;
        };
        let looked = match self.always {
            // Who takes the addresses over leaves nothing to see in the namespace, but the host's end is there.
            true => network
                .counters(self.index)
                .map(|counters| counters.is_some())
                .map_err(io::Error::from),
            false => cove_network::is_attached(self.namespace.as_fd()),
        };
        let attached = looked.unwrap_or_else(|error| {
            tracing::warn!(%error, sandbox = %id, "cannot inspect its interface");
            self.always || policy.mode != NetworkMode::None
        });
        self.late.store(self.always && !attached, Ordering::Release);
        if attached {
            network.adopt(self.index, id, policy);
            self.attached.store(true, Ordering::Release);
        }
    }

    /// Bytes sent and received so far.
    pub fn counters(&self) -> (u64, u64) {
        // One of that name may still be there of somebody before it.
        let counted = self
            .network
            .as_ref()
            .filter(|_| self.attached.load(Ordering::Acquire))
            .and_then(|network| network.counters(self.index).ok().flatten())
            .unwrap_or_default();
        (counted.sent, counted.received)
    }

    /// Takes the rules away; the interface goes with the namespace. Not on drop: an engine that ends
    /// leaves sandboxes running.
    pub fn release(self) {
        if let Some(network) = &self.network
            && let Err(error) = network.release(self.index)
        {
            tracing::warn!(error = %std::io::Error::from(error), index = self.index, "cannot remove the nftables rules of a sandbox; the next start retries");
        }
    }
}

/// Dropping a seat ends its child and removes its cgroup.
#[derive(Debug)]
pub struct Seat {
    /// Empty once the seat became a machine, which then owns the clean-up.
    parts: Option<Parts>,
    parked: bool,
    patience: Duration,
}

#[derive(Debug)]
struct Parts {
    link: Link,
    slot: Slot,
    group: Group,
    child: Prepared,
}

/// The parts of a seat that a machine keeps.
pub struct Taken {
    pub link: Link,
    pub slot: Slot,
    pub group: Group,
    pub pid: i32,
    pub pidfd: OwnedFd,
    /// Where its volumes really are.
    pub mounted: Vec<String>,
}

/// A machine's volumes as detached mounts, and where they go, in the same order. A keeper is given other
/// descriptors instead, which go nowhere.
#[derive(Debug, Default)]
pub struct Volumes {
    pub trees: Vec<OwnedFd>,
    pub paths: Vec<String>,
}

impl SeatMaker {
    /// The place in the network of a seat's process.
    pub fn link(&self, pid: i32, pidfd: BorrowedFd<'_>, slot: &Slot) -> io::Result<Link> {
        let mut link = Link::of(pid, pidfd, slot, self.network.as_ref())?;
        link.always = self.always_attached;
        Ok(link)
    }

    /// Makes a child; it goes on preparing by itself when this returns.
    pub fn make(&self) -> Result<Seat, IsolationError> {
        let slot = self
            .slots
            .take()
            .map_err(IsolationError::failed("claim a uid range"))?
            .ok_or(IsolationError::Exhausted("uid range"))?;
        let group = self
            .cgroups
            .create(&slot.name())
            .map_err(IsolationError::failed("make the cgroup"))?;
        let guest_dir = match self.programs.dir() {
            Ok(dir) => dir.to_string_lossy().into_owned(),
            Err(error) => {
                let _ = remove_when_empty(&group);
                return Err(IsolationError::failed("install the guest")(error));
            }
        };
        let request = Prepare {
            uid_base: slot.uid_base(),
            cgroup: group.entry(),
            guest_dir,
            staging: self.staging.clone(),
        };
        match self.spawner.prepare(request) {
            Ok(child) => match self.link(child.pid, child.pidfd.as_fd(), &slot) {
                Ok(link) => Ok(Seat {
                    parts: Some(Parts {
                        link,
                        slot,
                        group,
                        child,
                    }),
                    parked: false,
                    patience: self.patience,
                }),
                Err(error) => {
                    let _ = rustix::process::pidfd_send_signal(
                        &child.pidfd,
                        rustix::process::Signal::KILL,
                    );
                    let _ = remove_when_empty(&group);
                    Err(IsolationError::failed("open the network namespace")(error))
                }
            },
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
        self.parts().slot.uid_base()
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
        is_alive(self.parts().child.pidfd.as_fd())
    }

    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.parts().child.pidfd.as_fd()
    }

    pub fn link(&self) -> &Link {
        &self.parts().link
    }

    /// For work that takes longer than a start.
    pub(crate) fn wait_longer(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Waits until everything that needs no image is in place.
    pub fn wait_parked(&mut self) -> Result<(), IsolationError> {
        if !self.parked {
            self.expect("prepare the sandbox", spawner::PATIENCE, |reply| {
                matches!(reply, ChildReply::Parked)
            })?;
            self.parked = true;
        }
        Ok(())
    }

    /// Tells the child what to become, with `root`, and waits until its socket listens.
    pub fn start(
        mut self,
        start: &Start,
        root: OwnedFd,
        volumes: Volumes,
        keeper: Option<&Keeper>,
    ) -> Result<Taken, IsolationError> {
        self.wait_parked()?;
        let packed = keeper.map(packed).transpose();
        let keeper = packed.map_err(IsolationError::failed("describe the sandbox"))?;
        let mut given = vec![root.as_fd()];
        given.extend(volumes.trees.iter().map(AsFd::as_fd));
        given.extend(keeper.iter().map(AsFd::as_fd));
        let told = IsolationError::failed("signal the child to start");
        packet::send(&self.parts().child.socket, start, &given).map_err(told)?;
        drop(root);
        let mounted = match volumes.paths.is_empty() {
            true => Vec::new(),
            false => self.mount(volumes)?,
        };
        self.expect("start the guest", self.patience, |reply| {
            matches!(reply, ChildReply::Ready)
        })?;
        self.expect_exec()?;
        let Parts {
            link,
            slot,
            group,
            child,
        } = self.parts.take().expect("nothing took them before");
        Ok(Taken {
            link,
            slot,
            group,
            pid: child.pid,
            pidfd: child.pidfd,
            mounted,
        })
    }

    fn mount(&self, volumes: Volumes) -> Result<Vec<String>, IsolationError> {
        let socket = &self.parts().child.socket;
        let told = IsolationError::failed("send the child the mount points");
        packet::send(socket, &MountPoints(volumes.paths), &[]).map_err(told)?;
        drop(volumes.trees);
        let step = "mount the volumes";
        match spawner::receive::<ChildReply>(socket).map_err(IsolationError::failed(step))? {
            (ChildReply::Mounted(paths), _) => Ok(paths),
            (ChildReply::Failed(failure), _) => Err(IsolationError::Failed {
                step: failure.step,
                source: std::io::Error::from_raw_os_error(failure.errno),
            }),
            _ => Err(IsolationError::failed(step)(std::io::Error::other(
                "the child answered out of turn",
            ))),
        }
    }

    /// The child's end of the socket closes when it becomes the guest; a failure to do so is reported.
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

    fn expect(
        &self,
        step: &str,
        patience: Duration,
        wanted: fn(&ChildReply) -> bool,
    ) -> Result<(), IsolationError> {
        match spawner::receive_within::<ChildReply>(&self.parts().child.socket, patience)
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
        let removed = remove_when_empty(&parts.group);
        parts.link.release();
        if let Err(error) = removed {
            tracing::warn!(%error, group = parts.slot.name(), "the cgroup of an unused seat stays behind until the next sweep");
        }
    }
}

/// In a file that only lives in memory.
fn packed(keeper: &Keeper) -> io::Result<OwnedFd> {
    let bytes = postcard::to_stdvec(keeper).map_err(io::Error::other)?;
    let memory = rustix::fs::memfd_create("cove-keeper", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory);
    io::Write::write_all(&mut file, &bytes)?;
    Ok(file.into())
}

pub fn is_alive(pidfd: BorrowedFd<'_>) -> bool {
    let now = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let ended = &mut [PollFd::new(&pidfd, PollFlags::IN)];
    matches!(poll(ended, Some(&now)), Ok(0))
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
