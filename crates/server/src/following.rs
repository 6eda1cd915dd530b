//! Output that goes on across captures, with refusals in the contract's own form.

use cove_control::{GuestAccess, Seen};
use cove_dialect::FollowError;
use cove_protocol::client::FollowEvent;
use cove_protocol::message::{Channel, Exit, OutputFrom, Start};

use crate::failure::{self, About, Failure};

pub struct Following {
    inner: cove_dialect::Following,
    about: About,
}

impl Following {
    /// Starts a command and follows it.
    pub async fn start(access: GuestAccess, start: Start) -> Result<Self, Failure> {
        let about = About::Start;
        let inner = cove_dialect::Following::start(access, start).await;
        let inner = inner.map_err(|error| failure::guest(error, about))?;
        Ok(Self { inner, about })
    }

    /// Follows a process that is there.
    pub async fn attach(access: GuestAccess, from: OutputFrom) -> Result<Self, Failure> {
        let about = About::Process;
        let inner = cove_dialect::Following::attach(access, from).await;
        let inner = inner.map_err(|error| failure::guest(error, about))?;
        Ok(Self { inner, about })
    }

    /// Hands on all output until the exit.
    pub async fn until_exit(&mut self, take: impl FnMut(Channel, &[u8])) -> Result<Exit, Failure> {
        let exit = self.inner.until_exit(take).await;
        exit.map_err(|error| self.failure(error))
    }

    /// The next event; `None` after the exit. Dropping the wait loses nothing.
    pub async fn next(&mut self) -> Result<Option<FollowEvent>, Failure> {
        let next = self.inner.next().await;
        next.map_err(|error| self.failure(error))
    }

    /// What was refused so far because the network is off.
    pub fn seen(&self) -> &Seen {
        self.inner.seen()
    }

    fn failure(&self, error: FollowError) -> Failure {
        match error {
            FollowError::Guest(error) => failure::guest(error, self.about),
            FollowError::Control(error) => error.into(),
        }
    }

    /// Where it is: the next offsets of stdout and stderr.
    pub fn position(&self) -> (u64, u64) {
        self.inner.position()
    }
}
