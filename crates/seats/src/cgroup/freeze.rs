//! Stopping every task of a group where it is, and letting them go on.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cove_model::Backoff;

use super::{Group, keyed, write};

/// How long the kernel may take to stop every task. One that sits in an uninterruptible wait holds
/// the others up.
const FREEZE_LIMIT: Duration = Duration::from_secs(10);
const LOOK_FIRST: Duration = Duration::from_micros(100);
const LOOK_LAST: Duration = Duration::from_millis(5);

enum Switch {
    V1(PathBuf),
    V2(PathBuf),
}

impl Group {
    fn switch(&self) -> io::Result<Switch> {
        match self {
            Self::V1(group) => match &group.freezer {
                Some(dir) => Ok(Switch::V1(dir.clone())),
                None => Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the freezer controller is not mounted",
                )),
            },
            Self::V2(group) => Ok(Switch::V2(group.dir.clone())),
        }
    }

    /// Asks for it without waiting: tasks that a tracer holds stop when it lets go.
    pub fn ask_to_freeze(&self) -> io::Result<()> {
        match self.switch()? {
            Switch::V1(dir) => write(&dir.join("freezer.state"), "FROZEN"),
            Switch::V2(dir) => write(&dir.join("cgroup.freeze"), "1"),
        }
    }

    /// Returns when no task runs any more. When that takes too long they all go on.
    pub fn freeze(&self) -> io::Result<()> {
        let deadline = Instant::now() + FREEZE_LIMIT;
        let mut look = Backoff::new(LOOK_FIRST, LOOK_LAST);
        self.ask_to_freeze()?;
        while !self.is_frozen()? {
            if Instant::now() > deadline {
                self.thaw()?;
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "a process could not be stopped within {} s",
                        FREEZE_LIMIT.as_secs()
                    ),
                ));
            }
            std::thread::sleep(look.pause());
            // Version 1 gives up on a task that was busy and must be asked again.
            self.ask_to_freeze()?;
        }
        Ok(())
    }

    pub fn thaw(&self) -> io::Result<()> {
        match self.switch()? {
            Switch::V1(dir) => write(&dir.join("freezer.state"), "THAWED"),
            Switch::V2(dir) => write(&dir.join("cgroup.freeze"), "0"),
        }
    }

    /// Whether every task is stopped.
    pub fn is_frozen(&self) -> io::Result<bool> {
        match self.switch()? {
            Switch::V1(dir) => {
                Ok(fs::read_to_string(dir.join("freezer.state"))?.trim() == "FROZEN")
            }
            Switch::V2(dir) => {
                let events = fs::read_to_string(dir.join("cgroup.events"))?;
                Ok(keyed(&events, "frozen") == Some(1))
            }
        }
    }

    /// Whether it is frozen or on its way there.
    pub fn is_asked_to_freeze(&self) -> io::Result<bool> {
        match self.switch()? {
            Switch::V1(dir) => {
                Ok(fs::read_to_string(dir.join("freezer.state"))?.trim() != "THAWED")
            }
            Switch::V2(dir) => Ok(fs::read_to_string(dir.join("cgroup.freeze"))?.trim() == "1"),
        }
    }
}
