//! Waiting for what the kernel says about a group's memory.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use cove_isolation::MemoryEvent;
use rustix::event::EventfdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::{MemoryLimit, keyed, memory_event, v1, v2};

const SETTLE_TRIES: u32 = 10;
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// How often a group is looked at while its use is beyond its mark: what is in the way may be cache,
/// and the kernel says nothing when more of it becomes memory that is needed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct MemoryWatch {
    source: Source,
    kills: u64,
}

#[derive(Debug)]
enum Source {
    V1(Split),
    V2(Unified),
}

/// Version 1: an eventfd the kernel writes to when memory ran out or use crossed the mark. Neither
/// says which, so the group is looked at.
#[derive(Debug)]
struct Split {
    group: v1::Group,
    signal: AsyncFd<OwnedFd>,
    mark: watch::Receiver<u64>,
}

/// Version 2: a file that becomes urgent when its content changed, as it does when memory ran out or
/// had to be taken back; what had to be taken back may have been cache, so the group is looked at.
#[derive(Debug)]
struct Unified {
    group: v2::Group,
    events: AsyncFd<fs::File>,
    path: PathBuf,
    mark: watch::Receiver<u64>,
}

impl MemoryWatch {
    pub fn v1(group: &v1::Group, mut mark: watch::Receiver<u64>) -> io::Result<Self> {
        let kills = Split::kills(group)?;
        let signal = Split::signal(group, *mark.borrow_and_update())?;
        Ok(Self {
            source: Source::V1(Split {
                group: group.clone(),
                signal,
                mark,
            }),
            kills,
        })
    }

    pub fn v2(group: &v2::Group, mark: watch::Receiver<u64>) -> io::Result<Self> {
        let path = group.dir.join("memory.events");
        let text = fs::read_to_string(&path)?;
        let events = crate::watched::file(fs::File::open(&path)?, Interest::PRIORITY)?;
        Ok(Self {
            source: Source::V2(Unified {
                group: group.clone(),
                events,
                path,
                mark,
            }),
            kills: keyed(&text, "oom_kill").unwrap_or(0),
        })
    }

    pub async fn next(&mut self) -> io::Result<MemoryEvent> {
        loop {
            let event = match &mut self.source {
                Source::V1(split) => split.next(&mut self.kills).await?,
                Source::V2(unified) => unified.next(&mut self.kills).await?,
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }
}

impl Unified {
    /// Waits for a reason to look, and looks.
    async fn next(&mut self, kills: &mut u64) -> io::Result<Option<MemoryEvent>> {
        let mark = *self.mark.borrow_and_update();
        let beyond = mark != MemoryLimit::NO_MARK && self.group.usage()?.memory_bytes >= mark;
        tokio::select! {
            ready = self.events.ready(Interest::PRIORITY) => ready?.clear_ready(),
            changed = self.mark.changed() => changed.map_err(io::Error::other)?,
            () = tokio::time::sleep(LOOK_AGAIN), if beyond => {}
        }
        let mark = *self.mark.borrow();
        let usage = self.group.usage()?;
        let needed = usage
            .memory_bytes
            .saturating_sub(usage.memory_reclaimable_bytes);
        let pressed = mark != MemoryLimit::NO_MARK && needed >= mark;
        let text = fs::read_to_string(&self.path)?;
        let count = keyed(&text, "oom_kill").unwrap_or(0);
        Ok(memory_event(kills, count, pressed))
    }
}

impl Split {
    /// Asks the kernel to signal both. The registrations go with the descriptor.
    fn signal(group: &v1::Group, mark: u64) -> io::Result<AsyncFd<OwnedFd>> {
        let signal = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let register = |file: &str, more: &str| {
            let watched = fs::File::open(group.memory.join(file))?;
            fs::write(
                group.memory.join("cgroup.event_control"),
                format!("{} {}{more}", signal.as_raw_fd(), watched.as_raw_fd()),
            )
        };
        register("memory.oom_control", "")?;
        if mark != MemoryLimit::NO_MARK {
            register("memory.usage_in_bytes", &format!(" {mark}"))?;
        }
        crate::watched::owned(signal, Interest::READABLE)
    }

    fn kills(group: &v1::Group) -> io::Result<u64> {
        let control = fs::read_to_string(group.memory.join("memory.oom_control"))?;
        Ok(keyed(&control, "oom_kill").unwrap_or(0))
    }

    /// Waits for a reason to look, and looks.
    async fn next(&mut self, kills: &mut u64) -> io::Result<Option<MemoryEvent>> {
        // Looked at, not taken as seen: a mark that moved since has to be registered below.
        let mark = *self.mark.borrow();
        // Removal of the group signals too; then its files are gone and this is the end.
        let beyond = mark != MemoryLimit::NO_MARK && self.group.memory_use()?.all >= mark;
        let signalled = tokio::select! {
            ready = self.signal.readable() => {
                let mut ready = ready?;
                let mut count = [0; 8];
                match rustix::io::read(self.signal.get_ref(), &mut count) {
                    Ok(_) | Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                    Err(errno) => return Err(errno.into()),
                }
                true
            }
            changed = self.mark.changed() => {
                changed.map_err(io::Error::other)?;
                let mark = *self.mark.borrow_and_update();
                self.signal = Self::signal(&self.group, mark)?;
                false
            }
            () = tokio::time::sleep(LOOK_AGAIN), if beyond => false,
        };
        // The signal comes when memory runs out, the count rises when the kill is done.
        for _ in 0..if signalled { SETTLE_TRIES } else { 1 } {
            let mark = *self.mark.borrow();
            let pressed = mark != MemoryLimit::NO_MARK && self.group.memory_use()?.needed() >= mark;
            let event = memory_event(kills, Self::kills(&self.group)?, pressed);
            if event.is_some() {
                return Ok(event);
            }
            if signalled {
                tokio::time::sleep(SETTLE_PAUSE).await;
            }
        }
        Ok(None)
    }
}
