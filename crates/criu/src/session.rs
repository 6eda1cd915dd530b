//! One conversation with a `criu swrk`: a request, notifications on the way, the outcome.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use prost::Message;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags,
    SocketType, recvmsg, sendmsg, socketpair,
};

use crate::message::{Kind, Options, Request, Response};

/// Longest packet; CRIU's own messages have a few hundred bytes.
const PACKET_MAX: usize = 64 * 1024;
/// Descriptors that may come with one notification.
const FDS_MAX: usize = 4;

/// Where CRIU is when it asks how to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// No task was touched yet.
    PreDump,
    /// Everything is written and every task still stopped.
    PostDump,
    /// The namespaces of the restored tree exist; this is its first process.
    SetupNamespaces {
        pid: i32,
    },
    /// All tasks are as they were, stopped, the next thing they do is go on. What happens here
    /// cannot stop CRIU any more: whoever does not want them to go on kills them.
    PreResume,
    Other,
}

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("criu does not answer as expected")]
    Io(#[from] io::Error),
    #[error("criu sent something unexpected: {0}")]
    Unexpected(String),
    #[error("criu took longer than {0:?}")]
    TimedOut(Duration),
    /// It failed and said so; the reason is in its log.
    #[error("criu failed{}", detail(*.errno))]
    Failed { errno: i32 },
    /// What was to happen at a moment failed, and CRIU was asked to give up.
    #[error("a step in between failed")]
    Step(#[source] io::Error),
}

fn detail(errno: i32) -> String {
    match errno {
        0 => String::new(),
        errno => format!(": {}", io::Error::from_raw_os_error(errno)),
    }
}

pub struct Session {
    socket: OwnedFd,
}

impl Session {
    /// The session and the end that becomes the program's. The pair must be made by the process
    /// whose descriptor numbers go into [`Options`].
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self { socket: ours }, theirs))
    }

    pub fn dump(
        &self,
        options: Options,
        limit: Duration,
        at: impl FnMut(Moment) -> io::Result<()>,
    ) -> Result<(), SessionError> {
        self.converse(Kind::Dump, options, limit, at).map(drop)
    }

    /// The first process of the restored tree.
    pub fn restore(
        &self,
        options: Options,
        limit: Duration,
        at: impl FnMut(Moment) -> io::Result<()>,
    ) -> Result<i32, SessionError> {
        let response = self.converse(Kind::Restore, options, limit, at)?;
        match response.restored {
            Some(restored) if restored.pid > 0 => Ok(restored.pid),
            _ => Err(SessionError::Unexpected(
                "a restore without a process".into(),
            )),
        }
    }

    fn converse(
        &self,
        kind: Kind,
        options: Options,
        limit: Duration,
        mut at: impl FnMut(Moment) -> io::Result<()>,
    ) -> Result<Response, SessionError> {
        let mut deadline = Instant::now() + limit;
        self.send(&Request {
            kind: kind as i32,
            options: Some(options),
            notify_success: None,
        })?;
        let mut refused = None;
        loop {
            let response = self.receive(deadline, limit)?;
            if response.kind == Kind::Notify as i32 {
                let began = Instant::now();
                let answer = at(moment(&response));
                // What others do in between is not CRIU's time.
                deadline += began.elapsed();
                self.send(&Request {
                    kind: Kind::Notify as i32,
                    options: None,
                    notify_success: Some(answer.is_ok()),
                })?;
                if let Err(error) = answer {
                    refused.get_or_insert(error);
                }
                continue;
            }
            if let Some(error) = refused {
                return Err(SessionError::Step(error));
            }
            if !response.success {
                return Err(SessionError::Failed {
                    errno: response.errno.unwrap_or(0),
                });
            }
            if response.kind != kind as i32 {
                return Err(SessionError::Unexpected(format!(
                    "an answer of kind {}",
                    response.kind
                )));
            }
            return Ok(response);
        }
    }

    fn send(&self, request: &Request) -> Result<(), SessionError> {
        let packet = request.encode_to_vec();
        rustix::io::retry_on_intr(|| {
            sendmsg(
                &self.socket,
                &[IoSlice::new(&packet)],
                &mut SendAncillaryBuffer::default(),
                SendFlags::NOSIGNAL,
            )
        })
        .map_err(io::Error::from)?;
        Ok(())
    }

    fn receive(&self, deadline: Instant, limit: Duration) -> Result<Response, SessionError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SessionError::TimedOut(limit));
            }
            let timeout = rustix::time::Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            let socket = self.socket.as_fd();
            match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => break,
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        let mut packet = vec![0; PACKET_MAX];
        // Descriptors that come along (masters of terminals) are closed with the buffer.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut packet)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
        })
        .map_err(io::Error::from)?;
        control.drain().for_each(drop);
        if received.bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "criu ended").into());
        }
        Response::decode(&packet[..received.bytes])
            .map_err(|error| SessionError::Unexpected(error.to_string()))
    }
}

fn moment(response: &Response) -> Moment {
    let notify = response.notify.as_ref();
    let pid = notify.and_then(|notify| notify.pid).unwrap_or(0);
    match notify.and_then(|notify| notify.script.as_deref()) {
        Some("pre-dump") => Moment::PreDump,
        Some("post-dump") => Moment::PostDump,
        Some("setup-namespaces") => Moment::SetupNamespaces { pid },
        Some("pre-resume") => Moment::PreResume,
        _ => Moment::Other,
    }
}
