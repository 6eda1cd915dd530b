//! Keeps sandboxes from filling the host's disk between them.
//!
//! Each has a limit of its own, but together they may be promised more than there is. A host that runs
//! full under a sparse pool turns it read-only for everybody, so this thread watches the room. When the
//! reserve is touched, every sandbox is held near what it uses now: a writer meets "disk full" inside,
//! everybody else works on. When there is room again, the limits of the records are put back. Nothing
//! is written down: an engine that starts puts the records' limits in force first and looks then.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use cove_model::{EventKind, SandboxId, VolumeId};
use cove_pool::{Headroom, PoolError};
use tokio::task::spawn_blocking;

use crate::data_volumes::{VolumeRecord, pool_id};
use crate::engine::Inner;
use crate::reserve;
use crate::sandbox::Sandbox;

/// Faster than sandboxes can fill a disk, in bytes per second: says when to look again.
const FILL_RATE: u64 = 4 << 30;
const LOOK_SOONEST: Duration = Duration::from_millis(10);
const LOOK_LATEST: Duration = Duration::from_secs(2);
/// How often while sandboxes are held.
const LOOK_HELD: Duration = Duration::from_millis(200);
/// Looking may take this part of one CPU's time at most.
const LOOK_SHARE: u32 = 20;
/// What held sandboxes may still write all together is this part of the room that is left.
const SLACK_DIVISOR: u64 = 4;
/// What one of them may still write.
const SLACK_MAX: u64 = 16 << 20;
/// They are let go when this part of the reserve is free beyond it, or the given amount.
const RELEASE_DIVISOR: u64 = 4;
const RELEASE_MAX: u64 = 1 << 30;
/// Deleted data is returned to the host when there is this much of it, and not more often than this while
/// sandboxes are held.
const TRIM_LEAST: u64 = 16 << 20;
const TRIM_PAUSE: Duration = Duration::from_secs(2);
/// How often deleted data is returned while there is room.
const TRIM_EVERY: Duration = Duration::from_secs(15);
/// How often what the pool needs is set aside ahead of use.
const SECURE_EVERY: Duration = Duration::from_secs(1);
/// Writers that take all of the CPU must not keep the guard from its look.
const NICENESS: i32 = -20;

/// The running guard.
#[derive(Default)]
pub struct Guard {
    threads: Mutex<Vec<(Sender<()>, JoinHandle<()>)>>,
    /// The room when sandboxes were last held; `None` while they are not.
    short: Mutex<Option<Headroom>>,
}

impl Guard {
    pub fn start(inner: &Arc<Inner>) {
        // Without limits there is nothing to hold anybody with; the report on the host says so.
        if !inner.disk_limits {
            return;
        }
        Self::spawn(inner, "cove-guard", run);
        Self::spawn(inner, "cove-trim", trim_by_and_by);
    }

    fn spawn(inner: &Arc<Inner>, name: &str, run: fn(&Weak<Inner>, &Receiver<()>)) {
        let (stop, stopped) = channel();
        let (weak, runtime) = (Arc::downgrade(inner), tokio::runtime::Handle::current());
        let begun = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                let _entered = runtime.enter();
                run(&weak, &stopped);
            });
        match begun {
            Ok(thread) => inner.guard.threads.lock().push((stop, thread)),
            Err(error) => tracing::error!(%error, name, "cannot watch the free space of the disk"),
        }
    }

    /// Ends the threads and waits for them; what is held stays held until the next engine looks.
    pub async fn stop(&self) {
        // Taken before the loop, so that the lock is not held while threads are waited for.
        let threads = std::mem::take(&mut *self.threads.lock());
        for (stop, thread) in threads {
            drop(stop);
            let _ = spawn_blocking(move || thread.join()).await;
        }
    }

    pub fn short(&self) -> Option<Headroom> {
        *self.short.lock()
    }
}

fn run(inner: &Weak<Inner>, stopped: &Receiver<()>) {
    // Without the right to, it looks like everybody else.
    let thread = rustix::thread::gettid();
    if let Err(errno) = rustix::process::setpriority_process(Some(thread), NICENESS) {
        tracing::warn!(%errno, "cannot give the disk watcher a higher priority");
    }
    let mut watch = Watch::default();
    loop {
        let Some(inner) = inner.upgrade() else { return };
        let begun = cpu_time();
        let pause = watch.look(&inner);
        drop(inner);
        let looking = cpu_time()
            .saturating_sub(begun)
            .saturating_sub(std::mem::take(&mut watch.trimming));
        let pause = pause.max(looking * LOOK_SHARE);
        if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// Returns deleted data to the host while there is room; while there is none the guard does it itself.
/// A thread of its own, because a trim takes as long as the disk does.
fn trim_by_and_by(inner: &Weak<Inner>, stopped: &Receiver<()>) {
    // What stayed after the last trim cannot be returned, being less than a block of the host here and there.
    let mut stayed = 0;
    while stopped.recv_timeout(TRIM_EVERY) == Err(RecvTimeoutError::Timeout) {
        let Some(inner) = inner.upgrade() else { return };
        if inner.guard.short().is_some() || inner.pool.check_writable().is_err() {
            continue;
        }
        let idle = || inner.pool.headroom().map_or(0, |room| room.idle_bytes);
        if idle() < TRIM_LEAST.saturating_add(stayed) {
            continue;
        }
        if let Err(error) = inner.pool.give_back() {
            let error = crate::error::chain(&error);
            tracing::warn!(error, "cannot return deleted data to the host");
        }
        stayed = idle();
    }
}

/// What this thread has had of the CPU. Time that passes while it waits for a disk must not keep it from
/// looking: that is when there is something to see.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// What the guard remembers from look to look.
#[derive(Default)]
struct Watch {
    /// Sandboxes held, with the limit each was given.
    held: HashMap<SandboxId, u64>,
    /// Volumes held, likewise.
    held_volumes: HashMap<VolumeId, u64>,
    holding: bool,
    trimmed: Option<Instant>,
    secured: Option<Instant>,
    /// The pool was seen to be read-only.
    broken: bool,
    /// Nothing could be kept for the server itself.
    unreserved: bool,
    /// The pool's margin could not be set aside.
    unsecured: bool,
    /// CPU time that giving back took since the last look: it has a pause of its own.
    trimming: Duration,
}

impl Watch {
    /// Looks once and does what is needed; tells when to look again.
    fn look(&mut self, inner: &Inner) -> Duration {
        if let Err(error) = inner.pool.check_writable() {
            if !std::mem::replace(&mut self.broken, true) {
                let hint = error.hint().unwrap_or_default();
                tracing::error!(%error, hint, "sandboxes cannot write");
            }
            return LOOK_LATEST;
        }
        match reserve::keep(&inner.config.data_dir) {
            Ok(()) => self.unreserved = false,
            Err(error) => {
                if !std::mem::replace(&mut self.unreserved, true) {
                    tracing::warn!(%error, "cannot reserve disk space for the server");
                }
            }
        }
        self.secure(inner);
        let mut room = match inner.pool.headroom() {
            Ok(room) => room,
            Err(error) => {
                tracing::warn!(%error, "cannot read the free space of the disk");
                return LOOK_LATEST;
            }
        };
        if !self.holding && room.beyond_reserve >= 0 {
            return look_again(room.beyond_reserve.unsigned_abs());
        }
        if self.holding {
            // Once nobody can write much there is time to find out what the room really is.
            self.hold_all(inner, &room);
            let idle = room.idle_bytes >= TRIM_LEAST;
            if idle && !self.trim(inner) {
                return LOOK_HELD;
            }
            if idle {
                room = inner.pool.headroom().unwrap_or(room);
            }
        }
        let reserve = inner.pool.space().map_or(0, |space| space.reserve);
        let enough = (reserve / RELEASE_DIVISOR).min(RELEASE_MAX);
        if self.holding && room.beyond_reserve >= i64::try_from(enough).unwrap_or(i64::MAX) {
            self.release(inner);
            // Whoever was held writes on this moment.
            return LOOK_SOONEST;
        }
        if !self.holding {
            tracing::warn!(
                ?room,
                "the host's disk is nearly full; sandboxes may not grow"
            );
            self.holding = true;
        }
        *inner.guard.short.lock() = Some(room);
        self.hold_all(inner, &room);
        LOOK_HELD
    }

    fn hold_all(&mut self, inner: &Inner, room: &Headroom) {
        let sandboxes = inner.all();
        self.held
            .retain(|id, _| sandboxes.iter().any(|sandbox| sandbox.id == *id));
        let volumes = inner.data_volumes.writable();
        self.held_volumes
            .retain(|id, _| volumes.iter().any(|volume| volume.id == *id));
        let writers = (sandboxes.len() + volumes.len()) as u64;
        let share = room.bytes / SLACK_DIVISOR / writers.max(1);
        for volume in volumes {
            match self.hold_volume(inner, &volume, share.min(SLACK_MAX)) {
                Ok(()) | Err(PoolError::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(volume = %volume.id, %error, "cannot stop the growth of a volume")
                }
            }
        }
        for sandbox in sandboxes {
            match self.hold(inner, &sandbox, share.min(SLACK_MAX)) {
                Ok(()) | Err(PoolError::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(sandbox = %sandbox.id, %error, "cannot stop the growth of a sandbox's disk")
                }
            }
        }
    }

    /// Holds one sandbox, unless it is held already. Whoever sets a limit in between is undone.
    fn hold(&mut self, inner: &Inner, sandbox: &Sandbox, slack: u64) -> Result<(), PoolError> {
        let volume = sandbox.volume();
        let usage = inner.pool.usage(&volume)?;
        let held = self.held.get(&sandbox.id).copied();
        if held.is_some() && usage.limit_bytes == held {
            return Ok(());
        }
        let limit = usage.referenced_bytes.saturating_add(slack);
        if limit >= sandbox.record().quota_bytes() {
            // So near its own limit that there is nothing to hold.
            self.held.remove(&sandbox.id);
            return Ok(());
        }
        inner.pool.force_limit(&volume, limit)?;
        if self.held.insert(sandbox.id.clone(), limit).is_none() {
            sandbox.emit(EventKind::DiskHeld {
                limit_mb: limit >> 20,
            });
        }
        Ok(())
    }

    fn hold_volume(
        &mut self,
        inner: &Inner,
        volume: &VolumeRecord,
        slack: u64,
    ) -> Result<(), PoolError> {
        let id = pool_id(&volume.id);
        let usage = inner.pool.usage(&id)?;
        let held = self.held_volumes.get(&volume.id).copied();
        if held.is_some() && usage.limit_bytes == held {
            return Ok(());
        }
        let limit = usage.referenced_bytes.saturating_add(slack);
        if limit >= volume.quota_bytes() {
            self.held_volumes.remove(&volume.id);
            return Ok(());
        }
        inner.pool.force_limit(&id, limit)?;
        if self.held_volumes.insert(volume.id.clone(), limit).is_none() {
            tracing::warn!(volume = %volume.id, limit, "stopped the growth of a volume");
        }
        Ok(())
    }

    fn release(&mut self, inner: &Inner) {
        tracing::info!(
            sandboxes = self.held.len(),
            "the host's disk has room again"
        );
        for (id, limit) in std::mem::take(&mut self.held_volumes) {
            let Some(volume) = inner.data_volumes.get(&id) else {
                continue;
            };
            match inner.pool.force_limit(&pool_id(&id), volume.quota_bytes()) {
                Ok(()) | Err(PoolError::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(volume = %id, %error, "cannot restore the size limit of a volume");
                    self.held_volumes.insert(id, limit);
                }
            }
        }
        for (id, limit) in std::mem::take(&mut self.held) {
            let Ok(sandbox) = inner.find(&id) else {
                continue;
            };
            let Ok(_operation) = sandbox.operation.try_lock() else {
                // Its limit may be changing this very moment; the next look finds it settled.
                self.held.insert(id, limit);
                continue;
            };
            match inner.apply_disk_limit(&sandbox) {
                Ok(()) => sandbox.emit(EventKind::DiskReleased),
                Err(PoolError::NotFound { .. }) => {}
                Err(error) => {
                    tracing::warn!(sandbox = %id, %error, "cannot restore the disk limit of a sandbox");
                    self.held.insert(id, limit);
                }
            }
        }
        self.holding = !(self.held.is_empty() && self.held_volumes.is_empty());
        if !self.holding {
            *inner.guard.short.lock() = None;
        }
    }

    /// Outside writers must not be able to take what the pool cannot do without.
    fn secure(&mut self, inner: &Inner) {
        if self
            .secured
            .is_some_and(|secured| secured.elapsed() < SECURE_EVERY)
        {
            return;
        }
        let begun = cpu_time();
        match inner.pool.secure_margin() {
            Ok(()) => self.unsecured = false,
            Err(error) => {
                if !std::mem::replace(&mut self.unsecured, true) {
                    let error = crate::error::chain(&error);
                    tracing::warn!(error, "cannot set disk space aside for the storage pool");
                }
            }
        }
        self.trimming += cpu_time().saturating_sub(begun);
        self.secured = Some(Instant::now());
    }

    /// Returns what sandboxes deleted to the host now instead of after a while. Tells whether it was done.
    fn trim(&mut self, inner: &Inner) -> bool {
        let lately = self
            .trimmed
            .is_some_and(|trimmed| trimmed.elapsed() < TRIM_PAUSE);
        if lately {
            return false;
        }
        let begun = cpu_time();
        if let Err(error) = inner.pool.give_back_all() {
            let error = crate::error::chain(&error);
            tracing::warn!(error, "cannot return deleted data to the host");
        }
        self.trimming += cpu_time().saturating_sub(begun);
        self.trimmed = Some(Instant::now());
        true
    }
}

fn look_again(room: u64) -> Duration {
    Duration::from_micros(room / (FILL_RATE / 1_000_000)).clamp(LOOK_SOONEST, LOOK_LATEST)
}

impl Inner {
    /// Puts the record's disk limit in force, whatever is in force now and whatever is used.
    pub(crate) fn apply_disk_limit(&self, sandbox: &Sandbox) -> Result<(), PoolError> {
        let wanted = sandbox.record().quota_bytes();
        let volume = sandbox.volume();
        if self.pool.usage(&volume)?.limit_bytes == Some(wanted) {
            return Ok(());
        }
        self.pool.force_limit(&volume, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_looks_before_the_room_can_be_gone() {
        assert_eq!(look_again(0), LOOK_SOONEST);
        assert_eq!(look_again(u64::MAX), LOOK_LATEST);
        for room in [64 << 20, 1 << 30, 6 << 30] {
            let filled = look_again(room).as_secs_f64() * FILL_RATE as f64;
            assert!(filled <= room as f64 * 1.01, "{room}: {filled}");
        }
    }
}
