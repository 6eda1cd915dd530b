//! Bringing captured processes back in a sandbox of their own: another uid range, another cgroup,
//! another network, a root made from another volume.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use cove_criu::message::Options;
use cove_criu::{Moment, Session, SessionError};
use cove_isolation::IsolationError;
use cove_model::identity::METADATA_ADDRESS;
use cove_spawner::message::{Restorer, places};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::capture::wait_gone;
use crate::capturer::{Capturer, common_options};
use crate::changes::replacements;
use crate::external;
use cove_seats::cgroup::Group;
use cove_seats::rootfs;
use cove_seats::volumes::Place;

/// How long a restore may take, and what each gigabyte of images adds to it.
const RESTORE_LIMIT: Duration = Duration::from_secs(60);
const RESTORE_LIMIT_PER_GB: Duration = Duration::from_secs(20);
const LOG: &str = "restore.log";

pub struct RestorePlan<'a> {
    pub memory: &'a Path,
    pub hostname: &'a str,
    pub uid_base: u32,
    /// A user namespace with the ids of the copy.
    pub ids: BorrowedFd<'a>,
    pub group: &'a Group,
    /// What each of its processes may have open.
    pub open_files: u64,
    /// What its shared memory may take.
    pub shm_bytes: u64,
    pub guest_dir: String,
    /// Ends the copy instead of letting it go on.
    pub only_prove: bool,
    /// Detached mounts, in the order of the capture.
    pub volumes: &'a [OwnedFd],
    /// Where they are.
    pub places: &'a [Place],
}

pub struct Restored {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

/// Blocking. `attach` gives the copy's namespace its network. `in_force` is called when every process is
/// as it was and none runs yet; after it they go on. `None`: the restore was proven and the copy is gone.
pub fn restore(
    capturer: &Capturer,
    plan: &RestorePlan<'_>,
    root: OwnedFd,
    attach: impl FnOnce(&Restored) -> Result<(), IsolationError>,
    in_force: impl FnOnce(&Restored) -> Result<(), IsolationError>,
) -> Result<Option<Restored>, IsolationError> {
    let images = rootfs::read_only_copy(plan.memory, plan.ids)
        .map_err(IsolationError::failed("open the captured memory"))?;
    let replacements = replacements(capturer, plan)?;
    let work = tempdir()?;
    let (session, theirs) =
        Session::pair().map_err(IsolationError::failed("make a socket for criu"))?;
    let restorer = Restorer {
        cgroup: plan.group.entry(),
        guest_dir: plan.guest_dir.clone(),
    };
    let mut given = vec![
        theirs.as_fd(),
        root.as_fd(),
        images.as_fd(),
        replacements.as_fd(),
    ];
    given.extend(plan.volumes.iter().map(AsFd::as_fd));
    let criu = capturer.run(plan.uid_base, Some(restorer), &given)?;
    drop((theirs, root, images, replacements));

    let options = Options {
        images_dir: Some(places::IMAGES.into()),
        work_dir_fd: Some(work.as_raw_fd()),
        log_file: Some(LOG.into()),
        root: Some(places::ROOT.into()),
        rst_sibling: Some(true),
        external: external::on_restore(plan.group, plan.volumes.len()),
        ..common_options()
    };
    let mut first: Option<Restored> = None;
    let mut refused = None;
    let (mut attach, mut in_force) = (Some(attach), Some(in_force));
    let mut proven = false;
    let outcome = session.restore(options, limit(plan.memory), |moment| match moment {
        Moment::SetupNamespaces { pid } => {
            let held = first.insert(hold(pid)?);
            prepare_network(pid)?;
            let attached = attach.take().map_or(Ok(()), |attach| attach(held));
            attached.map_err(|error| {
                let told = io::Error::other(error.to_string());
                refused = Some(error);
                told
            })
        }
        Moment::PreResume => {
            let verdict = match (&first, in_force.take()) {
                (Some(first), Some(in_force)) => in_force(first),
                _ => Ok(()),
            };
            proven = verdict.is_ok();
            if (plan.only_prove || verdict.is_err())
                && let Some(first) = &first
            {
                // Everything else goes with the first process of its pid namespace, and CRIU would
                // wait for tasks that are no more.
                let _ = pidfd_send_signal(&first.pidfd, Signal::KILL);
                let _ = pidfd_send_signal(&criu, Signal::KILL);
            }
            refused = verdict.err().or(refused.take());
            Ok(())
        }
        _ => Ok(()),
    });
    if outcome.is_err() {
        if let Some(first) = &first {
            let _ = pidfd_send_signal(&first.pidfd, Signal::KILL);
        }
        if matches!(outcome, Err(SessionError::TimedOut(_))) {
            let _ = pidfd_send_signal(&criu, Signal::KILL);
        }
    }
    drop(session);
    wait_gone(&criu);
    if let Some(refused) = refused {
        return Err(refused);
    }
    if plan.only_prove && proven {
        return Ok(None);
    }
    let pid = outcome.map_err(|error| explain(error, capturer, &work))?;
    match first {
        Some(first) if first.pid == pid => Ok(Some(first)),
        _ => Err(IsolationError::failed("restore the memory")(
            io::Error::other("criu restored another process than it started with"),
        )),
    }
}

fn limit(memory: &Path) -> Duration {
    let bytes: u64 = fs::read_dir(memory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum();
    RESTORE_LIMIT + RESTORE_LIMIT_PER_GB * u32::try_from(bytes >> 30).unwrap_or(64)
}

fn hold(pid: i32) -> io::Result<Restored> {
    let raw = Pid::from_raw(pid).ok_or_else(|| io::Error::other("criu named no process"))?;
    let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
    Ok(Restored { pid, pidfd })
}

/// Called while the network namespace exists and nothing is in it. CRIU leaves it empty, so loopback
/// must be brought up, or no socket could be bound again.
fn prepare_network(pid: i32) -> io::Result<()> {
    let namespace = fs::File::open(format!("/proc/{pid}/ns/net"))?;
    // A thread of its own, because entering the namespace is for good.
    std::thread::Builder::new()
        .name("cove-loopback".into())
        .spawn(move || {
            rustix::thread::move_into_link_name_space(
                namespace.as_fd(),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )?;
            loopback_up()?;
            // Sockets that were connected to the metadata endpoint are bound to it; they lead nowhere here.
            cove_network::make_local(METADATA_ADDRESS)
        })?
        .join()
        .map_err(|_| io::Error::other("the thread for the network failed"))?
}

fn loopback_up() -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: the request outlives the call and has the type this ioctl reads.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A directory that no name leads to, for CRIU's log.
fn tempdir() -> Result<OwnedFd, IsolationError> {
    crate::capture::nameless_dir(crate::capture::WORK_BYTES)
        .map_err(IsolationError::failed("make a directory for criu's log"))
}

fn explain(error: SessionError, capturer: &Capturer, work: &OwnedFd) -> IsolationError {
    match error {
        SessionError::TimedOut(limit) => IsolationError::TimedOut {
            step: "restoring the memory",
            seconds: limit.as_secs(),
        },
        SessionError::Failed { .. } => {
            let found = crate::capture::finding(&capturer.parser, work, LOG);
            let reason = found.map_or("criu gives no reason", |found| found.reason.text());
            IsolationError::failed("restore the memory")(io::Error::other(reason))
        }
        other => IsolationError::failed("restore the memory")(io::Error::other(other)),
    }
}
