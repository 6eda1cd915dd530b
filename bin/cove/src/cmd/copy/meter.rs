//! How far a transfer is, told once a second has passed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, ReadBuf};

use crate::output::Progress;
use crate::units;

/// Short transfers say nothing.
const QUIET_FOR: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(200);
const BAR: usize = 24;

#[derive(Clone)]
pub struct Meter {
    moved: Arc<AtomicU64>,
    total: Option<u64>,
    quiet: bool,
    started: Instant,
}

impl Meter {
    pub fn new(quiet: bool, total: Option<u64>) -> Self {
        Self {
            moved: Arc::default(),
            total,
            quiet,
            started: Instant::now(),
        }
    }

    pub fn add(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.moved.load(Relaxed)
    }

    /// Counts what is read through it.
    pub fn reader<R>(&self, inner: R) -> Metered<R> {
        Metered {
            inner: Box::pin(inner),
            moved: Arc::clone(&self.moved),
        }
    }

    /// Does the work and shows how far it is.
    pub async fn watch<T>(&self, work: impl Future<Output = T>) -> T {
        let mut progress = Progress::new(self.quiet);
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = tokio::time::sleep(REDRAW) => {
                    if self.started.elapsed() >= QUIET_FOR {
                        progress.show(&self.told());
                    }
                }
            }
        }
    }

    fn told(&self) -> String {
        let moved = self.count();
        let speed = moved as f64 / self.started.elapsed().as_secs_f64();
        let speed = units::bytes(speed as u64);
        match self.total {
            Some(total) if total > 0 => {
                let share = (moved as f64 / total as f64).min(1.0);
                let full = (share * BAR as f64) as usize;
                let bar: String = (0..BAR)
                    .map(|at| if at < full { '#' } else { '.' })
                    .collect();
                format!(
                    "{bar} {:3.0}%  {}  {speed}/s",
                    share * 100.0,
                    units::bytes(moved)
                )
            }
            _ => format!("{}  {speed}/s", units::bytes(moved)),
        }
    }
}

pub struct Metered<R> {
    inner: Pin<Box<R>>,
    moved: Arc<AtomicU64>,
}

impl<R: AsyncRead> AsyncRead for Metered<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let poll = self.inner.as_mut().poll_read(cx, buf);
        self.moved
            .fetch_add((buf.filled().len() - before) as u64, Relaxed);
        poll
    }
}
