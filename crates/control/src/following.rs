//! A process's output that goes on across captures of its sandbox.
//!
//! A guest that is about to be captured ends every call, and the client of its protocol takes streams up
//! again by itself. What is left to do here is the sandbox that was put to rest: whoever listens waits
//! until somebody needs it, and then goes on from the offsets reached, without a gap or a repeat. Every
//! interface follows output through here: the API, the dialects and SSH.

use async_recursion::async_recursion as boxed;
use bytes::BytesMut;
use cove_limits::OUTPUT_TIMES_MAX;
use cove_protocol::client::{Follow, FollowEvent, GuestError};
use cove_protocol::message::{Channel, Exit, OutputFrom, OutputTime, Refusals, Start};
use futures_util::future::poll_immediate;

use crate::error::ControlError;
use crate::guest::GuestAccess;

/// Bytes of output passed on at once.
pub const PIECE: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error("the sandbox refused")]
    Guest(#[source] GuestError),
    #[error("cannot follow the sandbox any further")]
    Control(#[from] ControlError),
}

impl From<FollowError> for ControlError {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Guest(error) => error.into(),
            FollowError::Control(error) => error,
        }
    }
}

/// What is known of refusals in a sandbox without a network.
#[derive(Debug, Default)]
pub struct Seen {
    /// The guest sees what is refused: where it reports nothing, nothing was.
    pub all: bool,
    /// The first that it reported since the command started.
    pub first: Option<Refusals>,
}

pub struct Following {
    /// Kept so that the sandbox is not idle while somebody listens.
    access: GuestAccess,
    follow: Follow,
    /// What was asked for; the offsets are those reached when the guest broke off.
    from: OutputFrom,
    /// The guest has reported that the process is there, so that it can be asked for again.
    begun: bool,
    /// The guest broke off, and has not been asked again yet.
    broken: bool,
    seen: Seen,
    /// What is left of output that came in a larger piece than is passed on at once.
    rest: Option<FollowEvent>,
    /// What was read while looking whether there is more of the same output.
    ahead: Option<Result<Option<FollowEvent>, GuestError>>,
}

/// The first part of an event that is too large to be passed on at once, and the rest.
fn split(event: FollowEvent) -> (FollowEvent, Option<FollowEvent>) {
    match event {
        FollowEvent::Output {
            channel,
            offset,
            mut data,
            dropped,
            mut times,
        } if data.len() > PIECE => {
            let at = offset + PIECE as u64;
            let rest = FollowEvent::Output {
                channel,
                offset: at,
                data: data.split_off(PIECE),
                dropped: 0,
                times: split_times(&mut times, at),
            };
            let first = FollowEvent::Output {
                channel,
                offset,
                data,
                dropped,
                times,
            };
            (first, Some(rest))
        }
        event => (event, None),
    }
}

/// Takes the marks from an offset on, which then begin there.
fn split_times(times: &mut Vec<OutputTime>, at: u64) -> Vec<OutputTime> {
    let mut rest = times.split_off(times.partition_point(|time| time.offset < at));
    if let Some(before) = times.last()
        && rest.first().is_none_or(|first| first.offset > at)
    {
        let unix_ms = before.unix_ms;
        rest.insert(
            0,
            OutputTime {
                offset: at,
                unix_ms,
            },
        );
    }
    rest
}

/// Whether a stream ended because its sandbox was put to rest.
async fn was_put_to_rest(access: &GuestAccess, error: &GuestError) -> bool {
    match error {
        GuestError::Quiesced => true,
        GuestError::Connect(_) | GuestError::Frame(_) | GuestError::TimedOut(_) => {
            GuestAccess::is_at_rest(error) || access.rests().await
        }
        GuestError::Refused { .. } | GuestError::Unexpected(_) | GuestError::NoRoom => false,
    }
}

impl Following {
    /// Starts a command and follows it from its first byte on.
    #[boxed]
    pub async fn start(access: GuestAccess, start: Start) -> Result<Self, GuestError> {
        let from = OutputFrom {
            id: start.id.clone(),
            follow: true,
            ..OutputFrom::default()
        };
        let follow = access.start_following(start).await?;
        Ok(Self::new(access, follow, from, false))
    }

    /// Follows a process that is there already; its sandbox is not woken for that.
    #[boxed]
    pub async fn attach(access: GuestAccess, from: OutputFrom) -> Result<Self, GuestError> {
        let follow = access.listener().follow(from.clone()).await?;
        Ok(Self::new(access, follow, from, true))
    }

    /// Hands on all output until the process's exit. `None`: the output that was asked for ended before
    /// one, which it does where only what is there already was asked for.
    pub async fn collect(
        &mut self,
        mut take: impl FnMut(Channel, &[u8]),
    ) -> Result<Option<Exit>, FollowError> {
        loop {
            match self.next().await? {
                Some(FollowEvent::Started(_) | FollowEvent::Refused(_)) => {}
                Some(FollowEvent::Output { channel, data, .. }) => take(channel, &data),
                Some(FollowEvent::Exit(exit)) => return Ok(Some(exit)),
                None => return Ok(None),
            }
        }
    }

    /// As [`Following::collect`], for a process whose exit must come.
    pub async fn until_exit(
        &mut self,
        take: impl FnMut(Channel, &[u8]),
    ) -> Result<Exit, FollowError> {
        let exit = self.collect(take).await?;
        exit.ok_or(FollowError::Guest(GuestError::Unexpected(
            "the output ended without an exit code",
        )))
    }

    /// `begun`: the process is known to be there already.
    fn new(access: GuestAccess, follow: Follow, from: OutputFrom, begun: bool) -> Self {
        Self {
            access,
            follow,
            from,
            begun,
            broken: false,
            seen: Seen::default(),
            rest: None,
            ahead: None,
        }
    }

    /// The next event; `None` after the exit. Dropping the wait loses nothing.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<FollowEvent>, FollowError> {
        if let Some(event) = self.rest.take() {
            let (first, rest) = split(event);
            self.rest = rest;
            return Ok(Some(first));
        }
        loop {
            if self.broken {
                self.follow = self.access.follow_again(self.from.clone()).await?;
                self.broken = false;
            }
            let next = match self.ahead.take() {
                Some(ahead) => ahead,
                None => self.follow.next().await,
            };
            match next {
                Err(error) if self.begun && was_put_to_rest(&self.access, &error).await => {
                    let (stdout, stderr) = self.follow.position();
                    self.from.stdout_from = stdout;
                    self.from.stderr_from = stderr;
                    self.from.resume = true;
                    self.broken = true;
                }
                Ok(event) => {
                    self.begun = true;
                    let Some(event) = event else {
                        return Ok(None);
                    };
                    self.see(&event);
                    let event = self.merged(event).await;
                    let (first, rest) = split(event);
                    self.rest = rest;
                    return Ok(Some(first));
                }
                Err(error) => return Err(FollowError::Guest(error)),
            }
        }
    }

    fn see(&mut self, event: &FollowEvent) {
        match event {
            FollowEvent::Started(process) => self.seen.all = process.sees_refusals,
            FollowEvent::Refused(refusals) => {
                self.seen.first.get_or_insert_with(|| refusals.clone());
                self.access.log_refusals();
            }
            // What came after the first.
            FollowEvent::Exit(_) if self.seen.first.is_some() => self.access.log_refusals(),
            FollowEvent::Exit(_) | FollowEvent::Output { .. } => {}
        }
    }

    /// What was refused so far because the network is off.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// The event with what came behind it of the same output and is there already: a program that writes
    /// line by line costs its followers no more than one that writes at once. Never waits.
    async fn merged(&mut self, first: FollowEvent) -> FollowEvent {
        let FollowEvent::Output {
            channel,
            offset,
            mut data,
            dropped,
            mut times,
        } = first
        else {
            return first;
        };
        let mut all = BytesMut::new();
        while all.len().max(data.len()) < PIECE && times.len() < OUTPUT_TIMES_MAX {
            let Some(next) = poll_immediate(self.follow.next()).await else {
                break;
            };
            match next {
                Ok(Some(FollowEvent::Output {
                    channel: same,
                    data: more,
                    dropped: 0,
                    times: later,
                    ..
                })) if same == channel && later.is_empty() == times.is_empty() => {
                    times.extend(later);
                    if all.is_empty() {
                        all.extend_from_slice(&data);
                    }
                    all.extend_from_slice(&more);
                }
                other => {
                    self.ahead = Some(other);
                    break;
                }
            }
        }
        if !all.is_empty() {
            data = all.freeze();
        }
        FollowEvent::Output {
            channel,
            offset,
            data,
            dropped,
            times,
        }
    }

    /// Where it is: the next offsets of stdout and stderr.
    pub fn position(&self) -> (u64, u64) {
        self.follow.position()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_split_has_the_times_of_its_bytes() {
        let time = |offset, unix_ms| OutputTime { offset, unix_ms };
        let mut times = vec![time(10, 1), time(20, 2), time(30, 3)];
        assert_eq!(split_times(&mut times, 25), [time(25, 2), time(30, 3)]);
        assert_eq!(times, [time(10, 1), time(20, 2)]);
        assert_eq!(split_times(&mut times, 20), [time(20, 2)]);
        assert_eq!(times, [time(10, 1)]);
        // When the first bytes came is not known.
        assert_eq!(split_times(&mut times, 5), [time(10, 1)]);
        assert_eq!(times, []);
    }
}
