//! What the sandbox uses and may use, read from its cgroup where it can see one and from /proc
//! where not, and written into the files that stand in for the host's figures in /proc.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::spawn_local;

use crate::state::State;

mod cgroup;
mod cpu;
mod meminfo;
pub mod metrics;
pub mod sessions;

use cgroup::Cgroup;
pub use cgroup::Memory;

/// How often the figures are written while commands run.
const REFRESH: Duration = Duration::from_secs(1);
/// Starts closer together than this share one refresh.
const REFRESH_MIN: Duration = Duration::from_millis(100);

pub struct Figures {
    root_files: PathBuf,
    cgroup: OnceCell<Cgroup>,
    written: Cell<Option<Instant>>,
    /// CPUs that the files tell now.
    cpus: Cell<u32>,
    refreshing: Cell<bool>,
}

impl Figures {
    pub fn new(root_files: PathBuf) -> Self {
        Self {
            root_files,
            cgroup: OnceCell::new(),
            written: Cell::new(None),
            cpus: Cell::new(0),
            refreshing: Cell::new(false),
        }
    }

    fn cgroup(&self) -> &Cgroup {
        self.cgroup
            .get_or_init(|| Cgroup::find(&self.root_files.join("cgroup")))
    }

    pub fn memory(&self) -> Memory {
        self.cgroup().memory()
    }

    pub fn oom_kills(&self) -> u64 {
        self.cgroup().oom_kills()
    }

    pub fn cpu_usec(&self) -> u64 {
        self.cgroup().cpu_usec()
    }

    /// A command was started: writes the figures now, and every second until none runs any more.
    pub fn commands_run(&self, state: &Rc<State>) {
        let recent = self
            .written
            .get()
            .is_some_and(|written| written.elapsed() < REFRESH_MIN);
        if !recent {
            self.write(state);
        }
        if !self.refreshing.replace(true) {
            spawn_local(keep_writing(Rc::clone(state)));
        }
    }

    /// The limits may have changed all at once: writes everything anew.
    pub fn renew(&self, state: &State) {
        self.cpus.set(0);
        self.write(state);
    }

    fn write(&self, state: &State) {
        self.written.set(Some(Instant::now()));
        let memory = self.memory();
        state.table.limit_memory(memory.limit);
        let files = self.root_files.join("proc");
        meminfo::write(&files.join("meminfo"), &memory);
        let cpus = cpu::usable();
        if cpus != self.cpus.get() && cpu::write(&files, cpus).is_ok() {
            self.cpus.set(cpus);
        }
    }
}

async fn keep_writing(state: Rc<State>) {
    while state.table.running_count() > 0 {
        tokio::time::sleep(REFRESH).await;
        state.figures.write(&state);
    }
    state.figures.refreshing.set(false);
}

/// Bytes read of a file with figures.
const TEXT_MAX: u64 = 64 * 1024;

/// A small file, usually the kernel's; one that somebody put in its place must not block.
fn read_text(path: &Path) -> Option<String> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let mut text = String::new();
    file.take(TEXT_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn read_number(path: &Path) -> Option<u64> {
    read_text(path)?.trim().parse().ok()
}

/// The value of `name` in lines of `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(' ')?;
        (found == name).then(|| value.trim().parse().ok())?
    })
}
