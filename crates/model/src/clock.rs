//! Time that passes, apart from what clocks on walls say.
//!
//! A date may jump when somebody sets the clock. How long something took must not: within one boot of the
//! host it is read from the kernel's count since boot ([`BootTime`]). Readings of several boots lie on one
//! axis ([`Steady`]), on which only the gap between two boots is taken from the wall clock.

use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A reading of a host's clock that counts since its boot, suspends included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootTime {
    /// Which boot of which host.
    pub boot: String,
    pub micros: u64,
}

/// A point on the axis of time that passed. It never goes back, and says nothing about the date.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Steady(i64);

impl Steady {
    pub fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    pub fn micros(self) -> i64 {
        self.0
    }

    /// Nothing when `earlier` is the later one.
    pub fn since(self, earlier: Self) -> Duration {
        let passed = self.0.saturating_sub(earlier.0);
        Duration::from_micros(u64::try_from(passed).unwrap_or(0))
    }

    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }
}

impl Add<Duration> for Steady {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }
}

fn micros(of: Duration) -> i64 {
    i64::try_from(of.as_micros()).unwrap_or(i64::MAX)
}
