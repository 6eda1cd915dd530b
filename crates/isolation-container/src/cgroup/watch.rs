//! Waiting for what the kernel says about a group's memory, without polling.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cove_isolation::MemoryEvent;
use rustix::event::EventfdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{keyed, memory_event, v1, v2};

const SETTLE_TRIES: u32 = 10;
const SETTLE_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct MemoryWatch {
    source: Source,
    kills: u64,
    high: u64,
}

#[derive(Debug)]
enum Source {
    /// An eventfd the kernel writes to, and the file that tells what happened.
    V1 {
        signal: AsyncFd<OwnedFd>,
        control: PathBuf,
    },
    /// A file that becomes urgent when its content changed.
    V2 {
        events: AsyncFd<fs::File>,
        path: PathBuf,
    },
}

impl MemoryWatch {
    pub fn v1(group: &v1::Group) -> io::Result<Self> {
        let control = group.memory.join("memory.oom_control");
        let signal = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watched = fs::File::open(&control)?;
        fs::write(
            group.memory.join("cgroup.event_control"),
            format!("{} {}", signal.as_raw_fd(), watched.as_raw_fd()),
        )?;
        let kills = keyed(&fs::read_to_string(&control)?, "oom_kill").unwrap_or(0);
        let signal = crate::watched::owned(signal, Interest::READABLE)?;
        Ok(Self {
            source: Source::V1 { signal, control },
            kills,
            high: 0,
        })
    }

    pub fn v2(group: &v2::Group) -> io::Result<Self> {
        let path = group.dir.join("memory.events");
        let text = fs::read_to_string(&path)?;
        let events = crate::watched::file(fs::File::open(&path)?, Interest::PRIORITY)?;
        let count = |key| keyed(&text, key).unwrap_or(0);
        Ok(Self {
            source: Source::V2 { events, path },
            kills: count("oom_kill"),
            high: count("high"),
        })
    }

    pub async fn next(&mut self) -> io::Result<MemoryEvent> {
        loop {
            let event = match &self.source {
                Source::V1 { signal, control } => {
                    let mut ready = signal.readable().await?;
                    let mut count = [0; 8];
                    match rustix::io::read(signal.get_ref(), &mut count) {
                        Ok(_) | Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                        Err(errno) => return Err(errno.into()),
                    }
                    drop(ready);
                    settle(control, &mut self.kills).await?
                }
                Source::V2 { events, path } => {
                    events.ready(Interest::PRIORITY).await?.clear_ready();
                    let text = fs::read_to_string(path)?;
                    let high = keyed(&text, "high").unwrap_or(0);
                    let pressed = high > self.high;
                    self.high = high;
                    memory_event(
                        &mut self.kills,
                        keyed(&text, "oom_kill").unwrap_or(0),
                        pressed,
                    )
                }
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }
}

/// The signal comes when memory runs out, the count rises when the kill is done: look a few times.
async fn settle(control: &Path, kills: &mut u64) -> io::Result<Option<MemoryEvent>> {
    for _ in 0..SETTLE_TRIES {
        // Removal of the group signals too; then the file is gone and this is the end.
        let text = fs::read_to_string(control)?;
        let waiting = keyed(&text, "under_oom") == Some(1);
        let event = memory_event(kills, keyed(&text, "oom_kill").unwrap_or(0), waiting);
        if event.is_some() {
            return Ok(event);
        }
        tokio::time::sleep(SETTLE_PAUSE).await;
    }
    Ok(None)
}
