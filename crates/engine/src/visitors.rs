//! Who waits at the metadata endpoints of this host's sandboxes.
//!
//! A sandbox with an identity has a listener on its own loopback, held here. Connections are accepted and
//! handed to control unread; which listener they came by says whose they are. With nobody to take them, a few
//! wait here and the others in the kernel. The listener ends with the machine: a machine that begins from
//! another's memory has another loopback, so that connections of the one it was copied from lead nowhere.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use cove_isolation::{IsolationError, Machine};
use cove_model::SandboxId;
use cove_model::identity::{METADATA_ADDRESS, METADATA_PORT};
use cove_runner_api::{GuestStream, RunnerError};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::error::internal;

/// Connections of one sandbox that wait to be taken.
const WAITING_MAX: usize = 8;
/// How long one of them may wait before the next takes its place: nobody answers it any more.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a failed accept, so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The longest a caller may wait in one call.
const WAIT_MAX: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(tokio::time::Instant, TcpStream)>,
    /// Wakes the task that accepts, when there is room again.
    room: Arc<Notify>,
}

#[derive(Default)]
pub struct Visitors {
    queues: Mutex<HashMap<SandboxId, Queue>>,
    arrived: Notify,
}

/// The listener of one sandbox. Closed on drop.
pub struct Door {
    visitors: Arc<Visitors>,
    id: SandboxId,
    /// Ends before the queue does, so that nobody is put into a queue that is gone.
    accepting: Option<AbortOnDropHandle<()>>,
}

/// Whether a connection came over loopback: from nowhere else do such sources come.
fn is_inside(peer: IpAddr) -> bool {
    peer.is_loopback() || peer == IpAddr::V4(METADATA_ADDRESS)
}

impl Door {
    /// Returns when the listener is closed; a drop alone lets that happen a moment later.
    pub async fn close(mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            let _ = accepting.await;
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.accepting.take();
        self.visitors.queues.lock().remove(&self.id);
    }
}

impl Visitors {
    /// Opens the endpoint of a machine that runs.
    pub async fn open(
        self: &Arc<Self>,
        id: &SandboxId,
        machine: &dyn Machine,
    ) -> Result<Door, IsolationError> {
        let address = SocketAddrV4::new(METADATA_ADDRESS, METADATA_PORT);
        let listener = machine.listen(address).await?;
        let listener =
            TcpListener::from_std(listener).map_err(IsolationError::failed("listen inside"))?;
        let queue = Queue::default();
        let room = Arc::clone(&queue.room);
        self.queues.lock().insert(id.clone(), queue);
        let accepting = tokio::spawn(Arc::clone(self).accept(id.clone(), listener, room));
        Ok(Door {
            visitors: Arc::clone(self),
            id: id.clone(),
            accepting: Some(AbortOnDropHandle::new(accepting)),
        })
    }

    async fn accept(self: Arc<Self>, id: SandboxId, listener: TcpListener, room: Arc<Notify>) {
        loop {
            while !self.has_room(&id) {
                // Those that were given up make room by themselves.
                let _ = tokio::time::timeout(PATIENCE, room.notified()).await;
            }
            let stream = match listener.accept().await {
                Ok((stream, peer)) if is_inside(peer.ip()) => stream.into_std(),
                // By the sandbox's interface, from outside.
                Ok(_) => continue,
                Err(error) => Err(error),
            };
            let Ok(stream) = stream else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            if let Some(queue) = self.queues.lock().get_mut(&id) {
                let now = tokio::time::Instant::now();
                queue.waiting.push_back((now, stream));
            }
            self.arrived.notify_waiters();
        }
    }

    fn has_room(&self, id: &SandboxId) -> bool {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(id) else {
            return true;
        };
        let fresh = |(at, _): &(tokio::time::Instant, TcpStream)| at.elapsed() < PATIENCE;
        queue.waiting.retain(fresh);
        queue.waiting.len() < WAITING_MAX
    }

    fn ready(&self) -> Vec<SandboxId> {
        let queues = self.queues.lock();
        let ready = queues.iter().filter(|(_, queue)| !queue.waiting.is_empty());
        ready.map(|(id, _)| id.clone()).collect()
    }

    /// Sandboxes of which somebody waits, waiting for the first.
    pub async fn wait(&self, wait: Duration) -> Vec<SandboxId> {
        let deadline = tokio::time::Instant::now() + wait.min(WAIT_MAX);
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            // Before the look, so that nobody who comes in between is missed.
            arrived.as_mut().enable();
            let ready = self.ready();
            if !ready.is_empty() || tokio::time::timeout_at(deadline, arrived).await.is_err() {
                return ready;
            }
        }
    }

    /// The next who waits.
    pub fn take(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        let stream = {
            let mut queues = self.queues.lock();
            let queue = queues.get_mut(id);
            queue.and_then(|queue| {
                let taken = queue.waiting.pop_front();
                queue.room.notify_one();
                taken
            })
        };
        let (_, stream) = stream.ok_or_else(|| RunnerError::NotFound {
            what: "visitor".into(),
            id: id.to_string(),
        })?;
        // A connected socket like any other to whoever reads and writes it: the descriptor is all that travels.
        let stream = std::os::unix::net::UnixStream::from(std::os::fd::OwnedFd::from(stream));
        let stream = tokio::net::UnixStream::from_std(stream).map_err(internal)?;
        Ok(GuestStream::Unix(stream))
    }
}
