//! Output of a process as events, checked to be gapless but for what the guest says it dropped.

use async_recursion::async_recursion as boxed;
use bytes::{Bytes, BytesMut};
use cove_limits::EXEC_OUTPUT_MAX;

use super::call::Call;
use super::{Guest, GuestError};
use crate::frame::FrameError;
use crate::message::{
    Channel, Exit, Output, OutputFrom, OutputTime, Process, Refusals, ReplyKind, Request,
};

/// How often in a row a stream is taken up again; captures one right after the other.
const RESUMES_MAX: u32 = 100;

#[derive(Clone, Debug, PartialEq)]
pub enum FollowEvent {
    Started(Box<Process>),
    Output {
        channel: Channel,
        /// Absolute offset of the first byte.
        offset: u64,
        data: Bytes,
        /// Bytes before `offset` that the guest no longer had.
        dropped: u64,
        /// When parts of it came; see [`Output::times`].
        times: Vec<OutputTime>,
    },
    /// Something was refused because the network is off; once, before the exit. Only for those who asked for it.
    Refused(Refusals),
    Exit(Exit),
}

pub struct Follow {
    guest: Guest,
    id: String,
    live: bool,
    call: Call,
    /// The next offset of stdout and stderr.
    next: [u64; 2],
    wants_started: bool,
    /// Refusals were asked for and none was reported yet.
    wants_refusals: bool,
    /// `Started`, read before anybody asked for it.
    started: Option<Box<Process>>,
    over: bool,
    /// How often in a row it was taken up again without hearing anything.
    resumes: u32,
}

impl Follow {
    pub(super) fn new(guest: Guest, of: OutputFrom, call: Call, wants_started: bool) -> Self {
        let (stdout, stderr) = (of.stdout_from, of.stderr_from);
        Self {
            guest,
            id: of.id,
            live: of.follow,
            call,
            next: [stdout, stderr],
            wants_started,
            wants_refusals: false,
            started: None,
            over: false,
            resumes: 0,
        }
    }

    pub(super) fn with_refusals(mut self, wanted: bool) -> Self {
        self.wants_refusals = wanted;
        self
    }

    /// Waits until the guest says that it has started the command, or why not.
    #[boxed]
    pub async fn started(&mut self) -> Result<(), GuestError> {
        if let Some(FollowEvent::Started(process)) = self.next().await? {
            self.started = Some(process);
            return Ok(());
        }
        Err(GuestError::Unexpected("wanted started"))
    }

    /// The next event; `None` after `Exit`, or after the replay of a live process that was not to
    /// be followed. Dropping the future loses nothing.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<FollowEvent>, GuestError> {
        if let Some(process) = self.started.take() {
            return Ok(Some(FollowEvent::Started(process)));
        }
        if self.over {
            return Ok(None);
        }
        let reply = if self.wants_started {
            self.call.reply_soon().await?
        } else {
            self.reply().await?
        };
        match reply {
            ReplyKind::Started(process) if self.wants_started => {
                self.wants_started = false;
                Ok(Some(FollowEvent::Started(Box::new(process))))
            }
            _ if self.wants_started => Err(GuestError::Unexpected("wanted started")),
            ReplyKind::Output(output) => self.output(output).map(Some),
            ReplyKind::Refusals(refusals) if self.wants_refusals => {
                self.wants_refusals = false;
                Ok(Some(FollowEvent::Refused(refusals)))
            }
            ReplyKind::Exit(exit) => {
                self.over = true;
                Ok(Some(FollowEvent::Exit(exit)))
            }
            ReplyKind::Done(_) => {
                self.over = true;
                Ok(None)
            }
            _ => Err(GuestError::Unexpected("wanted output or exit")),
        }
    }

    /// The next reply. A capture of the sandbox ends the call; then it is taken up where it was, so
    /// that nobody who follows notices.
    async fn reply(&mut self) -> Result<ReplyKind, GuestError> {
        loop {
            match self.call.reply().await {
                // A guest that was captured while a frame was under way cannot say so.
                Err(GuestError::Quiesced | GuestError::Frame(FrameError::Closed))
                    if self.resumes < RESUMES_MAX =>
                {
                    self.resumes += 1;
                    let request = OutputFrom {
                        id: self.id.clone(),
                        stdout_from: self.next[0],
                        stderr_from: self.next[1],
                        follow: self.live,
                        resume: true,
                    };
                    self.call = self.guest.open(Request::Output(request)).await?;
                }
                Err(error) => return Err(error),
                Ok(reply) => {
                    self.resumes = 0;
                    return Ok(reply);
                }
            }
        }
    }

    /// Where to come back to: the next offsets of stdout and stderr.
    pub fn position(&self) -> (u64, u64) {
        (self.next[0], self.next[1])
    }

    fn output(&mut self, output: Output) -> Result<FollowEvent, GuestError> {
        let channel = Channel::try_from(output.channel)
            .map_err(|_| GuestError::Unexpected("an unknown output channel"))?;
        let next = &mut self.next[channel as usize];
        let end = output.offset.checked_add(output.data.len() as u64);
        let (Some(start), Some(end)) = (next.checked_add(output.dropped), end) else {
            return Err(GuestError::Unexpected("an impossible output offset"));
        };
        if start != output.offset {
            return Err(GuestError::Unexpected("output offsets have a gap"));
        }
        *next = end;
        Ok(FollowEvent::Output {
            channel,
            offset: output.offset,
            data: output.data,
            dropped: output.dropped,
            times: output.times,
        })
    }

    /// Everything up to the exit.
    #[boxed]
    pub async fn collect(mut self) -> Result<ExecResult, GuestError> {
        let mut kept = [BytesMut::new(), BytesMut::new()];
        let mut process = None;
        while let Some(event) = self.next().await? {
            match event {
                FollowEvent::Started(started) => process = Some(*started),
                FollowEvent::Output { channel, data, .. } => {
                    let kept = &mut kept[channel as usize];
                    let room = EXEC_OUTPUT_MAX - kept.len();
                    kept.extend_from_slice(&data[..data.len().min(room)]);
                }
                FollowEvent::Refused(_) => {}
                FollowEvent::Exit(exit) => {
                    let [stdout, stderr] = kept;
                    return Ok(ExecResult {
                        process,
                        exit,
                        stdout_bytes: self.next[0],
                        stderr_bytes: self.next[1],
                        stdout: stdout.freeze(),
                        stderr: stderr.freeze(),
                    });
                }
            }
        }
        Err(GuestError::Unexpected(
            "the output ended without an exit code",
        ))
    }
}

/// A finished process with the beginning of its output.
#[derive(Clone, Debug)]
pub struct ExecResult {
    pub process: Option<Process>,
    pub exit: Exit,
    pub stdout: Bytes,
    pub stderr: Bytes,
    /// What the streams carried in all; more than was collected when truncated.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

impl ExecResult {
    pub fn truncated(&self) -> bool {
        self.stdout_bytes > self.stdout.len() as u64 || self.stderr_bytes > self.stderr.len() as u64
    }
}
