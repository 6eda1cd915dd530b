//! The gateway process. It is started as root, takes its sockets and policies from its parent over
//! standard input, gives up everything it does not need, and serves.

mod confine;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use cove_gateway::control::needs::SIDE;
use cove_gateway::control::{self, Reply, Start, VERSION};
use cove_gateway::journal::FILES;
use cove_gateway::serve::{Sockets, serve};
use cove_wire::descriptor;

/// Threads that carry bytes; the kernel does most of the work.
const WORKERS_MAX: usize = 4;
/// Sockets, and the files of the journal.
const SOCKETS: usize = 4 + FILES;

fn main() -> std::process::ExitCode {
    let mut parent = match parent() {
        Ok(parent) => parent,
        Err(error) => {
            say(&format!("not started by an engine: {error}"));
            return std::process::ExitCode::FAILURE;
        }
    };
    match run(&mut parent) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            let message = error.to_string();
            say(&message);
            // The parent may have gone; then nobody is interested.
            let _ = control::write_reply_blocking(&mut parent, &Reply::Refused { message });
            std::process::ExitCode::FAILURE
        }
    }
}

/// The log is a file, and its disk may be full: then nothing is said, and the parent hears it all the same.
fn say(message: &str) {
    let _ = writeln!(io::stderr(), "cove-gateway: {message}");
}

fn parent() -> io::Result<UnixStream> {
    cove_confine::rights::close_other_descriptors()?;
    // A copy, since standard input is not ours to close.
    let fd = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    Ok(UnixStream::from(fd))
}

fn run(parent: &mut UnixStream) -> io::Result<()> {
    let sockets = receive_sockets(parent)?;
    let start: Start = control::read_blocking(parent)?;
    if start.version != VERSION {
        return Err(io::Error::other("the engine is of another version"));
    }
    let named = start.needs.iter().map(String::as_str);
    SIDE.accept_needs(named).map_err(io::Error::other)?;
    confine::enter(start.uid, start.gid)?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers.clamp(1, WORKERS_MAX))
        .thread_stack_size(512 * 1024)
        .enable_all()
        .build()?;
    confine::filter()?;
    runtime.block_on(serve(start, sockets, || {
        // A parent that has gone meanwhile is followed by one that adopts us.
        let _ = control::write_reply_blocking(parent, &Reply::Done);
        let _ = parent.shutdown(std::net::Shutdown::Both);
    }))?;
    // Connections that are still carried end with us.
    runtime.shutdown_background();
    Ok(())
}

/// One byte comes first, with the sockets attached to it.
fn receive_sockets(parent: &UnixStream) -> io::Result<Sockets> {
    let mut fds: Vec<OwnedFd> = Vec::new();
    descriptor::receive(parent, &mut [0], &mut fds)?;
    let [packets, streams, proxy, control, journal @ ..] = <[OwnedFd; SOCKETS]>::try_from(fds)
        .map_err(|_| io::Error::other("the parent sent no sockets"))?;
    Ok(Sockets {
        packets,
        streams,
        proxy,
        control,
        journal,
    })
}
