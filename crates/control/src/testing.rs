//! A host in memory, with faults on request, and a clock that stands still until it is turned. For
//! tests of this crate and of those above it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use cove_runner_api::RunnerError;
use time::OffsetDateTime;
use tokio::sync::Semaphore;

use crate::Clock;

mod egress;
mod guest;
mod runner;
mod travel;

pub use cove_node::{JoinToken, NodeKey};
pub use egress::EgressLogs;
pub use guest::ScriptedGuest;
pub use runner::{GuestKind, MemoryRunner};

/// Clocks that move only when asked to: the one on the wall, and the one that counts since the boot.
#[derive(Debug)]
pub struct ManualClock(Mutex<Hands>);

#[derive(Debug)]
struct Hands {
    wall: OffsetDateTime,
    since_boot: Duration,
    boots: u64,
}

impl Default for ManualClock {
    fn default() -> Self {
        let start = OffsetDateTime::from_unix_timestamp(1_800_000_000);
        Self(Mutex::new(Hands {
            wall: start.expect("a moment within the calendar"),
            since_boot: Duration::from_secs(1000),
            boots: 1,
        }))
    }
}

impl ManualClock {
    fn hands(&self) -> parking_lot::MutexGuard<'_, Hands> {
        self.0.lock()
    }

    /// Time passes.
    pub fn advance(&self, by: Duration) {
        let mut hands = self.hands();
        hands.wall += by;
        hands.since_boot += by;
    }

    /// Somebody sets the clock on the wall; no time passes.
    pub fn set_by(&self, seconds: i64) {
        self.hands().wall += time::Duration::seconds(seconds);
    }

    /// The host is restarted, which takes no time by the clock on the wall.
    pub fn reboot(&self) {
        let mut hands = self.hands();
        hands.boots += 1;
        hands.since_boot = Duration::ZERO;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> OffsetDateTime {
        self.hands().wall
    }

    fn boot_id(&self) -> String {
        format!("boot-{}", self.hands().boots)
    }

    fn boot_micros(&self) -> u64 {
        u64::try_from(self.hands().since_boot.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Which call a fault is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Identity,
    Tiers,
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
    CreateVolume,
    Volumes,
    DeleteVolume,
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
