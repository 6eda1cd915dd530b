//! The way from the host to the guest in a container.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use cove_isolation::IsolationError;
use cove_protocol::brief::{self, BriefError};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::UnixStream;

/// A full queue of connections is waited for this often before the guest counts as stuck.
const CONNECT_TRIES: u32 = 50;
const CONNECT_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
/// How long transfers with a guest that are under way may hold a capture up.
const QUIESCE_WAIT: std::time::Duration = std::time::Duration::from_secs(10);
/// What the guest may take beyond that to answer.
const QUIESCE_MARGIN: std::time::Duration = std::time::Duration::from_secs(10);

pub fn open_root(pid: i32) -> io::Result<OwnedFd> {
    Ok(openat(
        CWD,
        format!("/proc/{pid}/root"),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Opens the one path of a guest's tree that the host ever resolves.
fn open_socket(pid: i32) -> io::Result<OwnedFd> {
    open_below(pid, cove_protocol::SOCKET_PATH)
}

/// Follows nothing.
fn open_below(pid: i32, path: &str) -> io::Result<OwnedFd> {
    let root = open_root(pid)?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(
        &root,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )?)
}

/// Who may answer at a guest's socket.
#[derive(Debug, Clone)]
pub enum Answerer {
    /// This process alone.
    Process(i32),
    /// A process with ids of the machine's own: the kernel that the guest runs on binds its socket.
    Uids(std::ops::RangeInclusive<u32>),
}

impl Answerer {
    fn check(&self, peer: &tokio::net::unix::UCred) -> io::Result<()> {
        let (fits, wanted) = match self {
            Self::Process(pid) => (peer.pid() == Some(*pid), "PID 1"),
            Self::Uids(range) => (range.contains(&peer.uid()), "a process of the sandbox"),
        };
        match fits {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "the guest's socket is answered by process {:?} instead of {wanted}",
                    peer.pid()
                ),
            )),
        }
    }
}

/// The way to a guest.
pub struct GuestSocket {
    /// Opened once: what is put in its place later is never looked at.
    socket: io::Result<OwnedFd>,
    answerer: Answerer,
}

impl GuestSocket {
    /// Root inside may have removed the socket. That harms nobody else: only whoever wants in hears of it.
    pub fn open(pid: i32, answerer: Answerer) -> Self {
        Self {
            socket: open_socket(pid),
            answerer,
        }
    }

    pub async fn connect(&self) -> io::Result<UnixStream> {
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
        self.answerer.check(&stream.peer_cred()?)?;
        Ok(stream)
    }
}

/// Connects to what a machine's first process listens at in its own tree, for packets. That tree is no guest's.
pub(crate) fn connect_to_first(pid: i32, path: &str) -> io::Result<OwnedFd> {
    let socket = open_below(pid, path)?;
    let flags = SocketFlags::CLOEXEC;
    let connection = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
    connect(&connection, &SocketAddrUnix::new(path)?)?;
    let peer = rustix::net::sockopt::socket_peercred(&connection)?;
    match peer.pid.as_raw_pid() == pid {
        true => Ok(connection),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Has the guest let go of every connection to the host.
pub async fn quiesce(reach: &GuestSocket) -> Result<(), IsolationError> {
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
            step: "asking the guest to close its connections",
            seconds: limit.as_secs(),
        }),
        Err(error) => Err(IsolationError::failed("quiesce the guest")(
            io::Error::other(error),
        )),
    }
}
