//! Letting go of the host for a capture: a connection that leads out of the sandbox cannot be captured
//! with it.
//!
//! Asked by a call, the guest stops accepting, ends the streams (their callers come back by process
//! id and offset), lets short calls finish and waits for long ones up to the given time. Then it
//! answers, hangs up, and is quiet: who connects meanwhile waits in the socket's queue. The signal
//! [`WAKE`] from the host ends that, in the original as in every copy; if none comes, time does.
//!
//! In a virtual machine, programs stand still before the answer ([`crate::standstill`]), and a call ends the quiet.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use cove_protocol::message::{ErrorCode, Quiesce};
use rustix::event::EventfdFlags;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::call::{Call, Ended};
use crate::failure::Failure;
use crate::shutdown;
use crate::state::State;
use crate::watched::Watched;

pub mod identity;

/// Ends the quiet.
pub const WAKE: libc::c_int = libc::SIGUSR1;
/// How long the guest stays quiet when nobody wakes it: the host died in between.
const QUIET_LIMIT: Duration = Duration::from_secs(120);
/// Longest time a caller may ask open calls to be waited for.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Calls named in a refusal.
const NAMED_MAX: usize = 5;
/// How long followers of a captured process may take to come back before it goes on without them.
pub const RETURN_GRACE: Duration = Duration::from_secs(60);

/// Whether the guest is quiet, and everybody who has to know.
pub struct Quiet {
    on: Cell<bool>,
    changed: Notify,
    /// Readable while quiet, for threads.
    signal: Option<OwnedFd>,
    /// Calls from outside that are open, by what they do.
    open: RefCell<BTreeMap<u64, String>>,
    next: Cell<u64>,
    closed: Notify,
}

impl Default for Quiet {
    fn default() -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Self {
            on: Cell::new(false),
            changed: Notify::new(),
            // Without it watches go on until their callers leave, and a capture says so.
            signal: rustix::event::eventfd(0, flags).ok(),
            open: RefCell::default(),
            next: Cell::new(0),
            closed: Notify::new(),
        }
    }
}

impl Quiet {
    pub fn is_on(&self) -> bool {
        self.on.get()
    }

    /// Returns while quiet, at once or when it begins.
    pub async fn begun(&self) {
        self.becomes(true).await;
    }

    pub async fn over(&self) {
        self.becomes(false).await;
    }

    async fn becomes(&self, wanted: bool) {
        loop {
            let changed = self.changed.notified();
            if self.on.get() == wanted {
                return;
            }
            changed.await;
        }
    }

    pub fn signal(&self) -> Option<OwnedFd> {
        self.signal.as_ref()?.try_clone().ok()
    }

    fn set(&self, on: bool) {
        if self.on.replace(on) == on {
            return;
        }
        if let Some(signal) = &self.signal {
            // Both calls cannot block, and the counter goes between 0 and 1 only.
            let _ = match on {
                true => rustix::io::write(signal, &1_u64.to_ne_bytes()),
                false => rustix::io::read(signal, &mut [0; 8]),
            };
        }
        self.changed.notify_waiters();
    }
}

/// A call from outside while it is open.
pub struct OpenCall {
    state: Rc<State>,
    number: u64,
}

impl OpenCall {
    pub fn new(state: &Rc<State>) -> Self {
        let quiet = &state.quiet;
        let number = quiet.next.get();
        quiet.next.set(number + 1);
        quiet.open.borrow_mut().insert(number, "a call".into());
        Self {
            state: Rc::clone(state),
            number,
        }
    }

    pub fn named(&self, what: String) {
        self.state.quiet.open.borrow_mut().insert(self.number, what);
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.state.quiet.open.borrow_mut().remove(&self.number);
        self.state.quiet.closed.notify_waiters();
    }
}

/// Falls back to normal unless the quiet was reached.
struct Attempt<'a> {
    state: &'a State,
    reached: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.reached {
            go_on(self.state);
        }
    }
}

/// Ends the quiet, and lets programs go on that stand still for it.
pub fn go_on(state: &State) {
    if let Some(standstill) = &state.standstill {
        standstill.end();
    }
    state.quiet.set(false);
}

pub async fn serve(state: &Rc<State>, call: &mut Call, request: Quiesce) -> Result<(), Ended> {
    let quiet = &state.quiet;
    if quiet.is_on() {
        return Err(Failure::new(ErrorCode::AlreadyExists, "the guest is quiet already").into());
    }
    let mut attempt = Attempt {
        state,
        reached: false,
    };
    quiet.set(true);
    let wait = Duration::from_millis(request.wait_ms).min(WAIT_MAX);
    if timeout(wait, alone(quiet)).await.is_err() {
        return Err(Failure::new(ErrorCode::Limit, still_open(quiet)).into());
    }
    state.refusals.closed().await;
    if let Some(standstill) = &state.standstill {
        // Most of it while programs still run.
        shutdown::flushed().await?;
        standstill.begin().await?;
        shutdown::flushed().await?;
    }
    call.done(0).await?;
    attempt.reached = true;
    spawn_local(fall_back(Rc::clone(state)));
    Ok(())
}

/// Returns when the asking call is the only one.
async fn alone(quiet: &Quiet) {
    loop {
        let closed = quiet.closed.notified();
        if quiet.open.borrow().len() <= 1 {
            return;
        }
        closed.await;
    }
}

fn still_open(quiet: &Quiet) -> String {
    let open = quiet.open.borrow();
    // The one that asks is the last.
    let others = open.len().saturating_sub(1);
    let names: Vec<&str> = open
        .values()
        .take(others.min(NAMED_MAX))
        .map(String::as_str)
        .collect();
    let more = match others.saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("calls are still open: {}{more}", names.join(", "))
}

async fn fall_back(state: Rc<State>) {
    let limit = sleep_until(Instant::now() + QUIET_LIMIT);
    tokio::select! {
        () = state.quiet.over() => {}
        () = limit => go_on(&state),
    }
}

/// Waits for the host's signals.
pub async fn wake(state: Rc<State>, signals: Watched) {
    loop {
        let Ok(mut ready) = signals.readable().await else {
            return;
        };
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut info)?)) {
            Ok(Ok(_)) => go_on(&state),
            Ok(Err(_)) => sleep(Duration::from_secs(1)).await,
            Err(_would_block) => {}
        }
    }
}

/// The sandbox was restored. A copy has another name and other limits: what tells them is made true,
/// and followers, who belong to the original, are not waited for.
pub async fn refresh(state: &Rc<State>, call: &mut Call) -> Result<(), Ended> {
    look_around(state)?;
    call.done(0).await?;
    Ok(())
}

pub fn look_around(state: &State) -> Result<(), Failure> {
    state.figures.renew(state);
    let given = state.open_files.get();
    state.open_files.set(crate::setup::open_files_now(given));
    let now = crate::state::hostname();
    let before = state.hostname.replace(now.clone());
    if before != now {
        state.table.let_go_of_followers();
        identity::rename(&before, &now)?;
    }
    Ok(())
}
