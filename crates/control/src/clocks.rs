//! What time it is, and how much has passed.
//!
//! Dates (when something was made, when a key expires) are the wall clock's. Durations (usage, idle times,
//! lifetimes, rates) are taken on an axis that no set clock moves: within a boot of the host it follows the
//! kernel's count since boot, and the store keeps where each boot of each machine lies on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cove_model::{BootTime, Steady};
use cove_store::{BootReading, Moment, SteadyAxis};
use time::OffsetDateTime;

use crate::error::ControlError;
use crate::{Clock, Control, Sandbox};

pub(crate) struct Clocks {
    clock: Arc<dyn Clock>,
    boot: String,
    /// Where the axis was at the boot.
    offset_us: AtomicI64,
    /// Since when it is exact.
    began_us: AtomicI64,
}

impl Clocks {
    /// Until the store has been asked, the axis is the wall clock's.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let wall = OffsetDateTime::unix_timestamp_nanos(clock.now()) / 1000;
        let wall = i64::try_from(wall).unwrap_or(i64::MAX);
        let since = i64::try_from(clock.boot_micros()).unwrap_or(i64::MAX);
        Self {
            boot: clock.boot_id(),
            offset_us: AtomicI64::new(wall.saturating_sub(since)),
            began_us: AtomicI64::new(wall),
            clock,
        }
    }

    pub fn now(&self) -> OffsetDateTime {
        self.clock.now()
    }

    pub fn steady(&self) -> Steady {
        self.on_axis(self.clock.boot_micros())
    }

    pub fn moment(&self) -> Moment {
        Moment {
            at: self.now(),
            steady: self.steady(),
        }
    }

    /// Another clock's reading. What is from another boot, or has no reading, is as good as now.
    pub fn placed(&self, reading: Option<&BootTime>) -> Steady {
        match reading {
            Some(reading) if reading.boot == self.boot => self.on_axis(reading.micros),
            _ => self.steady(),
        }
    }

    pub fn exact_since(&self) -> Steady {
        Steady::from_micros(self.began_us.load(Ordering::Relaxed))
    }

    fn on_axis(&self, micros: u64) -> Steady {
        let offset = self.offset_us.load(Ordering::Relaxed);
        Steady::from_micros(offset.saturating_add(i64::try_from(micros).unwrap_or(i64::MAX)))
    }

    fn reading(&self, machine: String) -> BootReading {
        BootReading {
            machine,
            at: self.now(),
            boot_time: BootTime {
                boot: self.boot.clone(),
                micros: self.clock.boot_micros(),
            },
        }
    }

    fn place(&self, axis: &SteadyAxis) {
        self.offset_us.store(axis.offset_us, Ordering::Relaxed);
        self.began_us.store(axis.began.micros(), Ordering::Relaxed);
    }
}

impl Control {
    /// How much has passed, on the axis of the store.
    pub fn steady(&self) -> Steady {
        self.0.clocks.steady()
    }

    pub(crate) fn moment(&self) -> Moment {
        self.0.clocks.moment()
    }

    /// Learns where this boot lies on the axis, and leaves a reading for the next one.
    pub(crate) async fn read_clocks(&self) -> Result<(), ControlError> {
        let reading = self.0.clocks.reading(self.0.audit.installation());
        let axis = self.store().read_steady(&reading).await?;
        self.0.clocks.place(&axis);
        Ok(())
    }

    /// How long ago it was created.
    pub fn age(&self, sandbox: &Sandbox) -> Duration {
        self.steady().since(sandbox.created_steady)
    }

    /// How long ago it was last used, as far as that is written down.
    pub fn idle_for(&self, sandbox: &Sandbox) -> Duration {
        self.steady().since(sandbox.active_steady)
    }
}
