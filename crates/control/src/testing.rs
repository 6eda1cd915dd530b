//! A host in memory, with faults on request, and a clock that stands still until it is turned. For
//! tests of this crate and of those above it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cove_runner::RunnerError;
use time::OffsetDateTime;
use tokio::sync::Semaphore;

use crate::Clock;

mod egress;
mod guest;
mod runner;
mod travel;

pub use egress::EgressLogs;
pub use guest::ScriptedGuest;
pub use runner::{GuestKind, MemoryRunner};

/// A clock that moves only when told to.
#[derive(Debug)]
pub struct ManualClock(Mutex<OffsetDateTime>);

impl Default for ManualClock {
    fn default() -> Self {
        let start = OffsetDateTime::from_unix_timestamp(1_800_000_000);
        Self(Mutex::new(start.expect("a moment within the calendar")))
    }
}

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> OffsetDateTime {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which call a fault is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Create,
    Get,
    List,
    Start,
    Stop,
    Delete,
    Resize,
    Sample,
    Samples,
    Connect,
    Events,
    Images,
    AddImage,
    Freeze,
    Pause,
    Resume,
    Snapshot,
    Snapshots,
    DeleteSnapshot,
    Rollback,
    Export,
    Import,
}

/// What goes wrong with one call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Nothing happens and this is answered.
    Refuse(RunnerError),
    /// It happens, but the answer does not arrive.
    LoseAnswer,
    /// It waits for a permit first; the caller adds one to let it go on.
    Hold(Arc<Semaphore>),
}

impl Fault {
    pub fn unreachable() -> Self {
        Self::Refuse(unreachable())
    }
}

pub(crate) fn unreachable() -> RunnerError {
    RunnerError::Unreachable {
        message: "as the test asked".into(),
    }
}
