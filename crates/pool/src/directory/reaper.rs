//! Deleting in the background what was moved into the trash.
//!
//! The trash folder itself is the queue: it is bounded by the disk and survives a crash. The thread
//! looks at it when woken and ends, in the middle of a tree if need be, when the pool is dropped.

use std::fs;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::directory::c_name;
use crate::error::{Context, PoolError};
use crate::tree;

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
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.orders().stop
    }

    fn empty(&self, stop: &dyn Fn() -> bool) -> Result<usize, PoolError> {
        let _one_at_a_time = self.emptying.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = File::open(&self.trash).context("open", &self.trash)?;
        let mut removed = 0;
        let mut failed = None;
        for entry in fs::read_dir(&self.trash).context("list", &self.trash)? {
            let entry = entry.context("list", &self.trash)?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            match tree::remove(dir.as_fd(), &c_name(&name), stop) {
                Ok(true) => removed += 1,
                Ok(false) => break,
                // One tree that resists must not keep the others.
                Err(e) => failed = Some(PoolError::io("delete", entry.path(), e)),
            }
        }
        failed.map_or(Ok(removed), Err)
    }

    fn run(&self) {
        loop {
            let mut orders = self.orders();
            while !orders.look && !orders.stop {
                orders = self
                    .changed
                    .wait(orders)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if orders.stop {
                return;
            }
            orders.look = false;
            drop(orders);
            // What resists stays in the trash for the next wake, and a sweep reports it.
            let _ = self.empty(&|| self.stopping());
        }
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
        self.shared.orders().look = true;
        self.shared.changed.notify_one();
    }

    /// Empties the trash in the calling thread; what cannot be removed is an error after the rest.
    pub fn empty_now(&self) -> Result<usize, PoolError> {
        self.shared.empty(&|| false)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shared.orders().stop = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing; if it panicked, the trash is swept at the next open.
            let _ = thread.join();
        }
    }
}
