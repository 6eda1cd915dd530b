//! All processes the guest knows, running and finished, and the memory their rings may take.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use super::Process;
use cove_limits::PROCESSES_FINISHED_MAX;

/// Bytes of all rings together. A small sandbox allows less: see [`Table::limit_memory`].
const RINGS_MAX: usize = 64 * 1024 * 1024;
/// The rings take at most this part of the sandbox's memory.
const MEMORY_SHARE: u64 = 8;
/// What the rings may take however small the sandbox is.
const RINGS_MIN: usize = 1024 * 1024;
/// Bytes read from a pipe at once: what a pipe holds.
pub const READ_CHUNK: usize = 64 * 1024;

pub struct Table {
    by_id: RefCell<BTreeMap<String, Rc<Process>>>,
    running: RefCell<HashMap<i32, Rc<Process>>>,
    /// Ids, oldest end first.
    finished: RefCell<VecDeque<String>>,
    ring_bytes: Cell<usize>,
    ring_bytes_max: Cell<usize>,
    scratch: RefCell<Vec<u8>>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            by_id: RefCell::default(),
            running: RefCell::default(),
            finished: RefCell::default(),
            ring_bytes: Cell::new(0),
            ring_bytes_max: Cell::new(RINGS_MAX),
            scratch: RefCell::default(),
        }
    }
}

impl Table {
    pub fn get(&self, id: &str) -> Option<Rc<Process>> {
        self.by_id.borrow().get(id).cloned()
    }

    pub fn all(&self) -> Vec<Rc<Process>> {
        self.by_id.borrow().values().cloned().collect()
    }

    /// Followers that a capture sent away belong to another sandbox now.
    pub fn let_go_of_followers(&self) {
        for process in self.all() {
            if process.interrupted.take().is_some() {
                super::follow::leave_foreground(&process);
            }
        }
    }

    pub fn running(&self) -> Vec<Rc<Process>> {
        self.running.borrow().values().cloned().collect()
    }

    pub fn running_count(&self) -> usize {
        self.running.borrow().len()
    }

    pub fn insert(&self, process: Rc<Process>) {
        self.running
            .borrow_mut()
            .insert(process.pid(), Rc::clone(&process));
        self.by_id.borrow_mut().insert(process.id.clone(), process);
    }

    /// Takes a command whose leader was reaped out of the running ones.
    pub fn ended(&self, pid: i32) -> Option<Rc<Process>> {
        let process = self.running.borrow_mut().remove(&pid)?;
        if !process.supervised.get() {
            self.finish(&process.id);
        }
        if self.running.borrow().is_empty() {
            *self.scratch.borrow_mut() = Vec::new();
        }
        Some(process)
    }

    /// One that will not run again.
    pub fn finish(&self, id: &str) {
        self.finished.borrow_mut().push_back(id.to_owned());
        while self.finished.borrow().len() > PROCESSES_FINISHED_MAX && self.forget_oldest() {}
    }

    /// Takes out one that has finished, with its output, so that it can run again.
    pub fn take_finished(
        &self,
        id: &str,
        is_meant: impl FnOnce(&Process) -> bool,
    ) -> Option<Rc<Process>> {
        self.get(id)
            .filter(|process| process.exit().is_some() && is_meant(process))?;
        self.finished.borrow_mut().retain(|finished| finished != id);
        self.by_id.borrow_mut().remove(id)
    }

    /// One that ended in an earlier life of the sandbox; false when the id is taken.
    pub fn adopt_finished(&self, process: Rc<Process>) -> bool {
        let id = process.id.clone();
        if self.get(&id).is_some() {
            return false;
        }
        self.by_id.borrow_mut().insert(id.clone(), process);
        self.finished.borrow_mut().push_back(id);
        true
    }

    pub fn finished_newest_first(&self) -> Vec<Rc<Process>> {
        let finished = self.finished.borrow();
        let newest_first = finished.iter().rev();
        newest_first.filter_map(|id| self.get(id)).collect()
    }

    /// False when there is none that may be forgotten.
    fn forget_oldest(&self) -> bool {
        let oldest = self.finished.borrow().iter().position(|id| {
            let process = self.get(id);
            process.is_none_or(|process| process.streams.borrow().may_be_forgotten())
        });
        let id = oldest.and_then(|oldest| self.finished.borrow_mut().remove(oldest));
        let Some(id) = id else {
            return false;
        };
        if let Some(process) = self.by_id.borrow_mut().remove(&id) {
            let mut streams = process.streams.borrow_mut();
            for ring in &mut streams.rings {
                self.ring_bytes
                    .set(self.ring_bytes.get() - ring.allocated());
                ring.discard();
            }
        }
        true
    }

    /// Keeps the rings from being what a small sandbox runs out of memory by.
    pub fn limit_memory(&self, sandbox_bytes: u64) {
        let share = usize::try_from(sandbox_bytes / MEMORY_SHARE).unwrap_or(usize::MAX);
        self.ring_bytes_max.set(share.clamp(RINGS_MIN, RINGS_MAX));
    }

    /// How much may be read into a ring now: everything, unless the foreground follower would
    /// lose by it.
    pub fn room(&self, process: &Process, channel: usize) -> usize {
        let streams = process.streams.borrow();
        let Some(taken) = streams.foreground else {
            return READ_CHUNK;
        };
        let ring = &streams.rings[channel];
        let waiting = usize::try_from(ring.end() - taken[channel]).unwrap_or(usize::MAX);
        let room = ring.limit().saturating_sub(waiting).min(READ_CHUNK);
        let growth = ring.growth_for(room);
        drop(streams);
        if room == 0 || self.make_fit(growth) {
            return room;
        }
        let ring = &process.streams.borrow().rings[channel];
        let capacity = ring.allocated().max(ring.growth_for(1));
        capacity.saturating_sub(waiting).min(room)
    }

    /// Puts output into a ring, which drops its oldest instead of growing where memory is short. `came_ms`: when it came, if
    /// that was now.
    pub fn keep(&self, process: &Process, channel: usize, data: &[u8], came_ms: Option<i64>) {
        let growth = process.streams.borrow().rings[channel].growth_for(data.len());
        let fits = self.make_fit(growth);
        let mut streams = process.streams.borrow_mut();
        let ring = &mut streams.rings[channel];
        // A ring always gets its first page: their number is bounded.
        let growth = match (fits, ring.allocated()) {
            (true, _) => ring.growth_for(data.len()),
            (false, 0) => ring.growth_for(1),
            (false, _) => 0,
        };
        if growth > 0 {
            ring.grow(growth);
            self.ring_bytes.set(self.ring_bytes.get() + growth);
        }
        if let Some(came_ms) = came_ms {
            ring.mark(came_ms);
        }
        ring.push(data);
    }

    /// Forgets finished commands, oldest first, until the rings may grow that much.
    fn make_fit(&self, growth: usize) -> bool {
        loop {
            if self.ring_bytes.get() + growth <= self.ring_bytes_max.get() {
                return true;
            }
            if growth == 0 || !self.forget_oldest() {
                return growth == 0;
            }
        }
    }

    /// Lends the buffer that pipes are read into.
    pub fn with_scratch<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut scratch = self.scratch.borrow_mut();
        if scratch.is_empty() {
            *scratch = vec![0; READ_CHUNK];
        }
        work(&mut scratch)
    }
}
