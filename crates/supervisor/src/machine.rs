//! A running machine: QEMU, the port to its guest, and the socket that the host connects to.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use cove_confine::rights;
use cove_confine::seccomp::{Otherwise, Threads, allow_only, calls};
use cove_mux::{Mux, STREAMS_MAX};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};

use cove_protocol::message::MachineIdentity;

use crate::console::Tail;
use crate::qmp::Qmp;
use crate::save::{self, Saver};
use crate::{memory, program, tell};

const LISTENER: i32 = 3;
/// Out of the way of the numbers that QEMU's descriptors have.
const ASIDE: i32 = 64;
const PROGRAM: &str = "/vm/bin/qemu-system-x86_64";
/// What QEMU gets: the disk, the interface (or something else where there is none), and what this program makes: the
/// port, the control connection, the memory.
const DISK: i32 = 5;
const PORT: i32 = 7;
const CONTROL: i32 = 8;
const MEMORY: i32 = 9;
/// What a machine is restored from comes in the place of the first two of those.
const SAVED_STATE: i32 = PORT;
const SAVED_MEMORY: i32 = CONTROL;
/// Of QEMU, in the sandbox's own range. This program has another, so that QEMU cannot touch it.
const QEMU_USER: u32 = 1;
/// When there are as many streams as there may be, or no descriptors are left.
const PAUSE: Duration = Duration::from_millis(20);

/// What this program calls once the machine runs.
const AFTERWARDS: &[libc::c_long] = &[
    libc::SYS_accept4,
    libc::SYS_wait4,
    libc::SYS_socketpair,
    // Captures: files that the engine brings, and a pipe.
    libc::SYS_pipe2,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_statx,
];

/// What to run.
pub struct Plan {
    how: How,
    /// How long the boot may take.
    limit: Duration,
    memory_bytes: u64,
    qemu: Vec<String>,
}

enum How {
    Boot,
    /// From what was captured, as this machine.
    Restore(MachineIdentity),
    /// As far as a restore goes before anything runs.
    Prove,
}

impl Plan {
    /// The mode, seconds, bytes of memory; where a machine is restored its name, its sandbox, its boot id and its limit of
    /// processes; QEMU's arguments.
    pub fn of(mode: &str, arguments: &[String]) -> Option<Self> {
        let (how, [seconds, bytes], qemu) = match (mode, arguments) {
            ("machine", [seconds, bytes, qemu @ ..]) => (How::Boot, [seconds, bytes], qemu),
            ("prove", [seconds, bytes, qemu @ ..]) => (How::Prove, [seconds, bytes], qemu),
            ("restore", [seconds, bytes, name, sandbox, boot_id, pids, qemu @ ..]) => {
                let identity = MachineIdentity {
                    hostname: name.clone(),
                    sandbox: sandbox.clone(),
                    boot_id: boot_id.clone(),
                    pids: pids.parse().ok()?,
                };
                (How::Restore(identity), [seconds, bytes], qemu)
            }
            _ => return None,
        };
        Some(Self {
            how,
            limit: Duration::from_secs(seconds.parse().ok()?),
            memory_bytes: bytes.parse().ok()?,
            qemu: qemu.to_vec(),
        })
    }
}

/// Ends with QEMU.
pub fn run(plan: Plan, engine: OwnedFd) -> ExitCode {
    let files = match take_files(&plan.how) {
        Ok(files) => files,
        Err(error) => {
            tell(
                engine.as_fd(),
                &Err(("take the captured memory".into(), error)),
            );
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build();
    let ended = match runtime {
        Ok(runtime) => LocalSet::new().block_on(&runtime, serve(plan, files, engine)),
        Err(error) => {
            tell(engine.as_fd(), &Err(("start an event loop".into(), error)));
            Err(())
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(()) => ExitCode::FAILURE,
    }
}

/// What a machine is restored from.
struct Files {
    state: OwnedFd,
    memory: OwnedFd,
}

struct Running {
    qemu: AsyncFd<OwnedFd>,
    listener: UnixListener,
    captures: AsyncFd<OwnedFd>,
    saver: Saver,
    found: Rc<Notify>,
    tail: Rc<RefCell<Tail>>,
}

async fn serve(plan: Plan, files: Option<Files>, engine: OwnedFd) -> Result<(), ()> {
    let fail = |step: &str, error| {
        tell(engine.as_fd(), &Err((step.to_owned(), error)));
    };
    let memory = match make_memory(&plan, files.as_ref()).await {
        Ok(memory) => memory,
        Err(error) => {
            fail("read the captured memory", error);
            return Err(());
        }
    };
    let running = match start(&plan, memory) {
        Ok(running) => running,
        Err(error) => {
            fail("start QEMU", error);
            return Err(());
        }
    };
    let tail = || running.tail.borrow().line();
    let Ok(engine) = watch_fd(engine, Interest::READABLE) else {
        return Err(());
    };
    let fail = |step: String, error| {
        tell(engine.get_ref().as_fd(), &Err((step, error)));
    };
    let verb = match plan.how {
        How::Boot => "boot",
        How::Restore(_) | How::Prove => "restore",
    };
    tokio::select! {
        answers = answers(&plan.how, &running, files) => if let Err(error) = answers {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            fail(format!("{verb} the machine: {error}: {}", tail()), io::Error::from_raw_os_error(errno));
            return Err(());
        },
        // It says nothing more: it ended, or gave this boot up. Nobody would ever find the machine.
        _ = engine.readable() => return Err(()),
        _ = running.qemu.readable() => {
            // What it said last may still be on its way.
            tokio::time::sleep(PAUSE).await;
            let step = format!("{verb} the machine: it ended at once: {}", tail());
            fail(step, io::Error::from_raw_os_error(libc::EIO));
            return Err(());
        }
        () = tokio::time::sleep(plan.limit) => {
            let step = format!("{verb} the machine: the guest does not answer: {}", tail());
            fail(step, io::Error::from_raw_os_error(libc::ETIMEDOUT));
            return Err(());
        }
    }
    tell(engine.get_ref().as_fd(), &Ok(()));
    drop(engine);
    if matches!(plan.how, How::Prove) {
        // All is known, and the engine ends it.
        let _ = running.qemu.readable().await;
        return Ok(());
    }
    tokio::select! {
        _ = running.qemu.readable() => Ok(()),
        () = accept(&running.listener, &running.saver) => Err(()),
        _ = save::serve(running.captures, &running.saver) => Err(()),
    }
}

/// Returns when the machine answers; one that is proven answers nobody.
async fn answers(how: &How, running: &Running, files: Option<Files>) -> io::Result<()> {
    let saver = &running.saver;
    if let Some(files) = files {
        save::load(&saver.qmp, files.state).await?;
    }
    match how {
        How::Boot => running.found.notified().await,
        How::Prove => {}
        How::Restore(identity) => {
            saver.qmp.go_on().await?;
            running.found.notified().await;
            // Its programs stand still until then.
            let renewed = save::renew(&saver.mux, Some(identity.clone())).await;
            renewed.map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// Takes what a machine is restored from, and holds the numbers that QEMU's descriptors will have, so that nothing else
/// gets them.
fn take_files(how: &How) -> io::Result<Option<Files>> {
    let take = |number: i32| {
        // SAFETY: the engine passed it for this program, and nothing else owns it.
        let given = unsafe { OwnedFd::from_raw_fd(number) };
        rustix::io::fcntl_dupfd_cloexec(&given, ASIDE)
    };
    let files = match how {
        How::Boot => None,
        How::Restore(_) | How::Prove => Some(Files {
            state: take(SAVED_STATE)?,
            memory: take(SAVED_MEMORY)?,
        }),
    };
    for number in [PORT, CONTROL, MEMORY] {
        // SAFETY: standard input is open, and these numbers are nobody's.
        if unsafe { libc::dup2(0, number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(files)
}

/// The machine's memory, with what was captured.
async fn make_memory(plan: &Plan, files: Option<&Files>) -> io::Result<OwnedFd> {
    let memory = memory::make(plan.memory_bytes)?;
    let Some(files) = files else {
        return Ok(memory);
    };
    let found = rustix::fs::fstat(&files.memory)?.st_size;
    if u64::try_from(found).ok() != Some(plan.memory_bytes) {
        let wanted = plan.memory_bytes;
        let message = format!("it has {found} bytes, and the machine has {wanted}");
        return Err(io::Error::other(message));
    }
    memory::copy(&files.memory, &memory, plan.memory_bytes).await?;
    Ok(memory)
}

pub fn watch_fd(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // SAFETY: an `OwnedFd` is open until dropped and always names the same descriptor.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// A connection to QEMU: our end and QEMU's.
fn connection() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

fn start(plan: &Plan, memory: OwnedFd) -> io::Result<Running> {
    // SAFETY: the spawner leaves this descriptor open for this program, and nothing else owns it.
    let listener = unsafe { StdListener::from_raw_fd(LISTENER) };
    listener.set_nonblocking(true)?;
    let captures = save::listen()?;
    let (ours, port) = connection()?;
    let (control, controlled) = connection()?;
    let (said, says) = program::said()?;
    let mut command = program::command(PROGRAM, &plan.qemu);
    command.stdout(says.try_clone()?).stderr(says);
    for (fd, number) in [(&port, PORT), (&controlled, CONTROL), (&memory, MEMORY)] {
        // SAFETY: `take_files` held the number for this, and nothing owns it.
        if unsafe { libc::dup2(fd.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    program::keep(&mut command, DISK, MEMORY, || {
        rights::become_nobody(QEMU_USER, QEMU_USER)
    });
    let child = command.spawn()?;
    drop(command);
    drop((port, controlled));
    // The machine's descriptors are QEMU's alone.
    // SAFETY: nothing in this program owns them.
    unsafe { libc::syscall(libc::SYS_close_range, DISK, MEMORY, 0) };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("QEMU has no process id"))?;
    let qemu = watch_fd(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)?;
    rights::bound_capabilities(rustix::thread::CapabilitySet::empty())?;
    rights::keep_capabilities(rustix::thread::CapabilitySet::empty())?;
    rights::forbid_new_rights()?;
    let lists = [calls::BASE, calls::CONNECTIONS, AFTERWARDS];
    let said = watch_fd(said, Interest::READABLE)?;
    let captures = watch_fd(captures, Interest::READABLE)?;
    let listener = UnixListener::from_std(listener)?;
    allow_only(&lists, Otherwise::Refuse, Threads::This)?;
    let tail = Rc::new(RefCell::new(Tail::default()));
    spawn_local(listen_to(said, Rc::clone(&tail)));
    let found = Rc::new(Notify::new());
    let told = Rc::clone(&found);
    let both = Interest::READABLE | Interest::WRITABLE;
    let mux = Mux::host(watch_fd(ours, both)?, move || told.notify_one());
    let qmp = Qmp::new(watch_fd(control, both)?);
    Ok(Running {
        qemu,
        listener,
        captures,
        saver: Saver::new(qmp, mux, (memory, plan.memory_bytes)),
        found,
        tail,
    })
}

/// The machine's console and QEMU's own words: read as fast as they come, so that neither ever waits.
async fn listen_to(said: AsyncFd<OwnedFd>, tail: Rc<RefCell<Tail>>) {
    let mut piece = [0; 4096];
    loop {
        let read = said.async_io(Interest::READABLE, |said| {
            Ok(rustix::io::read(said, &mut piece[..])?)
        });
        match read.await {
            Ok(0) | Err(_) => return,
            Ok(got) => tail.borrow_mut().add(&piece[..got]),
        }
    }
}

async fn accept(listener: &UnixListener, saver: &Saver) {
    let mux = &saver.mux;
    loop {
        // Whoever connects while the machine is captured, or there are too many, waits in the queue.
        saver.open().await;
        while mux.streams() >= STREAMS_MAX {
            tokio::time::sleep(PAUSE).await;
        }
        let accepted = tokio::select! {
            biased;
            () = saver.closed() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                let mux = mux.clone();
                spawn_local(async move {
                    // Hanging up says enough.
                    let _ = mux.open(socket).await;
                });
                // The stream counts once its task began.
                tokio::task::yield_now().await;
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
