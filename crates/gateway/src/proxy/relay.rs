//! Carries bytes between two sockets without looking at them.
//!
//! Bytes move inside the kernel with `splice`, through a pipe that a connection holds only while
//! bytes are in it, so that idle connections cost two descriptors and little memory. Pipes are few;
//! a sandbox that fills its share (by not reading) is served through a small buffer instead.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::shares::{Share, Shares};
use crate::state::Sandbox;

/// What one pipe is asked to hold; the kernel gives less to a user who has many.
const PIPE_BYTES: usize = 256 * 1024;
/// Pipes in use by all connections.
pub const PIPES_MAX: usize = 512;
/// Pipes kept for the next one to need one.
const PIPES_KEPT: usize = 32;
/// For whom there is no pipe.
const COPY_BYTES: usize = 16 * 1024;
/// Chunks moved before others get their turn.
const TURN: usize = 16;

#[derive(Debug)]
pub struct Pipes {
    kept: Mutex<Vec<Pipe>>,
    shares: Arc<Shares>,
}

impl Default for Pipes {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            shares: Shares::new("pipes", PIPES_MAX),
        }
    }
}

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// A pipe on loan. It goes back only when it is known to be empty.
struct Loan<'a> {
    pipe: Option<Pipe>,
    pipes: &'a Pipes,
    _own: tokio::sync::SemaphorePermit<'a>,
    _share: Share,
}

impl Pipes {
    fn lend<'a>(&'a self, sandbox: &'a Sandbox) -> Option<Loan<'a>> {
        let own = sandbox.pipes.try_acquire().ok()?;
        let share = self.shares.take(&sandbox.owner, &sandbox.id)?;
        let kept = self.kept.lock().pop();
        Some(Loan {
            pipe: Some(kept.or_else(Pipe::new)?),
            pipes: self,
            _own: own,
            _share: share,
        })
    }
}

impl Pipe {
    fn new() -> Option<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // A smaller pipe works as well, in more steps.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        Some(Self { read, write })
    }
}

impl Loan<'_> {
    fn pipe(&self) -> &Pipe {
        self.pipe.as_ref().expect("taken only when it goes back")
    }

    fn give_back(mut self) {
        if let Some(pipe) = self.pipe.take() {
            let mut kept = self.pipes.kept.lock();
            if kept.len() < PIPES_KEPT {
                kept.push(pipe);
            }
        }
    }
}

/// Until both sides have said all, or one breaks.
pub async fn both_ways(
    client: &TcpStream,
    server: &TcpStream,
    pipes: &Pipes,
    sandbox: &Sandbox,
    sent: &AtomicU64,
    received: &AtomicU64,
) -> io::Result<()> {
    tokio::try_join!(
        one_way(client, server, pipes, sandbox, sent),
        one_way(server, client, pipes, sandbox, received),
    )?;
    Ok(())
}

/// Until `from` has said all; then `to` sees the end.
pub async fn one_way(
    from: &TcpStream,
    to: &TcpStream,
    pipes: &Pipes,
    sandbox: &Sandbox,
    count: &AtomicU64,
) -> io::Result<()> {
    let mut left = u64::MAX;
    while some(from, to, pipes, sandbox, count, &mut left).await? {}
    // The other side may have closed already, which is an end as well.
    let _ = rustix::net::shutdown(to.as_fd(), rustix::net::Shutdown::Write);
    Ok(())
}

/// Exactly that many bytes.
pub async fn exactly(
    mut left: u64,
    from: &TcpStream,
    to: &TcpStream,
    pipes: &Pipes,
    sandbox: &Sandbox,
    count: &AtomicU64,
) -> io::Result<()> {
    while left > 0 {
        if !some(from, to, pipes, sandbox, count, &mut left).await? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Waits for bytes and moves what is there. `false`: `from` has said all.
async fn some(
    from: &TcpStream,
    to: &TcpStream,
    pipes: &Pipes,
    sandbox: &Sandbox,
    count: &AtomicU64,
    left: &mut u64,
) -> io::Result<bool> {
    from.readable().await?;
    let Some(loan) = pipes.lend(sandbox) else {
        return copy(from, to, count, left).await;
    };
    for _ in 0..TURN {
        if *left == 0 {
            break;
        }
        let step = usize::try_from(*left).map_or(PIPE_BYTES, |left| left.min(PIPE_BYTES));
        let taken = from.try_io(Interest::READABLE, || {
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            let moved = splice(from.as_fd(), None, &loan.pipe().write, None, step, flags);
            Ok(moved?)
        });
        let mut held = match taken {
            Ok(0) => {
                loan.give_back();
                return Ok(false);
            }
            Ok(held) => held,
            // Waiting for more lets others have their turn as well.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                loan.give_back();
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        *left -= held as u64;
        while held > 0 {
            let moved = to.try_io(Interest::WRITABLE, || {
                let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
                let moved = splice(&loan.pipe().read, None, to.as_fd(), None, held, flags);
                Ok(moved?)
            });
            match moved {
                Ok(moved) => {
                    held -= moved;
                    count.fetch_add(moved as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                Err(error) => return Err(error),
            }
        }
    }
    loan.give_back();
    tokio::task::yield_now().await;
    Ok(true)
}

async fn copy(
    from: &TcpStream,
    to: &TcpStream,
    count: &AtomicU64,
    left: &mut u64,
) -> io::Result<bool> {
    let step = usize::try_from(*left).map_or(COPY_BYTES, |left| left.min(COPY_BYTES));
    let mut buffer = vec![0; step];
    match from.try_read(&mut buffer) {
        Ok(0) => Ok(false),
        Ok(read) => {
            *left -= read as u64;
            let written = write_all(to, &buffer[..read]).await?;
            count.fetch_add(written, Ordering::Relaxed);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

pub async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<u64> {
    let all = bytes.len() as u64;
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use cove_model::SandboxId;

    use super::*;

    #[test]
    fn pipes_of_one_organisation_leave_some_to_another() {
        let pipes = Pipes::default();
        let take = |owner: &str| pipes.shares.take(&owner.into(), &SandboxId::random());
        let held: Vec<Share> = (0..PIPES_MAX).filter_map(|_| take("greedy")).collect();
        assert_eq!(held.len(), PIPES_MAX / 2);
        assert!(take("other").is_some());
    }
}
