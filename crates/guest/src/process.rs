//! One command: its streams, its state, and everything calls can do with it.
//!
//! [`start`] makes it, [`pump`] carries its output into rings, [`reap`] learns of its end, and
//! [`follow`], [`input`], [`control`] and [`list`] are the calls. [`table`] keeps all of them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::watched::Watched;
use cove_protocol::message::{Exit, PtySize};
use tokio::sync::{Mutex, Notify};

pub mod control;
pub mod follow;
pub mod input;
pub mod kept;
pub mod list;
mod program;
mod pump;
pub mod reap;
mod ring;
mod spawn;
pub mod start;
pub mod table;
mod terminal;

use ring::Ring;

use crate::refusals::Mark;

/// Between SIGTERM and SIGKILL when a command has to end.
pub const KILL_GRACE: Duration = Duration::from_secs(2);

/// Stdout and stderr; a terminal has only the first.
pub const CHANNELS: usize = 2;

pub struct Process {
    pub id: String,
    pub run: Cell<Run>,
    /// A service: what is decided about its next run also decides when it has ended.
    pub supervised: Cell<bool>,
    pub argv: Vec<String>,
    pub cwd: String,
    pub user: String,
    pub kind: i32,
    pub owner: String,
    pub tag: String,
    /// What an older host says instead of the three above.
    pub mark: String,
    pub size: Cell<Option<PtySize>>,
    /// What had been refused when it started, where the network was off and the caller wants to hear of refusals.
    pub refused_before: Option<Mark>,
    pub sees_refusals: bool,
    pub streams: RefCell<Streams>,
    /// New output or the exit.
    pub changed: Notify,
    /// The foreground follower took something, or left.
    pub room: Notify,
    /// The leader is gone.
    pub leader_gone: Notify,
    pub terminal: RefCell<Option<Rc<Watched>>>,
    pub input: Mutex<Input>,
    pub viewers: Cell<u32>,
    /// The foreground follower's place while a capture keeps it away.
    pub interrupted: Cell<Option<follow::Interrupted>>,
    pub timed_out: Cell<bool>,
    /// The guest itself sent SIGKILL.
    pub killed: Cell<bool>,
}

/// One run of a command. Only services have more than one.
#[derive(Clone, Copy)]
pub struct Run {
    /// Counts from 0.
    pub number: u64,
    pub pid: i32,
    pub started_unix_ms: i64,
    pub started: Instant,
    /// OOM kills of the sandbox when it started.
    pub oom_kills_before: u64,
}

pub enum Input {
    /// Never open, or closed since.
    Closed,
    Pipe(Watched),
    Terminal,
}

pub struct Streams {
    pub rings: [Ring; CHANNELS],
    /// Nothing the leader wrote is left in the pipe.
    pub drained: [bool; CHANNELS],
    /// How the leader ended, as `waitpid` tells it.
    pub status: Option<i32>,
    /// Members of the process group outlived the leader.
    pub survivors: bool,
    /// How the last run ended, of a process that is supervised.
    pub last: Option<Exit>,
    /// Published once all the leader wrote is in the rings.
    pub exit: Option<Exit>,
    /// What the foreground follower has taken; while there is one, nothing beyond is overwritten.
    pub foreground: Option<[u64; CHANNELS]>,
}

impl Streams {
    /// Nobody is owed anything of it any more: its exit is out, and the follower that nothing may
    /// be dropped for has left.
    pub fn may_be_forgotten(&self) -> bool {
        self.exit.is_some() && self.foreground.is_none()
    }
}

impl Process {
    pub fn pid(&self) -> i32 {
        self.run.get().pid
    }

    pub fn running(&self) -> bool {
        self.streams.borrow().status.is_none()
    }

    pub fn exit(&self) -> Option<Exit> {
        self.streams.borrow().exit
    }

    /// Sends to the whole group while the leader lives or members outlived it: until then no
    /// other group can have its number.
    pub fn signal_group(&self, signal: i32) -> bool {
        let streams = self.streams.borrow();
        if streams.status.is_some() && !streams.survivors {
            return false;
        }
        if signal == libc::SIGKILL {
            self.killed.set(true);
        }
        // SAFETY: sends a signal to a group this guest made.
        unsafe { libc::kill(-self.pid(), signal) == 0 }
    }

    /// Asks the group to end, and after a grace time makes it.
    pub async fn terminate(self: Rc<Self>) {
        self.signal_group(libc::SIGTERM);
        // A stopped process acts on SIGTERM only when it goes on.
        self.signal_group(libc::SIGCONT);
        tokio::time::sleep(KILL_GRACE).await;
        self.signal_group(libc::SIGKILL);
    }
}
