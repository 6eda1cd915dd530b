//! Keeps the OOM scores of sandboxes above those of the host (`cove-spawner`, `oom.rs`).
//!
//! Where the minimum is pinned there is nothing to watch. Elsewhere a thread looks at the processes of
//! those sandboxes that ran since its last look: what used no CPU time lowered no score, so a host full
//! of idle sandboxes costs one read for each of them, and one in all when none ran.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cove_spawner::oom::{self, FIRST};

use crate::cgroup::{Cgroups, Group};

/// Two looks a second: a lowered score is seen within one, also when a look is late.
pub const LOOK_EVERY: Duration = Duration::from_millis(400);
/// Processes of one sandbox that one look reads; the next goes on after them.
const PROCESSES_PER_LOOK: usize = 2048;
/// Processes that fork while their scores are set are met in another round.
const ROUNDS: u32 = 3;

/// Sets the score of every process of a group as it is at a cold start: that of PID 1 fixed, no other
/// below it, minimums pinned where that is possible. What a process raised by itself stays raised.
pub fn settle(group: &Group, first: i32) -> io::Result<()> {
    let pins = oom::can_pin();
    let mut settled = HashSet::new();
    for _ in 0..ROUNDS {
        let processes = group.processes();
        let new: Vec<i32> = processes
            .into_iter()
            .filter(|pid| settled.insert(*pid))
            .collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            match settle_one(pid, pid == first, pins) {
                // It ended meanwhile.
                Err(error) if is_gone(&error) => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// Gives a process of a sandbox the least score that one may have.
pub fn lower(pid: i32) -> io::Result<()> {
    match oom::set(pid, FIRST) {
        // It ended meanwhile.
        Err(error) if is_gone(&error) => Ok(()),
        other => other,
    }
}

fn settle_one(pid: i32, is_first: bool, pins: bool) -> io::Result<()> {
    let now = oom::get(pid)?;
    let wanted = if is_first { FIRST } else { now.max(FIRST) };
    if pins {
        oom::set(pid, FIRST)?;
    }
    match wanted > oom::get(pid)? {
        true => oom::raise(pid, wanted),
        false => Ok(()),
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Finds scores that were lowered, and raises them.
pub struct Watch {
    cgroups: Arc<Cgroups>,
    /// CPU time of all sandboxes at the last look, and of each.
    total: Option<u64>,
    seen: HashMap<String, Seen>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    cpu: u64,
    /// Where the next look at its processes begins.
    from: usize,
    told: bool,
}

impl Watch {
    pub fn new(cgroups: Arc<Cgroups>) -> Self {
        Self {
            cgroups,
            total: None,
            seen: HashMap::new(),
        }
    }

    /// Returns how many scores it raised.
    pub fn look(&mut self) -> io::Result<usize> {
        let total = self.cgroups.cpu_used().ok();
        if total.is_some() && total == self.total {
            return Ok(0);
        }
        let mut raised = 0;
        let mut seen = HashMap::with_capacity(self.seen.len());
        let mut unfinished = false;
        for name in self.cgroups.names()? {
            let group = self.cgroups.existing(&name);
            // Read before its processes are: what runs meanwhile is looked at the next time.
            let Ok(cpu) = group.cpu_used() else { continue };
            let before = self.seen.get(&name).copied();
            let mut now = before.unwrap_or_default();
            if before.is_none_or(|before| before.cpu != cpu || before.from != 0) {
                let found = raise_lowered(&group, &mut now.from);
                if found > 0 && !now.told {
                    tracing::info!(group = %name, processes = found, "processes of a sandbox had OOM scores below the minimum; raised, and raised silently from now on");
                    now.told = true;
                }
                raised += found;
                now.cpu = cpu;
                unfinished |= now.from != 0;
            }
            seen.insert(name, now);
        }
        self.seen = seen;
        self.total = total.filter(|_| !unfinished);
        Ok(raised)
    }
}

fn raise_lowered(group: &Group, from: &mut usize) -> usize {
    let processes = group.processes();
    let begin = if *from < processes.len() { *from } else { 0 };
    let end = (begin + PROCESSES_PER_LOOK).min(processes.len());
    *from = if end < processes.len() { end } else { 0 };
    let lowered = processes[begin..end]
        .iter()
        .filter(|pid| oom::get(**pid).is_ok_and(|score| score < FIRST));
    lowered.filter(|pid| oom::set(**pid, FIRST).is_ok()).count()
}

/// What decides whether sandboxes end before the host's own processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OomOrder {
    /// Guests cannot lower a score below the minimum.
    pub pinned: bool,
    /// The score of this process.
    pub own: i32,
    /// The least of any process in a sandbox.
    pub sandboxes: i32,
}

impl OomOrder {
    pub fn of_this_host() -> Self {
        let own = fs::read_to_string("/proc/self/oom_score_adj");
        Self {
            pinned: oom::can_pin(),
            own: own
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(0),
            sandboxes: FIRST,
        }
    }
}
