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

use crate::console::Tail;
use crate::{program, tell};

const LISTENER: i32 = 3;
const PROGRAM: &str = "/vm/bin/qemu-system-x86_64";
/// What QEMU gets: the disk, the interface (or something else where there is none), the port.
const DISK: i32 = 5;
const PORT: i32 = 7;
/// Of QEMU, in the sandbox's own range. This program has another, so that QEMU cannot touch it.
const QEMU_USER: u32 = 1;
/// When there are as many streams as there may be, or no descriptors are left.
const PAUSE: Duration = Duration::from_millis(20);

/// What this program calls once the machine runs.
const AFTERWARDS: &[libc::c_long] = &[libc::SYS_accept4, libc::SYS_wait4, libc::SYS_socketpair];

/// The first argument is how long the boot may take, the others are QEMU's. Ends with QEMU.
pub fn run(arguments: &[String], engine: OwnedFd) -> ExitCode {
    let limit = arguments.split_first();
    let limit = limit.and_then(|(first, rest)| Some((first.parse().ok()?, rest)));
    let Some((seconds, arguments)) = limit else {
        let wrong = Err(("start".into(), io::ErrorKind::InvalidInput.into()));
        tell(engine.as_fd(), &wrong);
        return ExitCode::FAILURE;
    };
    let limit = Duration::from_secs(seconds);
    // The port's number is held until the port is there, so that nothing else gets it.
    // SAFETY: standard input is open, and this number is nobody's.
    unsafe { libc::dup2(0, PORT) };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build();
    let ended = match runtime {
        Ok(runtime) => LocalSet::new().block_on(&runtime, serve(arguments, limit, engine)),
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

struct Running {
    qemu: AsyncFd<OwnedFd>,
    listener: UnixListener,
    mux: Mux,
    found: Rc<Notify>,
    tail: Rc<RefCell<Tail>>,
}

async fn serve(arguments: &[String], limit: Duration, engine: OwnedFd) -> Result<(), ()> {
    let fail = |step: String, error| {
        tell(engine.as_fd(), &Err((step, error)));
    };
    let running = match start(arguments) {
        Ok(running) => running,
        Err(error) => {
            fail("start QEMU".into(), error);
            return Err(());
        }
    };
    let tail = || running.tail.borrow().line();
    let Ok(engine) = watch(engine, Interest::READABLE) else {
        return Err(());
    };
    let fail = |step: String, error| {
        tell(engine.get_ref().as_fd(), &Err((step, error)));
    };
    tokio::select! {
        () = running.found.notified() => {}
        // It says nothing more: it ended, or gave this boot up. Nobody would ever find the machine.
        _ = engine.readable() => return Err(()),
        _ = running.qemu.readable() => {
            // What it said last may still be on its way.
            tokio::time::sleep(PAUSE).await;
            let step = format!("boot the machine: it ended at once: {}", tail());
            fail(step, io::Error::from_raw_os_error(libc::EIO));
            return Err(());
        }
        () = tokio::time::sleep(limit) => {
            let step = format!("boot the machine: the guest does not answer: {}", tail());
            fail(step, io::Error::from_raw_os_error(libc::ETIMEDOUT));
            return Err(());
        }
    }
    tell(engine.get_ref().as_fd(), &Ok(()));
    drop(engine);
    tokio::select! {
        _ = running.qemu.readable() => Ok(()),
        () = accept(&running.listener, &running.mux) => Err(()),
    }
}

fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // SAFETY: an `OwnedFd` is open until dropped and always names the same descriptor.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

fn start(arguments: &[String]) -> io::Result<Running> {
    // SAFETY: the spawner leaves this descriptor open for this program, and nothing else owns it.
    let listener = unsafe { StdListener::from_raw_fd(LISTENER) };
    listener.set_nonblocking(true)?;
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let (said, says) = program::said()?;
    let mut command = program::command(PROGRAM, arguments);
    command.stdout(says.try_clone()?).stderr(says);
    // SAFETY: `run` held the number for this, and nothing owns it.
    if unsafe { libc::dup2(theirs.as_raw_fd(), PORT) } < 0 {
        return Err(io::Error::last_os_error());
    }
    program::keep(&mut command, DISK, PORT, || {
        rights::become_nobody(QEMU_USER, QEMU_USER)
    });
    let child = command.spawn()?;
    drop(command);
    drop(theirs);
    // The machine's descriptors are QEMU's alone.
    // SAFETY: nothing in this program owns them.
    unsafe { libc::syscall(libc::SYS_close_range, DISK, PORT, 0) };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("QEMU has no process id"))?;
    let qemu = watch(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)?;
    rights::bound_capabilities(rustix::thread::CapabilitySet::empty())?;
    rights::keep_capabilities(rustix::thread::CapabilitySet::empty())?;
    rights::forbid_new_rights()?;
    let lists = [calls::BASE, calls::CONNECTIONS, AFTERWARDS];
    let said = watch(said, Interest::READABLE)?;
    let listener = UnixListener::from_std(listener)?;
    allow_only(&lists, Otherwise::Refuse, Threads::This)?;
    let tail = Rc::new(RefCell::new(Tail::default()));
    spawn_local(listen_to(said, Rc::clone(&tail)));
    let found = Rc::new(Notify::new());
    let told = Rc::clone(&found);
    let port = watch(ours, Interest::READABLE | Interest::WRITABLE)?;
    let mux = Mux::host(port, move || told.notify_one());
    Ok(Running {
        qemu,
        listener,
        mux,
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

async fn accept(listener: &UnixListener, mux: &Mux) {
    loop {
        // Whoever connects now waits in the queue.
        while mux.streams() >= STREAMS_MAX {
            tokio::time::sleep(PAUSE).await;
        }
        match listener.accept().await {
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
