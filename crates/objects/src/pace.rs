//! How fast all uploads together may go, with the same share for each organisation that has some.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use cove_model::OrgId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// A limit of bytes per second, shared by turns: of those who wait, the organisation that has sent least goes next.
#[derive(Debug)]
pub struct Pace {
    /// 0: no limit.
    per_second: u64,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    free_at: Option<Instant>,
    next_ticket: u64,
    waiting: HashMap<OrgId, Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Bytes sent since somebody of it began to wait, counted from where the others were then.
    sent: u64,
    tickets: VecDeque<u64>,
}

/// Leaves its queue when whoever waits goes away.
struct Ticket<'a> {
    pace: &'a Pace,
    org: &'a OrgId,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.pace.state.lock();
        if let Some(queue) = state.waiting.get_mut(self.org) {
            queue.tickets.retain(|number| *number != self.number);
            if queue.tickets.is_empty() {
                state.waiting.remove(self.org);
            }
        }
        drop(state);
        self.pace.changed.notify_waiters();
    }
}

impl Pace {
    pub fn new(bytes_per_second: u64) -> Self {
        Self {
            per_second: bytes_per_second,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Waits until `org` may send so many bytes.
    pub async fn take(&self, org: &OrgId, bytes: usize) {
        if self.per_second == 0 {
            return;
        }
        let ticket = self.queue(org);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on a change is not missed.
            changed.as_mut().enable();
            match self.try_take(&ticket, bytes) {
                None => return,
                Some(Some(at)) => {
                    tokio::select! {
                        () = sleep_until(at) => {}
                        () = changed => {}
                    }
                }
                Some(None) => changed.await,
            }
        }
    }

    fn queue<'a>(&'a self, org: &'a OrgId) -> Ticket<'a> {
        let mut state = self.state.lock();
        let number = state.next_ticket;
        state.next_ticket += 1;
        // Who did not wait has saved nothing up.
        let least = state.waiting.values().map(|queue| queue.sent).min();
        let queue = state.waiting.entry(org.clone()).or_insert_with(|| Queue {
            sent: least.unwrap_or(0),
            tickets: VecDeque::new(),
        });
        queue.tickets.push_back(number);
        Ticket {
            pace: self,
            org,
            number,
        }
    }

    /// `None`: taken. Otherwise until when to wait, where that is known.
    fn try_take(&self, ticket: &Ticket<'_>, bytes: usize) -> Option<Option<Instant>> {
        let mut state = self.state.lock();
        let next = state
            .waiting
            .iter()
            .min_by_key(|(_, queue)| (queue.sent, queue.tickets.front().copied()));
        let is_next = next.is_some_and(|(_, queue)| queue.tickets.front() == Some(&ticket.number));
        if !is_next {
            return Some(None);
        }
        let now = Instant::now();
        let free_at = state.free_at.unwrap_or(now).max(now);
        if free_at > now {
            return Some(Some(free_at));
        }
        let bytes = bytes as u64;
        let takes = Duration::from_secs_f64(bytes as f64 / self.per_second as f64);
        state.free_at = Some(now + takes);
        if let Some(queue) = state.waiting.get_mut(ticket.org) {
            queue.sent = queue.sent.saturating_add(bytes);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[tokio::test(start_paused = true)]
    async fn one_organisation_with_many_uploads_takes_half_of_two() {
        let pace = Arc::new(Pace::new(1000));
        let (many, one) = (OrgId::random(), OrgId::random());
        let sent = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let mut tasks = Vec::new();
        for uploader in 0..9 {
            let (pace, sent) = (Arc::clone(&pace), Arc::clone(&sent));
            let whose = usize::from(uploader == 8);
            let org = [&many, &one][whose].clone();
            tasks.push(tokio::spawn(async move {
                loop {
                    pace.take(&org, 100).await;
                    sent[whose].fetch_add(100, Relaxed);
                }
            }));
        }
        tokio::time::sleep(Duration::from_secs(100)).await;
        let (many, one) = (sent[0].load(Relaxed), sent[1].load(Relaxed));
        for task in &tasks {
            task.abort();
        }
        assert!((90_000..=110_000).contains(&(many + one)), "{many} {one}");
        // One upload asks again only once it has its bytes, so it may miss a turn.
        assert!(one * 3 >= many, "{many} {one}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_goes_away_holds_nobody_up() {
        let pace = Arc::new(Pace::new(10));
        let org = OrgId::random();
        pace.take(&org, 100).await;
        let gone = {
            let (pace, org) = (Arc::clone(&pace), org.clone());
            tokio::spawn(async move { pace.take(&org, 100).await })
        };
        tokio::task::yield_now().await;
        gone.abort();
        let began = Instant::now();
        pace.take(&org, 1).await;
        assert!(began.elapsed() <= Duration::from_secs(11));
        assert!(pace.state.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn no_limit_is_no_wait() {
        Pace::new(0).take(&OrgId::random(), usize::MAX).await;
    }
}
