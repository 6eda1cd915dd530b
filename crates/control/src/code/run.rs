//! One run of code, followed to its end: over broken connections, with its time limit.

use async_recursion::async_recursion as boxed;
use std::collections::VecDeque;
use std::time::Duration;

use cove_code::{CodeContext, CodeError, CodeEvent, Transcript};
use cove_protocol::client::{Follow, FollowEvent, GuestError};
use cove_protocol::message::{Exit, OutputFrom};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::{NO_PROGRAM, SIGKILL, no_interpreter, send_signal};
use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::guards::Guard;
use crate::guest::GuestAccess;

/// How long interrupted code gets to end before its context is ended.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
/// How long the end of standard error is waited for after that of standard output; code may have
/// closed it.
const TAIL_WAIT: Duration = Duration::from_millis(500);
/// A connection to the guest that broke is taken up again for so long.
const RECONNECT_FOR: Duration = Duration::from_secs(30);
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeOutcome {
    pub context: String,
    /// Of a shell's last command.
    pub exit_code: Option<i32>,
    pub timed_out: bool,
    /// The context's process ended with the run.
    pub ended: bool,
    /// Something the run said was lost.
    pub truncated: bool,
    pub duration_ms: u64,
}

pub(super) struct Begun {
    pub run: String,
    pub follow: Follow,
    pub written: JoinHandle<Result<(), ControlError>>,
    pub turn: Guard,
    pub timeout: Option<Duration>,
}

/// Code that runs. [`CodeRun::next`] tells what it says; after its end [`CodeRun::outcome`] how it
/// ended. Dropping it leaves the code to its end.
pub struct CodeRun {
    control: Control,
    access: GuestAccess,
    context: CodeContext,
    transcript: Transcript,
    follow: Follow,
    written: Option<JoinHandle<Result<(), ControlError>>>,
    _turn: Guard,
    queue: VecDeque<CodeEvent>,
    started: Instant,
    limit: Limit,
    said_something: bool,
    timed_out: bool,
    ended: bool,
    over: bool,
}

/// What happens when the time is over.
#[derive(Clone, Copy)]
enum Limit {
    None,
    Interrupt(Instant),
    Kill(Instant),
    /// The rest is not waited for any longer.
    Leave(Instant),
}

impl Limit {
    fn at(self) -> Option<Instant> {
        match self {
            Self::None => None,
            Self::Interrupt(at) | Self::Kill(at) | Self::Leave(at) => Some(at),
        }
    }
}

impl CodeRun {
    pub(super) fn new(
        control: Control,
        access: GuestAccess,
        context: CodeContext,
        begun: Begun,
    ) -> Self {
        let started = Instant::now();
        Self {
            control,
            access,
            transcript: Transcript::new(&context.id, &begun.run),
            context,
            follow: begun.follow,
            written: Some(begun.written),
            _turn: begun.turn,
            queue: VecDeque::new(),
            started,
            limit: match begun.timeout {
                Some(after) => Limit::Interrupt(started + after),
                None => Limit::None,
            },
            said_something: false,
            timed_out: false,
            ended: false,
            over: false,
        }
    }

    pub fn context(&self) -> &CodeContext {
        &self.context
    }

    /// The next thing the code says; `None` at its end. Dropping the future loses nothing.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<CodeEvent>, ControlError> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(Some(event));
            }
            if self.over {
                return Ok(None);
            }
            let limit = self.limit.at();
            tokio::select! {
                event = self.follow.next() => self.take(event).await?,
                () = async { sleep_until(limit.unwrap_or_else(Instant::now)).await }, if limit.is_some() => {
                    self.time_is_over().await?;
                }
                told = async { self.written.as_mut().expect("the branch is on only when there is one").await }, if self.written.is_some() => {
                    self.written = None;
                    // Of a context that ended its exit tells more.
                    match told {
                        Ok(Err(error)) if error.code != ErrorCode::NotFound => return Err(error),
                        _ => {}
                    }
                }
            }
        }
    }

    pub fn outcome(&self) -> CodeOutcome {
        CodeOutcome {
            context: self.context.id.clone(),
            exit_code: self.transcript.exit_code,
            timed_out: self.timed_out,
            ended: self.ended,
            truncated: self.transcript.truncated,
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }

    async fn take(
        &mut self,
        event: Result<Option<FollowEvent>, GuestError>,
    ) -> Result<(), ControlError> {
        match event {
            Ok(Some(FollowEvent::Started(_) | FollowEvent::Refused(_))) => {}
            Ok(Some(FollowEvent::Output {
                channel,
                data,
                dropped,
                ..
            })) => {
                self.said_something = true;
                self.queue
                    .extend(self.transcript.take(channel, &data, dropped));
                if self.transcript.is_complete() {
                    self.over = true;
                } else if self.transcript.is_over() && !matches!(self.limit, Limit::Leave(_)) {
                    self.limit = Limit::Leave(Instant::now() + TAIL_WAIT);
                }
            }
            Ok(Some(FollowEvent::Exit(exit))) => return self.context_ended(&exit),
            Ok(None) => {
                return Err(ControlError::new(
                    ErrorCode::GuestUnreachable,
                    "the output ended without an exit code",
                ));
            }
            Err(error) => self.reconnect(error).await?,
        }
        Ok(())
    }

    fn context_ended(&mut self, exit: &Exit) -> Result<(), ControlError> {
        self.over = true;
        self.ended = true;
        if !self.said_something && exit.code == NO_PROGRAM {
            return Err(no_interpreter(self.context.driver()));
        }
        let how = if exit.oom {
            "ran out of memory and was killed".to_owned()
        } else if exit.signal != 0 {
            format!("was killed by signal {}", exit.signal)
        } else {
            format!("ended with exit code {}", exit.code)
        };
        if !self.transcript.is_over() {
            self.queue.push_back(CodeEvent::Error(CodeError {
                name: "ContextEnded".into(),
                value: format!("the context's process {how}; its variables are lost"),
                traceback: String::new(),
            }));
        }
        Ok(())
    }

    async fn time_is_over(&mut self) -> Result<(), ControlError> {
        match self.limit {
            Limit::None => {}
            Limit::Interrupt(_) => {
                self.timed_out = true;
                self.limit = Limit::Kill(Instant::now() + INTERRUPT_GRACE);
                self.control.interrupt(&self.access, &self.context).await?;
            }
            Limit::Kill(_) => {
                self.limit = Limit::Leave(Instant::now() + INTERRUPT_GRACE);
                send_signal(self.access.guest(), &self.context.id, SIGKILL).await?;
            }
            Limit::Leave(_) => self.over = true,
        }
        Ok(())
    }

    /// Goes on from where the output was; a snapshot closes every connection for a moment.
    async fn reconnect(&mut self, reason: GuestError) -> Result<(), ControlError> {
        if matches!(reason, GuestError::Refused { .. }) {
            return Err(reason.into());
        }
        let (stdout_from, stderr_from) = self.follow.position();
        let started = Instant::now();
        loop {
            let from = OutputFrom {
                id: self.context.id.clone(),
                stdout_from,
                stderr_from,
                follow: true,
                resume: false,
            };
            match self.access.guest().follow(from).await {
                Ok(follow) => {
                    self.follow = follow;
                    return Ok(());
                }
                Err(GuestError::Refused { .. }) => return Err(reason.into()),
                Err(_) if started.elapsed() > RECONNECT_FOR => return Err(reason.into()),
                Err(_) => sleep(RECONNECT_PAUSE).await,
            }
        }
    }
}
