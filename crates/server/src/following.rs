//! Output that goes on across captures, with refusals in the contract's own form.

use cove_control::GuestAccess;
use cove_dialect::FollowError;
use cove_protocol::client::{Follow, FollowEvent};
use cove_protocol::message::OutputFrom;

use crate::failure::{self, About, Failure};

pub struct Following {
    inner: cove_dialect::Following,
    about: About,
}

impl Following {
    pub fn new(access: GuestAccess, follow: Follow, from: OutputFrom, about: About) -> Self {
        let begun = !matches!(about, About::Start);
        Self {
            inner: cove_dialect::Following::new(access, follow, from, begun),
            about,
        }
    }

    /// The next event; `None` after the exit. Dropping the wait loses nothing.
    pub async fn next(&mut self) -> Result<Option<FollowEvent>, Failure> {
        self.inner.next().await.map_err(|error| match error {
            FollowError::Guest(error) => failure::guest(error, self.about),
            FollowError::Control(error) => error.into(),
        })
    }

    /// Where it is: the next offsets of stdout and stderr.
    pub fn position(&self) -> (u64, u64) {
        self.inner.position()
    }
}
