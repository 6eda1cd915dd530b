//! One sandbox in memory: its record, its machine while it runs, its promises.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use cove_isolation::Machine;
use cove_model::lifecycle::{Step, step};
use cove_model::{EventKind, Refusal, SandboxId, State};
use cove_pool::{Kind, VolumeId};
use cove_runner_api::{RunnerError, SandboxView};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::commitments::{DiskPromise, RunPromise};
use crate::error::{from_isolation, from_write, internal};
use crate::events::Events;
use crate::offload;
use crate::record::{Durability, Record, Records};
use crate::visitors::Door;

/// How long a machine may take to end after SIGKILL before the operation gives up on it.
pub const KILL_PATIENCE: Duration = Duration::from_secs(30);

pub struct Sandbox {
    pub id: SandboxId,
    /// One lifecycle operation at a time; the monitor does not take it, since it only reports facts.
    pub operation: tokio::sync::Mutex<()>,
    /// Held while limits of what runs change, by whoever changes them: on request, or by growth.
    pub limits: tokio::sync::Mutex<()>,
    /// Held for moments only: whoever asks for it never waits for a disk.
    record: Mutex<Record>,
    /// Held while a change is made and written, so that changes are written one after the other.
    changing: Mutex<()>,
    machine: RwLock<Option<Arc<dyn Machine>>>,
    /// The metadata endpoint of the machine, where it has one.
    door: Mutex<Option<Door>>,
    /// The task that watches the machine, and clears up after it.
    monitor: Mutex<Option<JoinHandle<()>>>,
    pub run_promise: Mutex<Option<RunPromise>>,
    pub disk_promise: Mutex<Option<DiskPromise>>,
    state: watch::Sender<State>,
    events: Arc<Events>,
    records: Records,
}

impl Sandbox {
    pub fn new(record: Record, events: Arc<Events>, records: Records) -> Self {
        Self {
            id: record.id.clone(),
            operation: tokio::sync::Mutex::default(),
            limits: tokio::sync::Mutex::default(),
            state: watch::Sender::new(record.state),
            record: Mutex::new(record),
            changing: Mutex::default(),
            machine: RwLock::default(),
            door: Mutex::default(),
            monitor: Mutex::default(),
            run_promise: Mutex::default(),
            disk_promise: Mutex::default(),
            events,
            records,
        }
    }

    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    pub fn watch_state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub fn record(&self) -> Record {
        self.lock().clone()
    }

    /// Both of the same moment: what an ended machine used is in one of them, never in both.
    pub fn record_and_machine(&self) -> (Record, Option<Arc<dyn Machine>>) {
        let record = self.lock();
        (record.clone(), self.machine())
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Record> {
        self.record.lock()
    }

    pub fn machine(&self) -> Option<Arc<dyn Machine>> {
        self.machine.read().clone()
    }

    pub fn set_machine(&self, machine: Option<Arc<dyn Machine>>) {
        if machine.is_none() {
            self.door.lock().take();
        }
        *self.machine.write() = machine;
    }

    /// Whether its metadata endpoint is missing.
    pub fn lacks_door(&self) -> bool {
        self.lock().spec.identity.is_some() && self.door.lock().is_none()
    }

    pub async fn close_door(&self) {
        let door = self.door.lock().take();
        if let Some(door) = door {
            door.close().await;
        }
    }

    /// Until the machine ends.
    pub fn set_door(&self, door: Option<Door>) {
        *self.door.lock() = door;
    }

    pub fn set_monitor(&self, monitor: JoinHandle<()>) {
        *self.monitor.lock() = Some(monitor);
    }

    /// Stops reporting what becomes of its processes: from here on that is the next engine's to write down.
    pub async fn stop_watching(&self) {
        let monitor = self.monitor.lock().take();
        if let Some(monitor) = monitor {
            monitor.abort();
            let _ = monitor.await;
        }
    }

    /// Ends what runs and waits until nothing of it is left, its last words in the record included.
    pub async fn end_machine(&self) -> Result<(), RunnerError> {
        if let Some(machine) = self.machine() {
            machine.kill().await.map_err(from_isolation)?;
        }
        let monitor = self.monitor.lock().take();
        let Some(mut monitor) = monitor else {
            return Ok(());
        };
        match tokio::time::timeout(KILL_PATIENCE, &mut monitor).await {
            Ok(_) => Ok(()),
            Err(_) => {
                self.set_monitor(monitor);
                Err(internal(
                    "the sandbox's processes did not end after SIGKILL",
                ))
            }
        }
    }

    pub fn volume(&self) -> VolumeId {
        volume_of(&self.id)
    }

    /// Whether a step is allowed now, without taking it.
    pub fn check(&self, wanted: Step) -> Result<State, Refusal> {
        step(self.state(), wanted)
    }

    /// Takes a step of the lifecycle: on disk, in memory, and as an event. `change` adds what goes
    /// with it to the record. What cannot be written does not happen, unless it has happened already.
    pub fn advance(
        &self,
        wanted: Step,
        reason: Option<String>,
        durability: Durability,
        change: impl FnOnce(&mut Record),
    ) -> Result<State, RunnerError> {
        offload::blocking(|| self.step(wanted, reason, durability, change))
    }

    fn step(
        &self,
        wanted: Step,
        reason: Option<String>,
        durability: Durability,
        change: impl FnOnce(&mut Record),
    ) -> Result<State, RunnerError> {
        let _turn = self.turn();
        let mut changed = self.record();
        let before = changed.state;
        let next = step(before, wanted)?;
        changed.state = next;
        changed.reason.clone_from(&reason);
        change(&mut changed);
        if is_kept(before)
            && next != State::Gone
            && let Err(error) = self.records.write(&changed, durability)
        {
            if !is_fact(wanted) {
                return Err(from_write("the sandbox's record", &error));
            }
            tracing::error!(sandbox = %self.id, %error, "cannot record an event of a sandbox");
        }
        let mut record = self.lock();
        // Told after it is written, so that whoever hears of it finds it on disk; and under the record's
        // lock, so that events are in the order of the states.
        if next != before || wanted == Step::Booted {
            let kind = EventKind::State {
                state: next,
                reason,
            };
            let started = changed.started_at.filter(|_| wanted == Step::Booted);
            self.events.emit_at(&self.id, kind, started);
        }
        if wanted == Step::Exited {
            // While the record is locked: a sample that found both would count the same use twice.
            self.set_machine(None);
        }
        *record = changed;
        drop(record);
        self.state.send_replace(next);
        Ok(next)
    }

    /// Changes the record without moving the lifecycle.
    pub fn update(
        &self,
        durability: Durability,
        change: impl FnOnce(&mut Record),
    ) -> Result<(), RunnerError> {
        offload::blocking(|| {
            let _turn = self.turn();
            let mut changed = self.record();
            change(&mut changed);
            if is_kept(changed.state) {
                self.records
                    .write(&changed, durability)
                    .map_err(|error| from_write("the sandbox's record", &error))?;
            }
            *self.lock() = changed;
            Ok(())
        })
    }

    fn turn(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// Tells how it is to readers who may have missed it.
    pub fn restate(&self) {
        let record = self.lock();
        let kind = EventKind::State {
            state: record.state,
            reason: record.reason.clone(),
        };
        self.events.restate(&self.id, kind, record.started_at);
    }

    pub fn emit(&self, kind: EventKind) {
        self.events.emit(&self.id, kind);
    }

    pub fn view(&self) -> SandboxView {
        let record = self.lock();
        let mut limits = record.limits.clone();
        limits.memory_mb = record.grown_mb.unwrap_or(limits.memory_mb);
        SandboxView {
            id: record.id.clone(),
            state: record.state,
            reason: record.reason.clone(),
            spec: record.spec.clone(),
            limits,
            image: record.image.clone(),
            image_env: record.image_env.clone(),
            image_user: record.image_user.clone(),
            image_workdir: record.image_workdir.clone(),
            created_at: record.created_at,
            started_at: record.started_at,
            placeholders: record.placeholders.clone(),
            set_aside: false,
        }
    }
}

/// A delete removes the record while the monitor may still have something to say; written then, the
/// record would be there again.
fn is_kept(state: State) -> bool {
    !matches!(state, State::Deleting | State::Gone)
}

/// Steps that tell what has come about, whether it can be written down or not.
fn is_fact(step: Step) -> bool {
    matches!(
        step,
        Step::Exited | Step::BootFailed | Step::CaptureFailed | Step::Deleted
    )
}

pub fn volume_of(id: &SandboxId) -> VolumeId {
    VolumeId::new(Kind::Sandbox, id.as_str())
        .expect("ids are made of letters a volume name may have")
}
