//! Deleting in the background what was moved into the trash.
//!
//! The trash folder itself is the queue: it is bounded by the disk and survives a crash. The thread
//! looks at it when woken and ends, in the middle of a tree if need be, when the pool is dropped. What it
//! could not delete it tries again after a pause, without being woken.

use std::ffi::CString;
use std::fs;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cove_model::Backoff;
use parking_lot::{Condvar, Mutex};

use crate::error::{Context, PoolError};
use crate::tree;

/// Pauses before what could not be deleted is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Orders {
    look: bool,
    stop: bool,
}

struct Shared {
    trash: PathBuf,
    orders: Mutex<Orders>,
    changed: Condvar,
    /// Held while emptying, so that the thread and a sweep do not pull at the same tree.
    emptying: Mutex<()>,
}

pub(super) struct Reaper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Shared {
    fn stopping(&self) -> bool {
        self.orders.lock().stop
    }

    fn empty(&self, stop: &dyn Fn() -> bool) -> Result<usize, PoolError> {
        let _one_at_a_time = self.emptying.lock();
        let dir = File::open(&self.trash).context("open", &self.trash)?;
        let mut removed = 0;
        let mut failed = None;
        for entry in fs::read_dir(&self.trash).context("list", &self.trash)? {
            let entry = entry.context("list", &self.trash)?;
            let name = CString::new(entry.file_name().into_vec()).expect("names hold no NUL");
            match tree::remove(dir.as_fd(), &name, stop) {
                Ok(true) => removed += 1,
                Ok(false) => break,
                // One tree that resists must not keep the others.
                Err(e) => failed = Some(PoolError::io("delete", entry.path(), e)),
            }
        }
        failed.map_or(Ok(removed), Err)
    }

    fn run(&self) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut again = None;
        // The same failure is logged once, not at every try.
        let mut logged = String::new();
        while self.wait(again) {
            match self.empty(&|| self.stopping()) {
                Ok(_) => {
                    backoff.reset();
                    again = None;
                    logged.clear();
                }
                Err(error) => {
                    let cause = cove_model::error::chain(&error);
                    if cause != logged {
                        let trash = self.trash.display();
                        tracing::warn!(%trash, "cannot empty the pool's trash, trying again: {cause}");
                        logged = cause;
                    }
                    again = Some(backoff.pause());
                }
            }
        }
    }

    /// Returns when there may be something to delete, after `pause` at the latest; false at the end.
    fn wait(&self, pause: Option<Duration>) -> bool {
        let mut orders = self.orders.lock();
        let idle = |orders: &mut Orders| !orders.look && !orders.stop;
        match pause {
            Some(pause) => {
                self.changed.wait_while_for(&mut orders, idle, pause);
            }
            None => self.changed.wait_while(&mut orders, idle),
        }
        orders.look = false;
        !orders.stop
    }
}

impl Reaper {
    pub fn start(trash: PathBuf) -> Result<Reaper, PoolError> {
        let shared = Arc::new(Shared {
            trash,
            orders: Mutex::default(),
            changed: Condvar::new(),
            emptying: Mutex::new(()),
        });
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("pool-reaper".to_owned())
            .spawn(move || worker.run())
            .context("start the thread that empties", Path::new(&shared.trash))?;
        Ok(Reaper {
            shared,
            thread: Some(thread),
        })
    }

    pub fn wake(&self) {
        self.shared.orders.lock().look = true;
        self.shared.changed.notify_one();
    }

    /// Empties the trash in the calling thread; what cannot be removed is an error after the rest.
    pub fn empty_now(&self) -> Result<usize, PoolError> {
        self.shared.empty(&|| false)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shared.orders.lock().stop = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing; if it panicked, the trash is swept at the next open.
            let _ = thread.join();
        }
    }
}
