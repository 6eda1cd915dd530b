//! Starts the process and ends it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cove_confine::SealedProgram;
use cove_wire::descriptor;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sha2::{Digest, Sha256};
use socket2::{Domain, Protocol, Socket, Type};

use super::{CALL, GatewayConfig, GatewayError, Inner, Life, expect_done, journal};
use crate::control::{self, Call, Reply, Start, VERSION};
use crate::journal::FILES;

/// How long the process may take to serve; it takes a few milliseconds.
const START: Duration = Duration::from_secs(10);
/// How long it may take to end before it is killed, and after.
const END: Duration = Duration::from_secs(3);
/// A longer one is begun anew with the next process.
const LOG_BYTES_MAX: u64 = 512 * 1024;
const BACKLOG: i32 = 4096;
/// Questions that wait in the kernel while others are read.
const PACKET_BYTES: usize = 1024 * 1024;

pub fn build_of(program: &[u8]) -> String {
    hex::encode(&Sha256::digest(program)[..8])
}

/// A path to the control socket that is short however long the directory's is; it holds while the
/// descriptor does.
pub fn control_path(directory: &Path) -> io::Result<(PathBuf, File)> {
    let directory = File::open(directory)?;
    let path = format!("/proc/self/fd/{}/control.sock", directory.as_raw_fd());
    Ok((path.into(), directory))
}

struct Sockets {
    packets: Socket,
    streams: Socket,
    proxy: Socket,
    control: UnixListener,
    journal: [File; FILES],
}

impl Inner {
    /// Starts a process with the table as it is now.
    pub(super) async fn launch(&self, life: &mut Life) -> Result<(), GatewayError> {
        let upstreams = self.upstreams();
        let start = Start {
            version: VERSION,
            needs: Vec::new(),
            instance: self.config.instance.clone(),
            build: self.build.clone(),
            uid: self.config.uid,
            gid: self.config.gid,
            owner: rustix::process::geteuid().as_raw(),
            upstreams: upstreams.clone(),
            reserved: self.config.reserved.clone(),
            limits: self.config.limits.clone(),
            table: self.table().values().cloned().collect(),
            logs: Vec::new(),
            dns: self.config.dns,
            proxy: self.config.proxy,
        };
        let config = self.config.clone();
        let launched = tokio::task::spawn_blocking(move || launch(&config, start)).await;
        let child =
            launched.map_err(|error| failed("run the start")(io::Error::other(error)))??;
        life.child = Some(child);
        self.forget_age();
        life.upstreams = upstreams;
        Ok(())
    }

    /// Whether the process that was noted last has not ended.
    pub(super) fn is_alive(&self) -> bool {
        held(&self.config.directory.join("process"))
            .is_some_and(|process| matches!(wait(&process, Duration::ZERO), Ok(false)))
    }

    /// Asks the process to end, and kills it if it does not. Done already when there is none.
    pub(super) async fn end(&self, life: &mut Life) -> Result<(), GatewayError> {
        // Whether it hears that shows in whether it ends.
        let _ = self.call(Call::Stop, CALL).await;
        let path = self.config.directory.join("process");
        let child = life.child.take();
        let ended = tokio::task::spawn_blocking(move || {
            let ended = end(&path);
            if let Some(mut child) = child {
                let _ = child.kill();
                child.wait()?;
            }
            ended
        })
        .await;
        ended
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(failed("end the old process"))
    }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> GatewayError {
    move |source| GatewayError::Start { step, source }
}

fn launch(config: &GatewayConfig, mut start: Start) -> Result<Child, GatewayError> {
    let directory = &config.directory;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(failed("make the directory"))?;
    let (journal, logs) = journal::open(directory).map_err(failed("open the journal"))?;
    start.logs = logs;
    start.needs = start.needs().names();
    let sockets = bind(config, journal)?;
    let log = open_log(&directory.join("log")).map_err(failed("open the log"))?;
    let (ours, theirs) = UnixStream::pair().map_err(failed("make a socket pair"))?;
    let program = SealedProgram::new(config.program).map_err(failed("write the program"))?;
    let child = program
        .command()
        .arg0("cove-gateway")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::from(log))
        .spawn()
        .map_err(failed("run the program"))?;
    let mut child = Guard(Some(child));
    let pid = child.0.as_ref().map_or(0, Child::id);
    let started = hand_over(ours, &sockets, &start).map_err(failed("hand over the sockets"))?;
    expect_done(started)?;
    note(&directory.join("process"), pid).map_err(failed("note the process"))?;
    Ok(child.0.take().expect("it is taken once"))
}

/// What the last ones said stays readable, until it is much.
fn open_log(path: &Path) -> io::Result<File> {
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    if log.metadata()?.len() > LOG_BYTES_MAX {
        log.set_len(0)?;
    }
    Ok(log)
}

/// A child that is not left behind when its start fails.
struct Guard(Option<Child>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn bind(config: &GatewayConfig, journal: [File; FILES]) -> Result<Sockets, GatewayError> {
    let packets = socket(Type::DGRAM, Protocol::UDP, config.dns)
        .map_err(failed("bind the resolver's UDP port"))?;
    // A smaller buffer loses questions earlier, and they are asked again.
    let _ = packets.set_recv_buffer_size(PACKET_BYTES);
    let streams = socket(Type::STREAM, Protocol::TCP, config.dns)
        .map_err(failed("bind the resolver's TCP port"))?;
    let proxy =
        socket(Type::STREAM, Protocol::TCP, config.proxy).map_err(failed("bind the port"))?;
    let control = bind_control(&config.directory).map_err(failed("bind the control socket"))?;
    Ok(Sockets {
        packets,
        streams,
        proxy,
        control,
        journal,
    })
}

fn socket(kind: Type, protocol: Protocol, address: SocketAddrV4) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, kind, Some(protocol))?;
    if kind == Type::STREAM {
        // Connections of a process before this one may still be ending.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&SocketAddr::V4(address).into())?;
    if kind == Type::STREAM {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

fn bind_control(directory: &Path) -> io::Result<UnixListener> {
    let (path, _directory) = control_path(directory)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn hand_over(mut stream: UnixStream, sockets: &Sockets, start: &Start) -> io::Result<Reply> {
    let fds: [BorrowedFd<'_>; 4 + FILES] = [
        sockets.packets.as_fd(),
        sockets.streams.as_fd(),
        sockets.proxy.as_fd(),
        sockets.control.as_fd(),
        sockets.journal[0].as_fd(),
        sockets.journal[1].as_fd(),
    ];
    descriptor::send(&stream, &[0], &fds)?;
    stream.set_read_timeout(Some(START))?;
    stream.set_write_timeout(Some(START))?;
    stream.write_all(&control::encode(start)?)?;
    control::read_reply_blocking(&mut stream)
}

/// The process with the time it started, so that a number that was used again is not taken for it.
pub(super) fn note(path: &Path, pid: u32) -> io::Result<()> {
    let started = started(pid).ok_or_else(|| io::Error::other("the process has ended"))?;
    fs::write(path, format!("{pid} {started}\n"))
}

/// In clock ticks since the host booted.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything, brackets included.
    let after_name = &stat[stat.rfind(')')? + 1..];
    const STARTED: usize = 19;
    after_name
        .split_ascii_whitespace()
        .nth(STARTED)?
        .parse()
        .ok()
}

/// The noted process, as long as that number is still its own.
fn held(path: &Path) -> Option<OwnedFd> {
    let (number, since) = noted(path)?;
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Looked at only after the descriptor is held: from here on it is this process or none.
    (started(number)? == since).then_some(process)
}

fn end(path: &Path) -> io::Result<()> {
    let Some(process) = held(path) else {
        return Ok(());
    };
    if wait(&process, END)? {
        return Ok(());
    }
    let _ = pidfd_send_signal(&process, Signal::KILL);
    if wait(&process, END)? {
        Ok(())
    } else {
        Err(io::ErrorKind::TimedOut.into())
    }
}

fn noted(path: &Path) -> Option<(u32, u64)> {
    let text = fs::read_to_string(path).ok()?;
    let (pid, since) = text.trim().split_once(' ')?;
    Some((pid.parse().ok()?, since.parse().ok()?))
}

fn wait(process: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = rustix::event::Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
