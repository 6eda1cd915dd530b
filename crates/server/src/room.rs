//! Waiting for room in the share of whoever pays.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// How often somebody without room looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
#[error("unread answers hold the organisation's whole share of the server's memory")]
pub struct NoRoomLeft;

/// A wait for room; begins when there is none and ends when there is some.
#[derive(Default)]
pub struct Room(Option<Waiting>);

struct Waiting {
    until: Instant,
    look: Pin<Box<Sleep>>,
}

impl Room {
    /// Ready when there is room, and with an error when there was none for `patience`.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        patience: Duration,
        has_room: impl Fn() -> bool,
    ) -> Poll<Result<(), NoRoomLeft>> {
        loop {
            if has_room() {
                self.0 = None;
                return Poll::Ready(Ok(()));
            }
            let waiting = self.0.get_or_insert_with(|| Waiting {
                until: Instant::now() + patience,
                look: Box::pin(sleep(LOOK_AGAIN)),
            });
            if waiting.look.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= waiting.until {
                return Poll::Ready(Err(NoRoomLeft));
            }
            waiting.look.as_mut().reset(Instant::now() + LOOK_AGAIN);
        }
    }
}
