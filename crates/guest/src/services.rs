//! Services: commands that are kept on the sandbox's disk, started whenever the sandbox is started, and started again
//! when they end.
//!
//! A service has one process for all its runs, with one id and one pair of streams, so its output is followed and kept
//! as that of any command. What the host says that commands get stays in memory: it may hold secrets.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cove_limits::{SERVICE_PAUSE_MAX_MS, SERVICE_PAUSE_MIN_MS, SERVICE_STEADY_MS};
use cove_protocol::identity::{Identity, owner};
use cove_protocol::message::{
    self, Environment, Exit, ProcessKind, Restart, ServiceState, ServiceStatus, Start,
};
use tokio::sync::{Mutex, Notify};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::failure::Result;
use crate::process::start::{launch_again, launch_service};
use crate::process::{Process, list};
use crate::state::State;

pub mod calls;
mod file;

const PAUSE_MIN: Duration = Duration::from_millis(SERVICE_PAUSE_MIN_MS);
const PAUSE_MAX: Duration = Duration::from_millis(SERVICE_PAUSE_MAX_MS);
const STEADY: Duration = Duration::from_millis(SERVICE_STEADY_MS);

#[derive(Default)]
pub struct Services {
    /// By name, in the order in which they are started.
    all: RefCell<BTreeMap<String, Rc<Service>>>,
    /// What commands get; absent until the host has said so.
    environment: RefCell<Option<Environment>>,
    /// Held while one is added or removed.
    change: Mutex<()>,
}

pub struct Service {
    spec: message::Service,
    /// Of its process.
    id: String,
    process: RefCell<Option<Rc<Process>>>,
    state: Cell<ServiceState>,
    restarts: Cell<u64>,
    /// Why it could not be started the last time.
    error: RefCell<String>,
    removed: Cell<bool>,
    /// It was removed, or the sandbox is being stopped.
    ending: Notify,
}

/// Takes over what is on the disk. Nothing is started before the host says what commands get.
pub fn read(state: &State) {
    let Some(directory) = &state.kept else {
        return;
    };
    let mut all = state.services.all.borrow_mut();
    for (spec, id) in file::read(directory) {
        all.insert(spec.name.clone(), Rc::new(Service::new(spec, id)));
    }
}

impl Services {
    /// From now on commands get this. Starts what was not started yet.
    fn begin(&self, state: &Rc<State>, environment: Environment) {
        *self.environment.borrow_mut() = Some(environment);
        let all: Vec<_> = self.all.borrow().values().cloned().collect();
        for service in all {
            if service.state.get() == ServiceState::Pending {
                let runs = service.run(state).is_ok();
                spawn_local(supervise(Rc::clone(state), service, runs));
            }
        }
    }

    fn statuses(&self) -> Vec<ServiceStatus> {
        let all = self.all.borrow();
        all.values().map(|service| service.status()).collect()
    }

    /// The sandbox is being stopped: none is started any more.
    pub fn close(&self) {
        for service in self.all.borrow().values() {
            service.ending.notify_waiters();
        }
    }
}

impl Service {
    fn new(spec: message::Service, id: String) -> Self {
        Self {
            spec,
            id,
            process: RefCell::default(),
            state: Cell::new(ServiceState::Pending),
            restarts: Cell::new(0),
            error: RefCell::default(),
            removed: Cell::new(false),
            ending: Notify::new(),
        }
    }

    fn start(&self, state: &State) -> Start {
        let environment = state.services.environment.borrow();
        let given = environment.clone().unwrap_or_default();
        let or = |own: &String, default: String| match own.is_empty() {
            true => default,
            false => own.clone(),
        };
        let mut start = Start {
            id: self.id.clone(),
            argv: self.spec.argv.clone(),
            shell: self.spec.shell.clone(),
            make_cwd: self.spec.cwd.is_empty(),
            cwd: or(&self.spec.cwd, given.cwd),
            // Of two values the last counts.
            env: [given.env, self.spec.env.clone()].concat(),
            user: or(&self.spec.user, given.user),
            ..Start::default()
        };
        let identity = Identity {
            kind: ProcessKind::Service,
            owner: owner::named(owner::SERVICE, &self.spec.name),
            tag: String::new(),
        };
        identity.put_into(&mut start);
        start
    }

    fn run(&self, state: &Rc<State>) -> Result<()> {
        let start = self.start(state);
        let process = self.process.borrow().clone();
        let launched = match &process {
            Some(process) => launch_again(state, process, &start),
            None => self.run_first(state, start),
        };
        match &launched {
            Ok(()) => {
                self.state.set(ServiceState::Running);
                self.error.borrow_mut().clear();
            }
            Err(failure) => {
                self.state.set(ServiceState::Waiting);
                self.error.borrow_mut().clone_from(&failure.message);
            }
        }
        launched
    }

    fn run_first(&self, state: &Rc<State>, start: Start) -> Result<()> {
        let is_its_own = |process: &Process| process.owner == start.owner;
        let earlier = state.table.take_finished(&self.id, is_its_own);
        let launched = launch_service(state, start.clone(), earlier.as_deref());
        match launched {
            Ok(process) => {
                *self.process.borrow_mut() = Some(process);
                Ok(())
            }
            Err(failure) => {
                // Its output stays readable.
                if let Some(earlier) = earlier {
                    state.table.adopt_finished(earlier);
                }
                Err(failure)
            }
        }
    }

    fn must_end(&self, state: &State) -> bool {
        self.removed.get() || state.stopping.get()
    }

    /// How the present run ended, once it has.
    async fn over(&self) -> Option<Exit> {
        let process = self.process.borrow().clone()?;
        loop {
            let changed = process.changed.notified();
            if let Some(exit) = self.last_exit() {
                return Some(exit);
            }
            changed.await;
        }
    }

    fn last_exit(&self) -> Option<Exit> {
        let process = self.process.borrow();
        let streams = process.as_ref()?.streams.borrow();
        streams.last
    }

    fn starts_again(&self, exit: Option<Exit>) -> bool {
        match self.spec.restart() {
            Restart::No => false,
            Restart::OnFailure => exit.is_none_or(|exit| exit.code != 0),
            Restart::Always => true,
        }
    }

    /// What outlived a run must not stand in the way of the next.
    fn kill_leftovers(&self) {
        if let Some(process) = &*self.process.borrow() {
            process.signal_group(libc::SIGKILL);
            // From here on the group's number may be that of another.
            process.streams.borrow_mut().survivors = false;
        }
    }

    /// False when it has to end instead.
    async fn pause(&self, state: &State, pause: Duration) -> bool {
        let ending = self.ending.notified();
        if self.must_end(state) {
            return false;
        }
        tokio::select! {
            () = ending => {}
            () = sleep(pause) => {}
        }
        !self.must_end(state)
    }

    /// Its process has ended, as that of any command.
    fn finish(&self, state: &State) {
        self.state.set(ServiceState::Ended);
        let Some(process) = &*self.process.borrow() else {
            return;
        };
        process.supervised.set(false);
        {
            let mut streams = process.streams.borrow_mut();
            let mut exit = streams.last.unwrap_or_default();
            exit.stdout_bytes = streams.rings[0].end();
            exit.stderr_bytes = streams.rings[1].end();
            streams.exit = Some(exit);
        }
        state.table.finish(&process.id);
        process.changed.notify_waiters();
    }

    fn status(&self) -> ServiceStatus {
        ServiceStatus {
            service: Some(message::Service {
                argv: list::cut(&self.spec.argv),
                shell: list::cut(std::slice::from_ref(&self.spec.shell)).concat(),
                // It may be long, and hold what is not for everybody who may look.
                env: Vec::new(),
                ..self.spec.clone()
            }),
            process: self.id.clone(),
            state: self.state.get() as i32,
            restarts: self.restarts.get(),
            last_exit: self.last_exit(),
            error: self.error.borrow().clone(),
        }
    }
}

/// Starts a service again as its policy says, until it ends for good. `runs`: its first start succeeded.
async fn supervise(state: Rc<State>, service: Rc<Service>, mut runs: bool) {
    let mut pause = PAUSE_MIN;
    let mut began = Instant::now();
    loop {
        let exit = match runs {
            true => service.over().await,
            false => None,
        };
        if service.must_end(&state) || !service.starts_again(exit) {
            break;
        }
        service.kill_leftovers();
        service.state.set(ServiceState::Waiting);
        if began.elapsed() >= STEADY {
            pause = PAUSE_MIN;
        }
        if !service.pause(&state, pause).await {
            break;
        }
        pause = (pause * 2).min(PAUSE_MAX);
        // A capture wants processes as they are.
        state.quiet.over().await;
        if service.must_end(&state) {
            break;
        }
        began = Instant::now();
        runs = service.run(&state).is_ok();
        if runs {
            service.restarts.set(service.restarts.get() + 1);
        }
    }
    service.finish(&state);
}
