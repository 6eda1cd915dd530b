//! One stream: what moves between it and a socket.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;

use crate::frame::{CONTENT_MAX, Frame, Kind};
use crate::{Shared, WINDOW};

pub struct Stream {
    /// What may be sent now.
    credit: Cell<usize>,
    widened: Notify,
    /// What came and was not passed on, and how much of what came the other side was not told of.
    queue: RefCell<VecDeque<Bytes>>,
    outstanding: Cell<usize>,
    came: Notify,
    peer_ended: Cell<bool>,
    is_cut: Cell<bool>,
    cut: Notify,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            credit: Cell::new(WINDOW),
            widened: Notify::new(),
            queue: RefCell::default(),
            outstanding: Cell::new(0),
            came: Notify::new(),
            peer_ended: Cell::new(false),
            is_cut: Cell::new(false),
            cut: Notify::new(),
        }
    }
}

impl Stream {
    /// `false`: more than may be on its way, or after its end.
    pub fn receive(&self, content: Bytes) -> bool {
        let outstanding = self.outstanding.get() + content.len();
        if outstanding > WINDOW || self.peer_ended.get() || content.is_empty() {
            return false;
        }
        self.outstanding.set(outstanding);
        self.queue.borrow_mut().push_back(content);
        self.came.notify_one();
        true
    }

    /// `false`: more than was sent.
    pub fn widen(&self, content: &[u8]) -> bool {
        let Ok(bytes) = <[u8; 4]>::try_from(content) else {
            return false;
        };
        let more = usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX);
        let credit = self.credit.get().saturating_add(more);
        if credit > WINDOW {
            return false;
        }
        self.credit.set(credit);
        self.widened.notify_one();
        true
    }

    pub fn peer_ends(&self) {
        self.peer_ended.set(true);
        self.came.notify_one();
    }

    pub fn cut(&self) {
        self.is_cut.set(true);
        self.cut.notify_one();
    }
}

/// Carries a stream until both directions ended, or one side cuts it.
pub async fn run(shared: &Rc<Shared>, id: u32, stream: Rc<Stream>, socket: UnixStream) {
    let (read, write) = socket.into_split();
    let moved = async {
        tokio::try_join!(
            outward(shared, id, &stream, read),
            inward(shared, id, &stream, write)
        )
    };
    let ended = tokio::select! {
        biased;
        () = stream.cut.notified() => return,
        ended = moved => ended,
    };
    if stream.is_cut.get() {
        return;
    }
    shared.streams.borrow_mut().remove(&id);
    if ended.is_err() {
        let _ = shared.out.send(Frame::empty(Kind::Reset, id)).await;
    }
}

async fn outward(shared: &Shared, id: u32, stream: &Stream, from: OwnedReadHalf) -> io::Result<()> {
    loop {
        while stream.credit.get() == 0 {
            stream.widened.notified().await;
        }
        let most = stream.credit.get().min(CONTENT_MAX);
        from.readable().await?;
        let mut piece = BytesMut::zeroed(most);
        let got = match from.try_read(&mut piece) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        if got == 0 {
            return shared.send(Frame::empty(Kind::End, id)).await;
        }
        piece.truncate(got);
        stream.credit.set(stream.credit.get() - got);
        shared
            .send(Frame::new(Kind::Data, id, piece.freeze()))
            .await?;
    }
}

async fn inward(
    shared: &Shared,
    id: u32,
    stream: &Stream,
    mut to: OwnedWriteHalf,
) -> io::Result<()> {
    loop {
        let next = stream.queue.borrow_mut().pop_front();
        let Some(content) = next else {
            if stream.peer_ended.get() {
                return to.shutdown().await;
            }
            stream.came.notified().await;
            continue;
        };
        to.write_all(&content).await?;
        stream
            .outstanding
            .set(stream.outstanding.get() - content.len());
        let passed = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let content = Bytes::copy_from_slice(&passed.to_le_bytes());
        shared.send(Frame::new(Kind::Window, id, content)).await?;
    }
}
