//! The engine's side of one organisation's process: starts it, tells it what it has to know, asks what it did.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use cove_confine::SealedProgram;
use cove_wire::descriptor;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::call::{self, Call, Reply, Start};

/// How long the process may take to serve, and to answer; it takes a few milliseconds.
const START: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(5);

/// It ends with this handle.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stream: UnixStream,
}

fn late(_: tokio::time::error::Elapsed) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

impl Process {
    /// `listener` is where the gateway hands connections over, and `bell` what the process rings when a budget is
    /// short of something; the process gets copies.
    pub async fn launch(
        program: &[u8],
        start: &Start,
        listener: &UnixListener,
        bell: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let program = SealedProgram::new(program)?;
        let child = program
            .command()
            .arg0("cove-terminator")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?;
        ours.set_nonblocking(true)?;
        let mut process = Self {
            child,
            stream: UnixStream::from_std(ours)?,
        };
        // The socket's buffer is empty, so this does not wait.
        descriptor::send(process.stream.as_fd(), &[0], &[listener.as_fd(), bell])?;
        let started = async {
            call::write(&mut process.stream, start).await?;
            call::read_reply(&mut process.stream).await
        };
        match timeout(START, started).await.map_err(late)?? {
            Reply::Done => Ok(process),
            other => Err(io::Error::other(format!("it answered {other:?}"))),
        }
    }

    pub async fn call(&mut self, call: &Call) -> io::Result<Reply> {
        let asked = async {
            call::write(&mut self.stream, call).await?;
            call::read_reply(&mut self.stream).await
        };
        timeout(CALL, asked).await.map_err(late)?
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
