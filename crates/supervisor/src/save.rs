//! Captures of a running machine. The engine connects and brings two files; the guest lets go of its callers and stops
//! its programs, QEMU writes the state of its devices, and the memory is copied. The machine stands still until the
//! engine hangs up, whenever that is: an engine that dies in the middle leaves a machine that goes on.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cove_mux::Mux;
use cove_protocol::brief::{self, BriefError};
use cove_protocol::message::{MachineIdentity, Renew};
use cove_spawner::message::{Failure, Save, SaveReply};
use cove_wire::packet;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, watch};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::machine::watch_fd;
use crate::memory;
use crate::qmp::Qmp;

/// Beside the socket for the guest. QEMU has another user id and cannot connect there.
const SOCKET: &str = cove_spawner::message::SAVE_SOCKET;
const BACKLOG: i32 = 4;
/// How long an engine that connected may take to say what it wants.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// What the guest may take beyond the time that open calls are waited for: to write to its disk and stop its programs.
const QUIESCE_MARGIN: Duration = Duration::from_secs(60);
/// How long the guest may take to let its programs go on.
const RENEW_LIMIT: Duration = Duration::from_secs(30);
/// Largest state of devices.
const STATE_MAX: usize = 64 << 20;
const STATE_LIMIT: Duration = Duration::from_secs(60);
const SEED: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);
/// How often QEMU may refuse to go on.
const TRIES: u32 = 5;

pub struct Saver {
    pub qmp: Qmp,
    pub mux: Mux,
    /// Whether callers have to wait.
    gate: watch::Sender<bool>,
    memory: OwnedFd,
    bytes: u64,
    /// QEMU was asked to stop the machine.
    stops: Cell<bool>,
    /// Held until the guest has answered that it is quiet, or that it is not.
    asking: Arc<Mutex<()>>,
}

/// Callers wait as long as one of these lives.
struct Closed<'a>(&'a watch::Sender<bool>);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

pub fn listen() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(SOCKET)?)?;
    rustix::fs::chmod(SOCKET, rustix::fs::Mode::from_raw_mode(0o600))?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Returns when the machine cannot go on.
pub async fn serve(listener: AsyncFd<OwnedFd>, saver: &Saver) -> io::Error {
    loop {
        let accepted = listener.async_io(Interest::READABLE, |listener| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            Ok(rustix::net::accept_with(listener, flags)?)
        });
        let connection = match accepted
            .await
            .and_then(|it| watch_fd(it, Interest::READABLE))
        {
            Ok(connection) => connection,
            Err(_) => {
                sleep(PAUSE).await;
                continue;
            }
        };
        if let Err(error) = saver.serve(&connection).await {
            return error;
        }
    }
}

/// Everything but `Saved` means that the machine is about to go on.
type Saved = Result<(Instant, u64), SaveReply>;

impl Saver {
    pub fn new(qmp: Qmp, mux: Mux, (memory, bytes): (OwnedFd, u64)) -> Self {
        Self {
            qmp,
            mux,
            gate: watch::Sender::new(false),
            memory,
            bytes,
            stops: Cell::new(false),
            asking: Arc::default(),
        }
    }

    /// Returns when callers need not wait.
    pub async fn open(&self) {
        let mut gate = self.gate.subscribe();
        let _ = gate.wait_for(|closed| !closed).await;
    }

    /// Returns when callers have to wait.
    pub async fn closed(&self) {
        let mut gate = self.gate.subscribe();
        let _ = gate.wait_for(|closed| *closed).await;
    }

    /// A QEMU that does not answer goes on some time, or its machine stands still anyway. One that answers that it
    /// cannot is given up.
    async fn go_on(&self) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match self.qmp.go_on().await {
                Err(error) if error.kind() != io::ErrorKind::TimedOut && tries >= TRIES => {
                    return Err(error);
                }
                Err(error) => tries += u32::from(error.kind() != io::ErrorKind::TimedOut),
                Ok(()) => return Ok(()),
            }
            sleep(PAUSE).await;
        }
    }

    async fn serve(&self, connection: &AsyncFd<OwnedFd>) -> io::Result<()> {
        let asked = connection.async_io(Interest::READABLE, |from| packet::receive::<Save>(from));
        let Ok(Ok(Some((save, files)))) = timeout(ASK_LIMIT, asked).await else {
            return Ok(());
        };
        let _closed = Closed(&self.gate);
        self.gate.send_replace(true);
        let saved = tokio::select! {
            biased;
            () = hung_up(connection) => None,
            saved = self.save(&save, files) => Some(saved),
        };
        if let Some(saved) = saved {
            let (reply, stands) = match saved {
                Ok((since, bytes)) => {
                    let stood_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                    (SaveReply::Saved { stood_us, bytes }, true)
                }
                Err(reply) => (reply, false),
            };
            let told = packet::send(connection.get_ref(), &reply, &[]);
            if stands && told.is_ok() {
                hung_up(connection).await;
            }
        }
        if self.stops.replace(false) {
            self.go_on().await?;
        }
        // The guest must not hear that it may go on before it hears that it shall be quiet.
        drop(self.asking.lock().await);
        // One that does not answer lets its programs go on by itself after a while.
        let _ = renew(&self.mux, None).await;
        Ok(())
    }

    async fn save(&self, save: &Save, files: Vec<OwnedFd>) -> Saved {
        let Ok([state, memory]) = <[OwnedFd; 2]>::try_from(files) else {
            return Err(failed(
                "receive the files",
                &io::ErrorKind::InvalidInput.into(),
            ));
        };
        let step = |step: &'static str| move |error: io::Error| failed(step, &error);
        let wait = Duration::from_millis(save.wait_ms);
        let asking = Arc::clone(&self.asking).lock_owned().await;
        let guest = call(&self.mux);
        // Goes on when the engine hangs up meanwhile.
        let quiet = spawn_local(async move {
            let _asking = asking;
            brief::quiesce(async { guest }, wait, QUIESCE_MARGIN).await
        });
        let quiet = quiet
            .await
            .map_err(|error| step("ask the guest")(error.into()));
        quiet?.map_err(refused)?;
        let since = Instant::now();
        self.stops.set(true);
        self.qmp.stop().await.map_err(step("stop the machine"))?;
        let mut bytes = self
            .write_state(state)
            .await
            .map_err(step("write the state of the devices"))?;
        let copied = async {
            rustix::fs::ftruncate(&memory, self.bytes)?;
            memory::copy(&self.memory, &memory, self.bytes).await
        };
        bytes += copied.await.map_err(step("write the memory"))?;
        Ok((since, bytes))
    }

    /// Over a pipe, so that QEMU gets no file and writes no more than it may.
    async fn write_state(&self, file: OwnedFd) -> io::Result<u64> {
        let (from, to) = pipe()?;
        self.qmp.save(to).await?;
        let from = watch_fd(from, Interest::READABLE)?;
        let mut file = File::from(file);
        let written = timeout(STATE_LIMIT, async {
            let (mut piece, mut written) = (vec![0; 64 << 10], 0);
            loop {
                let read = from.async_io(Interest::READABLE, |from| {
                    Ok(rustix::io::read(from, &mut piece[..])?)
                });
                let got = read.await?;
                written += got;
                match got {
                    0 => return io::Result::Ok(written as u64),
                    _ if written > STATE_MAX => {
                        return Err(io::Error::other(
                            "QEMU has more state than a machine can have",
                        ));
                    }
                    _ => file.write_all(&piece[..got])?,
                }
            }
        });
        let written = written.await??;
        self.qmp.moved().await?;
        Ok(written)
    }
}

/// Gives QEMU, which waits for it, the state of a machine.
pub async fn load(qmp: &Qmp, file: OwnedFd) -> io::Result<()> {
    let state = {
        use std::io::Read;
        let mut state = Vec::new();
        File::from(file)
            .take(STATE_MAX as u64 + 1)
            .read_to_end(&mut state)?;
        state
    };
    if state.len() > STATE_MAX {
        return Err(io::Error::other(
            "there is more state than a machine can have",
        ));
    }
    let (from, to) = pipe()?;
    qmp.load(from).await?;
    let to = watch_fd(to, Interest::WRITABLE)?;
    let fed = async {
        let mut rest = &state[..];
        while !rest.is_empty() {
            let write = to.async_io(Interest::WRITABLE, |to| Ok(rustix::io::write(to, rest)?));
            rest = &rest[write.await?..];
        }
        io::Result::Ok(())
    };
    timeout(STATE_LIMIT, fed).await??;
    drop(to);
    qmp.moved().await
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// The guest's programs go on; it has the time, new random numbers, and maybe another identity.
pub async fn renew(mux: &Mux, identity: Option<MachineIdentity>) -> Result<(), BriefError> {
    let connecting = async {
        let mut seed = vec![0; SEED];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        Ok((call(mux)?, seed))
    };
    let (guest, seed) = connecting.await.map_err(BriefError::Connect)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let renew = Renew {
        unix_nanos: since.map_or(0, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        }),
        seed: seed.into(),
        identity,
    };
    brief::renew(async { Ok(guest) }, renew, RENEW_LIMIT).await
}

/// A stream of this program's own to the guest.
fn call(mux: &Mux) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let mux = mux.clone();
    spawn_local(async move {
        // Hanging up says enough.
        let _ = mux.open(theirs).await;
    });
    Ok(ours)
}

/// Whatever it says instead, it is not what it should say.
async fn hung_up(connection: &AsyncFd<OwnedFd>) {
    let said = connection.async_io(Interest::READABLE, |connection| {
        Ok(rustix::io::read(connection.as_fd(), &mut [0; 1])?)
    });
    let _ = said.await;
}

fn refused(error: BriefError) -> SaveReply {
    match error {
        BriefError::Refused {
            at_limit: true,
            quote,
        } => SaveReply::Refused(quote),
        BriefError::TimedOut(_) => failed(
            "wait for the guest to let go of its callers and stop its programs",
            &io::ErrorKind::TimedOut.into(),
        ),
        error => failed(
            &format!("quiesce the guest: {error}"),
            &io::ErrorKind::Other.into(),
        ),
    }
}

fn failed(step: &str, error: &io::Error) -> SaveReply {
    let (step, errno) = match (error.raw_os_error(), error.kind()) {
        (Some(errno), _) => (step.to_owned(), errno),
        (None, io::ErrorKind::TimedOut) => (step.to_owned(), libc::ETIMEDOUT),
        (None, _) => (format!("{step}: {error}"), libc::EIO),
    };
    SaveReply::Failed(Failure { step, errno })
}
