//! What is known of one connection while it is served: whether a request is under way, since when nobody
//! asked anything, and which answers wait for their reader.
//!
//! HTTP/1's own timers see a socket that is full and a head that does not come. They see neither an
//! HTTP/2 peer that answers pings and asks nothing, nor one that opens no window for its answers, nor one
//! that takes its requests back as fast as it sends them. Those are judged here, by the connection's task.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use tokio_util::sync::CancellationToken;

use crate::config::ServerConfig;

/// Requests that one connection may take back in one period; one that takes back more is cut.
pub const TAKEN_BACK_MAX: usize = 100;
pub const TAKEN_BACK_PERIOD: Duration = Duration::from_secs(10);

/// What to do about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Stay,
    /// Nobody asks anything: say goodbye.
    Idle,
    /// Close it.
    Cut(&'static str),
}

pub struct Pulse {
    born: Instant,
    cut: CancellationToken,
    /// Requests whose answer was not sent in full yet.
    requests: AtomicUsize,
    /// Milliseconds after `born`, and one more, so that 0 means never.
    quiet_since: AtomicU64,
    head_since: AtomicU64,
    /// It speaks HTTP/2: bytes that begin no request may be pings.
    second: AtomicBool,
    answers: Mutex<Vec<Weak<Flight>>>,
    taken_back: Mutex<(Instant, usize)>,
}

impl Pulse {
    pub fn new() -> Arc<Self> {
        let born = Instant::now();
        Arc::new(Self {
            born,
            cut: CancellationToken::new(),
            requests: AtomicUsize::new(0),
            quiet_since: AtomicU64::new(1),
            head_since: AtomicU64::new(0),
            second: AtomicBool::new(false),
            answers: Mutex::default(),
            taken_back: Mutex::new((born, 0)),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    fn since(&self, stamp: u64) -> Duration {
        Duration::from_millis(self.now().saturating_sub(stamp))
    }

    /// Ends the connection from outside.
    pub fn cut(&self) {
        self.cut.cancel();
    }

    /// Returns when the connection must end.
    pub async fn ended(&self) {
        self.cut.cancelled().await;
    }

    pub fn speaks_second(&self) {
        self.second.store(true, Relaxed);
    }

    /// Bytes came in.
    pub fn heard(&self) {
        if self.requests.load(Relaxed) == 0 && !self.second.load(Relaxed) {
            let now = self.now();
            // The head began when its first byte came.
            let _ = self.head_since.compare_exchange(0, now, Relaxed, Relaxed);
        }
    }

    /// How long nobody has asked anything; `None` while a request is under way.
    pub fn idle_for(&self) -> Option<Duration> {
        (self.requests.load(Relaxed) == 0).then(|| self.since(self.quiet_since.load(Relaxed)))
    }

    /// A request's head was read.
    pub fn begin(self: &Arc<Self>) -> Arc<Flight> {
        self.requests.fetch_add(1, Relaxed);
        self.head_since.store(0, Relaxed);
        let flight = Arc::new(Flight {
            pulse: Arc::clone(self),
            answered: AtomicBool::new(false),
            handed_since: AtomicU64::new(0),
        });
        let mut answers = self.answers.lock();
        if answers.len() == answers.capacity() {
            answers.retain(|answer| answer.strong_count() > 0);
        }
        answers.push(Arc::downgrade(&flight));
        drop(answers);
        flight
    }

    fn was_taken_back(&self) {
        let mut taken = self.taken_back.lock();
        if taken.0.elapsed() >= TAKEN_BACK_PERIOD {
            *taken = (Instant::now(), 0);
        }
        taken.1 += 1;
        if taken.1 > TAKEN_BACK_MAX {
            self.cut();
        }
    }

    pub fn verdict(&self, config: &ServerConfig) -> Verdict {
        let head = self.head_since.load(Relaxed);
        if head != 0 && self.since(head) >= config.header_timeout {
            return Verdict::Cut("the headers of a request did not arrive");
        }
        let mut answers = self.answers.lock();
        answers.retain(|answer| answer.strong_count() > 0);
        let stalled = answers.iter().filter_map(Weak::upgrade).any(|flight| {
            let handed = flight.handed_since.load(Relaxed);
            handed != 0 && self.since(handed) >= config.write_stall
        });
        drop(answers);
        if stalled {
            return Verdict::Cut("the client did not read an answer");
        }
        match self.idle_for() {
            Some(idle) if idle >= config.keep_alive => Verdict::Idle,
            _ => Verdict::Stay,
        }
    }
}

/// One request, from its head to the last byte of its answer: whoever holds a part of the answer holds
/// this.
pub struct Flight {
    pulse: Arc<Pulse>,
    answered: AtomicBool,
    /// Since when something of the answer waits for its reader; 0 while the answer waits for its maker.
    handed_since: AtomicU64,
}

impl Flight {
    /// Its peer took something of the answer, or there is nothing to take.
    pub fn answered(&self) {
        self.answered.store(true, Relaxed);
    }

    /// The reader has something to take.
    pub fn handed(&self) {
        self.handed_since.store(self.pulse.now(), Relaxed);
    }

    /// The reader took all there is so far.
    pub fn waits(&self) {
        self.handed_since.store(0, Relaxed);
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let pulse = &self.pulse;
        pulse.quiet_since.store(pulse.now(), Relaxed);
        pulse.requests.fetch_sub(1, Relaxed);
        if !self.answered.load(Relaxed) {
            pulse.was_taken_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(limit: Duration) -> ServerConfig {
        ServerConfig {
            header_timeout: limit,
            keep_alive: limit,
            write_stall: limit,
            ..ServerConfig::default()
        }
    }

    #[test]
    fn a_connection_is_judged_by_what_it_does() {
        let (soon, late) = (config(Duration::ZERO), config(Duration::from_secs(3600)));
        let pulse = Pulse::new();
        assert_eq!(pulse.verdict(&late), Verdict::Stay);
        assert_eq!(pulse.verdict(&soon), Verdict::Idle, "nobody asks");
        pulse.heard();
        assert!(
            matches!(pulse.verdict(&soon), Verdict::Cut(_)),
            "half a head"
        );
        let flight = pulse.begin();
        assert_eq!(
            pulse.verdict(&soon),
            Verdict::Stay,
            "a request is under way"
        );
        flight.handed();
        assert!(matches!(pulse.verdict(&soon), Verdict::Cut(_)), "not read");
        flight.waits();
        assert_eq!(
            pulse.verdict(&soon),
            Verdict::Stay,
            "the answer goes on later"
        );
        drop(flight);
        assert_eq!(pulse.verdict(&soon), Verdict::Idle);
        pulse.speaks_second();
        pulse.heard();
        assert_eq!(pulse.verdict(&soon), Verdict::Idle, "a ping is no head");
    }

    #[tokio::test]
    async fn requests_taken_back_one_after_the_other_end_the_connection() {
        let pulse = Pulse::new();
        for _ in 0..TAKEN_BACK_MAX {
            drop(pulse.begin());
        }
        assert!(!pulse.cut.is_cancelled());
        for _ in 0..TAKEN_BACK_MAX {
            pulse.begin().answered();
        }
        assert!(!pulse.cut.is_cancelled(), "those were answered");
        drop(pulse.begin());
        pulse.ended().await;
    }
}
