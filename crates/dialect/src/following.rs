//! A process's output that goes on across captures of its sandbox.
//!
//! A guest that is about to be captured ends every call, and the client of its protocol takes streams up
//! again by itself. What is left to do here is the sandbox that was put to rest: whoever listens waits
//! until somebody needs it, and then goes on from the offsets reached, without a gap or a repeat.

use cove_control::{ControlError, GuestAccess, GuestError};
use cove_protocol::client::{Follow, FollowEvent};
use cove_protocol::message::OutputFrom;

#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error("the sandbox refused")]
    Guest(#[source] GuestError),
    #[error("the sandbox could not be followed further")]
    Control(#[from] ControlError),
}

pub struct Following {
    /// Kept so that the sandbox is not idle while somebody listens.
    access: GuestAccess,
    follow: Follow,
    /// What was asked for; the offsets are those reached when the guest broke off.
    from: OutputFrom,
    /// The guest has told that the process is there, so that it can be asked for again.
    begun: bool,
    /// The guest broke off, and has not been asked again yet.
    broken: bool,
}

/// Whether a stream ended because its sandbox was put to rest.
async fn was_put_to_rest(access: &GuestAccess, error: &GuestError) -> bool {
    match error {
        GuestError::Quiesced => true,
        GuestError::Connect(_) | GuestError::Frame(_) | GuestError::TimedOut(_) => {
            GuestAccess::is_at_rest(error) || access.rests().await
        }
        GuestError::Refused { .. } | GuestError::Unexpected(_) => false,
    }
}

impl Following {
    /// `begun`: the process is known to be there already.
    pub fn new(access: GuestAccess, follow: Follow, from: OutputFrom, begun: bool) -> Self {
        Self {
            access,
            follow,
            from,
            begun,
            broken: false,
        }
    }

    /// The next event; `None` after the exit. Dropping the wait loses nothing.
    pub async fn next(&mut self) -> Result<Option<FollowEvent>, FollowError> {
        loop {
            if self.broken {
                self.follow = self.access.follow_again(self.from.clone()).await?;
                self.broken = false;
            }
            match self.follow.next().await {
                Err(error) if self.begun && was_put_to_rest(&self.access, &error).await => {
                    let (stdout, stderr) = self.follow.position();
                    self.from.stdout_from = stdout;
                    self.from.stderr_from = stderr;
                    self.from.resume = true;
                    self.broken = true;
                }
                Ok(event) => {
                    self.begun = true;
                    return Ok(event);
                }
                Err(error) => return Err(FollowError::Guest(error)),
            }
        }
    }

    /// Where it is: the next offsets of stdout and stderr.
    pub fn position(&self) -> (u64, u64) {
        self.follow.position()
    }
}
