//! The engine's side of the spawner: starts it, asks it for children, starts it again if it dies.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use cove_isolation::IsolationError;
use cove_spawner::message::{Criu, Prepare, PrepareReply, Request};
use cove_spawner::side::{self, SIDE};
use cove_wire::{Hello, packet};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::de::DeserializeOwned;

/// How long the spawner or a child may take for one step; both take milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(20);
const ABOVE_STANDARD: i32 = 10;
/// A spawner that died is replaced and asked once more.
const ASK_TRIES: u32 = 2;

#[derive(Debug)]
pub struct Spawner {
    running: Mutex<Option<Running>>,
    /// Directories its requests will speak of.
    paths: Vec<String>,
}

#[derive(Debug)]
struct Running {
    process: Child,
    socket: OwnedFd,
}

/// A child in new namespaces, waiting for what to become.
#[derive(Debug)]
pub struct Prepared {
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub user_ns: OwnedFd,
    pub socket: OwnedFd,
}

impl Spawner {
    /// `paths` are the directories on the host that requests will speak of.
    pub fn start(paths: Vec<String>) -> io::Result<Self> {
        Ok(Self {
            running: Mutex::new(Some(launch(&paths)?)),
            paths,
        })
    }

    /// The same, started with the first request.
    pub fn later(paths: Vec<String>) -> Self {
        Self {
            running: Mutex::new(None),
            paths,
        }
    }

    /// Runs CRIU; `fds` are its end of the conversation and what a restore needs.
    pub fn criu(&self, request: Criu, fds: &[BorrowedFd<'_>]) -> Result<OwnedFd, IsolationError> {
        let (reply, fds) = self.ask(&Request::Criu(request), fds)?;
        match (reply, <[OwnedFd; 1]>::try_from(fds)) {
            (PrepareReply::Criu { .. }, Ok([pidfd])) => Ok(pidfd),
            _ => Err(out_of_turn()),
        }
    }

    /// A user namespace with a sandbox's ids and nobody in it.
    pub fn ids(&self, uid_base: u32) -> Result<OwnedFd, IsolationError> {
        let (reply, fds) = self.ask(&Request::Ids { uid_base }, &[])?;
        match (reply, <[OwnedFd; 1]>::try_from(fds)) {
            (PrepareReply::Ids, Ok([user_ns])) => Ok(user_ns),
            _ => Err(out_of_turn()),
        }
    }

    pub fn prepare(&self, request: Prepare) -> Result<Prepared, IsolationError> {
        let (reply, fds) = self.ask(&Request::Prepare(request), &[])?;
        let (PrepareReply::Prepared { pid }, Ok([pidfd, user_ns, socket])) =
            (reply, <[OwnedFd; 3]>::try_from(fds))
        else {
            return Err(out_of_turn());
        };
        Ok(Prepared {
            pid,
            pidfd,
            user_ns,
            socket,
        })
    }

    /// A spawner keeps no state, and a child whose spawner died before it was handed over ends by
    /// itself, so the same request may be made twice.
    fn ask(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(PrepareReply, Vec<OwnedFd>), IsolationError> {
        let mut slot = self.running.lock();
        let mut tries = 1;
        loop {
            let running = match slot.take() {
                Some(running) => running,
                None => launch(&self.paths).map_err(IsolationError::failed("start the spawner"))?,
            };
            let asked = packet::send(&running.socket, request, fds)
                .and_then(|()| receive::<PrepareReply>(&running.socket));
            match asked {
                Ok((PrepareReply::Failed(failure), _)) => {
                    *slot = Some(running);
                    let source = io::Error::from_raw_os_error(failure.errno);
                    return Err(IsolationError::Failed {
                        step: failure.step,
                        source,
                    });
                }
                Ok((PrepareReply::Refused(refusal), _)) => {
                    let source = io::Error::new(io::ErrorKind::Unsupported, refusal);
                    return Err(IsolationError::failed("greet the spawner")(source));
                }
                Ok(answer) => {
                    *slot = Some(running);
                    return Ok(answer);
                }
                Err(error) if tries < ASK_TRIES => {
                    tracing::warn!(%error, "the spawner does not answer; replacing it");
                    tries += 1;
                }
                Err(error) => return Err(IsolationError::failed("ask the spawner")(error)),
            }
        }
    }
}

fn out_of_turn() -> IsolationError {
    IsolationError::failed("ask the spawner")(io::Error::other("it answered out of turn"))
}

impl Drop for Running {
    fn drop(&mut self) {
        // It ends by itself when its socket closes; waiting here for that would need the socket
        // closed first, and a kill harms nothing: the spawner keeps no state.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn launch(paths: &[String]) -> io::Result<Running> {
    launch_saying(&SIDE.hello(&side::needs()), paths)
}

/// The hello waits in the socket for the spawner; nobody waits for the spawner.
fn launch_saying(hello: &Hello, paths: &[String]) -> io::Result<Running> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    packet::send_hello(&ours, hello)?;
    let program = rustix::fs::memfd_create("cove-spawner", rustix::fs::MemfdFlags::CLOEXEC)?;
    // Out of the way of descriptor 3, which the child's socket takes.
    let mut program = File::from(rustix::io::fcntl_dupfd_cloexec(&program, ABOVE_STANDARD)?);
    let theirs = rustix::io::fcntl_dupfd_cloexec(&theirs, ABOVE_STANDARD)?;
    program.write_all(cove_embedded::SPAWNER)?;
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command
        .arg0("cove-spawner")
        .args(paths)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit());
    let theirs_raw = theirs.as_raw_fd();
    // SAFETY: between fork and exec only dup2 is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::dup2(theirs_raw, 3) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let process = command.spawn()?;
    Ok(Running {
        process,
        socket: ours,
    })
}

/// The next packet on a socket of the spawner or a child, within [`PATIENCE`].
pub fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<(T, Vec<OwnedFd>)> {
    receive_within(socket, PATIENCE)
}

pub fn receive_within<T: DeserializeOwned>(
    socket: &OwnedFd,
    patience: Duration,
) -> io::Result<(T, Vec<OwnedFd>)> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {} s", patience.as_secs()),
            ));
        }
        let fd = socket.as_fd();
        let timeout = rustix::time::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    packet::receive(socket)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "the process ended"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cove_wire::{Missing, Refusal};

    use super::*;

    fn refusal_of(hello: &Hello) -> Refusal {
        let mut running = launch_saying(hello, &[]).unwrap();
        let (reply, _) = receive::<PrepareReply>(&running.socket).unwrap();
        assert!(running.process.wait().unwrap().success());
        match reply {
            PrepareReply::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_spawner_that_lacks_a_feature_or_is_of_another_version_says_so_and_ends() {
        let mut hello = SIDE.hello(&side::needs());
        hello.needs.push("made-up".into());
        let features = vec!["made-up".to_owned()];
        assert_eq!(refusal_of(&hello), Refusal::Missing(Missing { features }));
        let mut later = SIDE.hello(&side::needs());
        later.version += 1;
        assert!(matches!(refusal_of(&later), Refusal::Version { .. }));
    }
}
