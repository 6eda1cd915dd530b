//! A running container: its PID 1, its cgroup, its slot.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use cove_isolation::slots::Slot;
use cove_isolation::{
    Afterwards, AtRest, Captured, IsolationError, Machine, MachineRecord, MemoryEvent, Usage,
};
use cove_model::{NetworkPolicy, Resources, SandboxId};
use cove_protocol::brief::{self, BriefError};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use crate::capture::{self, Subject};
use crate::capturer::Capturer;
use crate::cgroup::{Group, MemoryLimit, MemoryWatch};
use crate::cpus::CpuBook;
use crate::retired::Retired;
use crate::seat::{self, Link};

pub const TIER: &str = "container";

/// A full queue of connections is waited for this often before the guest counts as stuck.
const CONNECT_TRIES: u32 = 50;
const CONNECT_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// How long transfers with a guest that are under way may hold a capture up.
const QUIESCE_WAIT: std::time::Duration = std::time::Duration::from_secs(10);
/// What the guest may take beyond that to answer.
const QUIESCE_MARGIN: std::time::Duration = std::time::Duration::from_secs(10);
/// How long a restored guest may take to look around.
const REFRESH_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

/// What finds a container again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    pub pid: i32,
    /// In clock ticks since boot: a pid that was given to another process has another start.
    pub start_time: u64,
    /// Names the slot.
    pub uid_base: u32,
    pub cpus: Vec<u32>,
    pub cpu: f64,
    /// The pool's block device, for I/O limits.
    pub device: Option<(u32, u32)>,
    /// The directory name of the guest it runs, which a restore must find again.
    #[serde(default)]
    pub guest: String,
    /// Absent in records from before sandboxes had a network.
    #[serde(default)]
    pub sandbox: Option<SandboxId>,
    #[serde(default)]
    pub network: NetworkPolicy,
}

pub struct Container {
    detail: Mutex<Detail>,
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    group: Group,
    cpus: Arc<CpuBook>,
    capturer: Arc<Capturer>,
    retired: Arc<Retired>,
    /// Held while it is captured, frozen or thawed.
    turn: Arc<tokio::sync::Mutex<()>>,
    reach: Reach,
    watch: tokio::sync::Mutex<Option<MemoryWatch>>,
    /// Where memory in use calls for growth; see [`MemoryLimit::mark`].
    mark: tokio::sync::watch::Sender<u64>,
    /// What goes back when it is cleared away.
    held: Arc<Mutex<Option<Held>>>,
}

struct Held {
    link: Link,
    slot: Slot,
}

/// How the host follows a process and reaches the guest in it.
pub struct Senses {
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    reach: Reach,
    watch: MemoryWatch,
    mark: tokio::sync::watch::Sender<u64>,
}

impl Senses {
    /// Needs a runtime.
    pub fn open(
        pid: i32,
        pidfd: OwnedFd,
        group: &Group,
        mark: u64,
    ) -> Result<Self, IsolationError> {
        let mark = tokio::sync::watch::Sender::new(mark);
        let watch = group
            .watch(mark.subscribe())
            .map_err(IsolationError::failed("watch the memory"))?;
        let pidfd = crate::watched::owned(pidfd, Interest::READABLE)
            .map_err(IsolationError::failed("watch PID 1"))?;
        // Root inside may have removed it. That harms nobody else: only whoever wants in hears of it.
        let socket = open_socket(pid);
        Ok(Self {
            pid,
            pidfd,
            reach: Reach { socket, pid },
            watch,
            mark,
        })
    }
}

impl Container {
    pub fn new(
        detail: Detail,
        senses: Senses,
        group: Group,
        (link, slot): (Link, Slot),
        cpus: Arc<CpuBook>,
        (capturer, retired): (Arc<Capturer>, Arc<Retired>),
    ) -> Self {
        Self {
            detail: Mutex::new(detail),
            pid: senses.pid,
            pidfd: senses.pidfd,
            group,
            cpus,
            capturer,
            retired,
            turn: Arc::default(),
            reach: senses.reach,
            watch: tokio::sync::Mutex::new(Some(senses.watch)),
            mark: senses.mark,
            held: Arc::new(Mutex::new(Some(Held { link, slot }))),
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn detail(&self) -> std::sync::MutexGuard<'_, Detail> {
        self.detail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pidfd for the process in the record, if it is still the same process.
pub fn find(detail: &Detail) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(detail.pid) else {
        return Ok(None);
    };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // Looked at after the pidfd is held: from here on the pid cannot be given to another process.
    Ok((start_time(detail.pid)? == Some(detail.start_time)).then_some(pidfd))
}

/// When a process started, from its stat line; `None` when there is none or it has ended.
pub fn start_time(pid: i32) -> io::Result<Option<u64>> {
    let text = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // The name is in parentheses and may hold anything; the fields after the last one are plain.
    let fields: Vec<&str> = text
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .collect();
    let ended = matches!(fields.first(), Some(&"Z" | &"X"));
    Ok(fields
        .get(19)
        .filter(|_| !ended)
        .and_then(|field| field.parse().ok()))
}

fn open_root(pid: i32) -> io::Result<OwnedFd> {
    Ok(openat(
        CWD,
        format!("/proc/{pid}/root"),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Opens the one path of a guest's tree that the host ever resolves, following nothing.
fn open_socket(pid: i32) -> io::Result<OwnedFd> {
    let root = open_root(pid)?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(
        &root,
        cove_protocol::SOCKET_PATH,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )?)
}

/// The way to a guest.
struct Reach {
    /// Opened once: what is put in its place later is never looked at.
    socket: io::Result<OwnedFd>,
    pid: i32,
}

impl Reach {
    async fn connect(&self) -> io::Result<UnixStream> {
        let socket = self.socket.as_ref().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("the guest's socket was not in its place: {error}"),
            )
        })?;
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let mut tries = 0;
        let stream = loop {
            match UnixStream::connect(&path).await {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && tries < CONNECT_TRIES =>
                {
                    tries += 1;
                    tokio::time::sleep(CONNECT_PAUSE).await;
                }
                other => break other?,
            }
        };
        // After an adoption the path may have held another process's socket by then.
        match stream.peer_cred()?.pid() {
            Some(pid) if pid == self.pid => Ok(stream),
            other => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("the guest's socket is answered by process {other:?} instead of PID 1"),
            )),
        }
    }
}

/// Has the guest let go of every connection to the host.
async fn quiesce(reach: &Reach) -> Result<(), IsolationError> {
    match brief::quiesce(reach.connect(), QUIESCE_WAIT, QUIESCE_MARGIN).await {
        Ok(()) => Ok(()),
        Err(BriefError::Refused {
            at_limit: true,
            quote,
        }) => Err(IsolationError::Uncapturable {
            process: "the sandbox's own guest".into(),
            reason: format!("it says {quote}; try again when they are over"),
        }),
        Err(BriefError::TimedOut(limit)) => Err(IsolationError::TimedOut {
            step: "asking the guest to let go of its connections",
            seconds: limit.as_secs(),
        }),
        Err(error) => Err(IsolationError::failed("quiesce the guest")(
            io::Error::other(error),
        )),
    }
}

/// Lets the guest take calls again, and the machine stand still again if it did before, however a
/// capture ends.
struct Stillness {
    pidfd: OwnedFd,
    group: Group,
    freeze: bool,
}

impl Drop for Stillness {
    fn drop(&mut self) {
        wake(&self.pidfd);
        if self.freeze
            && let Err(error) = self.group.freeze()
        {
            tracing::warn!(%error, "a machine that was frozen before its capture goes on");
        }
    }
}

/// A guest that is quiet for a capture takes calls again.
fn wake(pidfd: &OwnedFd) {
    // One that is gone needs no waking.
    let _ = pidfd_send_signal(pidfd, Signal::USR1);
}

impl Container {
    /// An engine that died in the middle of a capture may have left the guest quiet.
    pub fn wake(&self) {
        wake(self.pidfd.get_ref());
    }

    /// A restored guest takes calls again and looks who it is now.
    pub async fn introduce(&self) {
        self.wake();
        if let Err(error) = brief::refresh(self.reach.connect(), REFRESH_LIMIT).await {
            tracing::warn!(%error, "a restored guest may still tell its old name and limits");
        }
    }
}

#[async_trait]
impl Machine for Container {
    fn record(&self) -> MachineRecord {
        let detail = serde_json::to_value(&*self.detail()).expect("a plain struct serialises");
        MachineRecord {
            tier: TIER.into(),
            detail,
        }
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        self.reach.connect().await
    }

    async fn exited(&self) {
        // A pidfd never stops being readable once the process ended, so errors cannot hide an exit.
        let _ = self.pidfd.readable().await;
    }

    fn kill(&self) -> io::Result<()> {
        if self.group.is_asked_to_freeze().unwrap_or(false) {
            // What stands still must never run again, not even for the moment between the end of
            // PID 1 and its own: its disk belongs to the memory that was captured of it. None of
            // these can end by itself, so their numbers are theirs.
            for pid in self.group.processes() {
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
            }
        }
        match pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            other => {
                other?;
                // On version 1 a stopped process dies only once it may go on.
                if self.group.is_asked_to_freeze().unwrap_or(false) {
                    self.group.thaw()?;
                }
                Ok(())
            }
        }
    }

    fn usage(&self) -> Result<Usage, IsolationError> {
        let mut usage = self
            .group
            .usage()
            .map_err(IsolationError::failed("read the cgroup"))?;
        if let Some(held) = self.held().as_ref() {
            (usage.network_sent_bytes, usage.network_received_bytes) = held.link.counters();
        }
        Ok(usage)
    }

    fn set_network(&self, policy: &NetworkPolicy) -> Result<(), IsolationError> {
        let mut detail = self.detail();
        match (self.held().as_ref(), &detail.sandbox) {
            (Some(held), Some(sandbox)) => held.link.set(sandbox, policy)?,
            _ => {
                return Err(IsolationError::failed("set the network policy")(
                    io::Error::other("the machine has no network any more"),
                ));
            }
        }
        detail.network = policy.clone();
        Ok(())
    }

    fn resize(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        let usage = self.usage()?;
        let needed = usage
            .memory_bytes
            .saturating_sub(usage.memory_reclaimable_bytes);
        if memory_mb << 20 < needed {
            return Err(IsolationError::LimitBelowUse {
                field: "memory_mb",
                used: needed.div_ceil(1 << 20),
                wanted: memory_mb,
            });
        }
        if limits.pids < usage.pids {
            return Err(IsolationError::LimitBelowUse {
                field: "pids",
                used: usage.pids,
                wanted: limits.pids,
            });
        }
        let failed = |error| IsolationError::failed("change the limits")(error);
        let memory = MemoryLimit::of(limits, memory_mb);
        self.group.set_memory(memory).map_err(failed)?;
        self.mark.send_replace(memory.mark());
        self.group.set_pids(limits.pids).map_err(failed)?;
        let mut detail = self.detail();
        if detail.cpu != limits.cpu {
            self.cpus.give_back(&detail.cpus, detail.cpu);
            let cpus = self.cpus.take(limits.visible_cpus(), limits.cpu);
            self.group.set_cpu(limits.cpu, &cpus).map_err(failed)?;
            detail.cpus = cpus;
            detail.cpu = limits.cpu;
        }
        Ok(())
    }

    fn reapply(&self, limits: &Resources, memory_mb: u64) -> Result<(), IsolationError> {
        let failed = |error| IsolationError::failed("set the limits")(error);
        let memory = MemoryLimit::of(limits, memory_mb);
        self.group.hold_memory(memory).map_err(failed)?;
        self.mark.send_replace(memory.mark());
        self.group.set_pids(limits.pids).map_err(failed)?;
        let detail = self.detail();
        self.group.set_cpu(detail.cpu, &detail.cpus).map_err(failed)
    }

    fn grow_memory(&self, limits: &Resources, grown_mb: u64) -> Result<(), IsolationError> {
        let memory = MemoryLimit::of(limits, grown_mb);
        self.group
            .hold_memory(memory)
            .map_err(IsolationError::failed("grow the memory"))?;
        self.mark.send_replace(memory.mark());
        Ok(())
    }

    async fn memory_event(&self) -> Result<MemoryEvent, IsolationError> {
        let mut watch = self.watch.lock().await;
        match watch.as_mut() {
            Some(watch) => watch
                .next()
                .await
                .map_err(IsolationError::failed("watch the memory")),
            None => std::future::pending().await,
        }
    }

    fn freeze(&self) -> Result<(), IsolationError> {
        self.group
            .freeze()
            .map_err(IsolationError::failed("freeze the sandbox"))
    }

    fn thaw(&self) -> Result<(), IsolationError> {
        self.group
            .thaw()
            .map_err(IsolationError::failed("thaw the sandbox"))
    }

    async fn capture(
        &self,
        memory: &Path,
        at_rest: AtRest,
        afterwards: Afterwards,
    ) -> Result<Captured, IsolationError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let capturer = Arc::clone(&self.capturer);
        capturer.program()?;
        let frozen = self.group.is_asked_to_freeze().unwrap_or(false);
        if frozen {
            // The guest has to hear that it is about to be captured.
            self.thaw()?;
        }
        let stillness = Stillness {
            pidfd: self
                .pidfd
                .get_ref()
                .try_clone()
                .map_err(IsolationError::failed("keep the pidfd"))?,
            group: self.group.clone(),
            freeze: frozen,
        };
        quiesce(&self.reach).await?;
        let (group, pid, memory) = (self.group.clone(), self.pid, memory.to_owned());
        let guest = match self.detail().guest.clone() {
            guest if guest.is_empty() => capturer.guest.clone(),
            guest => guest,
        };
        let uid_base = self.detail().uid_base;
        // Goes on to its end also when the caller does not wait for it any more.
        tokio::task::spawn_blocking(move || {
            let (_turn, mut stillness) = (turn, stillness);
            let subject = Subject {
                pid,
                uid_base,
                group: &group,
                guest: &guest,
            };
            let captured = capture::capture(&capturer, &subject, &memory, at_rest, afterwards);
            // A held machine stays as it is; it hears the signal when it is let go.
            stillness.freeze &= captured.is_err() || afterwards == Afterwards::Continue;
            captured
        })
        .await
        .unwrap_or_else(|error| {
            Err(IsolationError::failed("capture the memory")(
                io::Error::other(error),
            ))
        })
    }

    fn discard(&self) {
        // One that is gone already has nothing to keep.
        if let Ok(root) = open_root(self.pid)
            && seat::is_alive(self.pidfd.get_ref().as_fd())
        {
            self.retired.hold(root);
        }
    }

    async fn dispose(&self) -> Result<(), IsolationError> {
        let group = self.group.clone();
        let held = Arc::clone(&self.held);
        let released = tokio::task::spawn_blocking(move || {
            seat::remove_when_empty(&group)?;
            let held = held.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(held.map(|held| {
                // Rules must be gone before the slot is another's.
                held.link.release();
                drop(held.slot);
            }))
        });
        let released = released
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(IsolationError::failed("remove the cgroup"))?;
        if released.is_some() {
            let detail = self.detail();
            self.cpus.give_back(&detail.cpus, detail.cpu);
        }
        Ok(())
    }
}
