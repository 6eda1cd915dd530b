//! A command's output that goes on across captures of its sandbox and while it is at rest.

use cove_control::{ControlError, GuestAccess, GuestError};
use cove_protocol::client::{Follow, FollowEvent};
use cove_protocol::message::OutputFrom;

pub struct Following {
    /// Kept so that the sandbox is not idle while somebody is logged in.
    access: GuestAccess,
    follow: Follow,
    id: String,
    /// The guest has told that the process is there, so that it can be asked for again.
    begun: bool,
    /// The guest broke off at these offsets, and has not been asked again yet.
    broken: Option<(u64, u64)>,
}

impl Following {
    pub fn new(access: GuestAccess, follow: Follow, id: String) -> Self {
        Self {
            access,
            follow,
            id,
            begun: false,
            broken: None,
        }
    }

    /// The next event; `None` after the exit. Dropping the wait loses nothing.
    pub async fn next(&mut self) -> Result<Option<FollowEvent>, ControlError> {
        loop {
            if let Some((stdout_from, stderr_from)) = self.broken {
                let from = OutputFrom {
                    id: self.id.clone(),
                    stdout_from,
                    stderr_from,
                    follow: true,
                    resume: true,
                };
                self.follow = self.access.follow_again(from).await?;
                self.broken = None;
            }
            match self.follow.next().await {
                Err(error) if self.begun && was_put_to_rest(&self.access, &error).await => {
                    self.broken = Some(self.follow.position());
                }
                Ok(event) => {
                    self.begun = true;
                    return Ok(event);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

async fn was_put_to_rest(access: &GuestAccess, error: &GuestError) -> bool {
    match error {
        GuestError::Quiesced => true,
        GuestError::Connect(_) | GuestError::Frame(_) | GuestError::TimedOut(_) => {
            GuestAccess::is_at_rest(error) || access.rests().await
        }
        GuestError::Refused { .. } | GuestError::Unexpected(_) => false,
    }
}
