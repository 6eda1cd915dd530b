//! Many byte streams over the one port of a virtual machine: the host's calls to a guest, each on a stream of its
//! own. The host's side opens streams and the guest's side takes them.
//!
//! A *frame* is a header of twelve bytes (two fixed ones, the kind, a zero, the stream, the length) and its content.
//! What one side may have sent and the other has not passed on is bounded for each stream by [`WINDOW`], so that a
//! stream that nobody reads holds up no other. Neither side trusts the other: a frame that is out of order ends every
//! stream, and both sides find each other again. The host's side says a number that the guest's repeats; whatever
//! comes before it is skipped, so that neither stale bytes nor garbage are taken for frames.
//!
//! Everything here belongs to one thread, in a `LocalSet`.
#![forbid(unsafe_code)]

mod carry;
mod frame;
mod port;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use carry::Stream;
use frame::{Frame, Kind};
use port::Port;

/// Bytes of one stream that may be on their way in one direction.
pub const WINDOW: usize = 64 * 1024;
/// Streams at once: as many calls as a guest takes, and some that are about to end.
pub const STREAMS_MAX: usize = 576;
/// Frames that wait to be written.
const OUT_MAX: usize = 32;
/// After a frame that is out of order, before the next try.
const AGAIN: Duration = Duration::from_millis(200);

/// One side of a port.
#[derive(Clone)]
pub struct Mux {
    shared: Rc<Shared>,
}

pub(crate) struct Shared {
    streams: RefCell<HashMap<u32, Rc<Stream>>>,
    out: mpsc::Sender<Frame>,
    next: Cell<u32>,
}

/// A stream came: what to do with it.
type Taken = Box<dyn Fn(UnixStream)>;

impl Mux {
    fn new() -> (Self, mpsc::Receiver<Frame>) {
        let (out, frames) = mpsc::channel(OUT_MAX);
        let shared = Shared {
            streams: RefCell::default(),
            out,
            next: Cell::new(1),
        };
        let shared = Rc::new(shared);
        (Self { shared }, frames)
    }

    /// The host's side. `ready` is called each time the guest's side was found.
    pub fn host(port: AsyncFd<OwnedFd>, ready: impl Fn() + 'static) -> Self {
        let (mux, frames) = Self::new();
        let port = Rc::new(port);
        spawn_local(port::write_all(Rc::clone(&port), frames));
        let shared = Rc::clone(&mux.shared);
        spawn_local(async move {
            let mut port = Port::new(port);
            loop {
                // The port is gone, and the machine with it: whoever waits for that sees it end.
                if host_epoch(&shared, &mut port, &ready).await.is_err() {
                    shared.cut_all();
                    return;
                }
                tokio::time::sleep(AGAIN).await;
            }
        });
        mux
    }

    /// The guest's side, and what runs it until the port fails. `taken` gets every stream that the host opens.
    pub fn guest(
        port: AsyncFd<OwnedFd>,
        taken: impl Fn(UnixStream) + 'static,
    ) -> (Self, impl Future<Output = io::Result<()>>) {
        let (mux, frames) = Self::new();
        let port = Rc::new(port);
        spawn_local(port::write_all(Rc::clone(&port), frames));
        let taken: Taken = Box::new(taken);
        let (shared, mut port) = (Rc::clone(&mux.shared), Port::new(port));
        let run = async move {
            loop {
                let greeting = port.find(frame::greeting).await?;
                shared.cut_all();
                shared.answer(greeting).await?;
                guest_epoch(&shared, &mut port, &taken).await?;
                shared.cut_all();
                // The host may not know that a frame was out of order here. This one is out of order there, so
                // that it greets again. Where it has greeted already, it skips this.
                shared.send(Frame::empty(Kind::Open, 0)).await?;
            }
        };
        (mux, run)
    }

    /// Streams that are open now.
    pub fn streams(&self) -> usize {
        self.shared.streams.borrow().len()
    }

    /// Carries a connection to the guest until it ends. More than [`STREAMS_MAX`] are refused.
    pub async fn open(&self, socket: UnixStream) -> io::Result<()> {
        if self.streams() >= STREAMS_MAX {
            return Err(io::Error::other("too many streams are open"));
        }
        // Room first, so that no greeting comes between noting the stream and announcing it.
        let Ok(room) = self.shared.out.reserve().await else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let id = self.shared.next.get();
        self.shared.next.set(id.wrapping_add(1).max(1));
        let stream = self.shared.add(id);
        room.send(Frame::empty(Kind::Open, id));
        carry::run(&self.shared, id, stream, socket).await;
        Ok(())
    }
}

impl Shared {
    fn add(&self, id: u32) -> Rc<Stream> {
        let stream = Rc::new(Stream::default());
        let added = Rc::clone(&stream);
        self.streams.borrow_mut().insert(id, added);
        stream
    }

    fn cut_all(&self) {
        for (_, stream) in self.streams.borrow_mut().drain() {
            stream.cut();
        }
    }

    async fn answer(&self, greeting: [u8; frame::GREETING]) -> io::Result<()> {
        let content = Bytes::copy_from_slice(&greeting);
        self.send(Frame::new(Kind::Found, 0, content)).await
    }

    async fn send(&self, frame: Frame) -> io::Result<()> {
        let sent = self.out.send(frame).await;
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Does what a frame of an open stream says. `false`: it is out of order.
    fn take(&self, frame: Frame) -> bool {
        if matches!(frame.kind, Kind::Open | Kind::Greet | Kind::Found) {
            return false;
        }
        let stream = self.streams.borrow().get(&frame.stream).cloned();
        // One that ended here meanwhile.
        let Some(stream) = stream else { return true };
        match frame.kind {
            Kind::Data => stream.receive(frame.content),
            Kind::Window => stream.widen(&frame.content),
            Kind::End => {
                stream.peer_ends();
                true
            }
            Kind::Reset => {
                self.streams.borrow_mut().remove(&frame.stream);
                stream.cut();
                true
            }
            Kind::Open | Kind::Greet | Kind::Found => false,
        }
    }
}

/// Until a frame is out of order.
async fn host_epoch(shared: &Rc<Shared>, port: &mut Port, ready: &impl Fn()) -> io::Result<()> {
    let mut number = [0; frame::GREETING];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
    let Ok(room) = shared.out.reserve().await else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    // The guest ends all streams when it reads this. Those opened since the last frame out of order would otherwise
    // wait for an answer that never comes.
    shared.cut_all();
    room.send(Frame::new(Kind::Greet, 0, Bytes::copy_from_slice(&number)));
    port.find(|bytes| frame::answer(bytes, &number)).await?;
    ready();
    while let Some(frame) = port.next().await? {
        if !shared.take(frame) {
            break;
        }
    }
    shared.cut_all();
    Ok(())
}

/// Until a frame is out of order.
async fn guest_epoch(shared: &Rc<Shared>, port: &mut Port, taken: &Taken) -> io::Result<()> {
    while let Some(frame) = port.next().await? {
        match frame.kind {
            Kind::Greet => {
                shared.cut_all();
                let Ok(greeting) = <[u8; frame::GREETING]>::try_from(&*frame.content) else {
                    return Ok(());
                };
                shared.answer(greeting).await?;
            }
            Kind::Open => {
                let known = shared.streams.borrow().contains_key(&frame.stream);
                if known || shared.streams.borrow().len() >= STREAMS_MAX {
                    let refused = Frame::empty(Kind::Reset, frame.stream);
                    let _ = shared.out.send(refused).await;
                    continue;
                }
                let (ours, theirs) = UnixStream::pair()?;
                let (stream, id) = (shared.add(frame.stream), frame.stream);
                let of = Rc::clone(shared);
                spawn_local(async move { carry::run(&of, id, stream, ours).await });
                taken(theirs);
            }
            _ if shared.take(frame) => {}
            _ => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
