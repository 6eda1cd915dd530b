//! Reading this host's clock that counts since its boot.

use std::io;

use cove_model::BootTime;
use rustix::time::{ClockId, clock_gettime};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Changes with every boot of the host.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string(BOOT_ID)?.trim().to_owned())
}

/// Microseconds since the boot, suspends included.
pub fn boot_micros() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000) + nanos / 1000
}

/// Now, in the boot of this name.
pub fn boot_time(boot: &str) -> BootTime {
    BootTime {
        boot: boot.to_owned(),
        micros: boot_micros(),
    }
}
