//! One connection from the host and the call it carries.

use std::time::Duration;

use bytes::BytesMut;
use cove_protocol::frame::{self, FrameError, FrameReader};
use cove_protocol::message::{Done, Input, Open, Quiesced, Reply, ReplyKind};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};

use crate::failure::Failure;

/// How often a call that still has unread input looks whether its caller is there. Only calls
/// that wait for a process to read its input do.
const PRESENCE_CHECK: Duration = Duration::from_secs(1);

pub struct Call {
    stream: UnixStream,
    frames: FrameReader,
}

/// Why a call ended early.
#[derive(Debug)]
pub enum Ended {
    /// The caller is gone or does not keep to the protocol: there is nobody to tell.
    Lost,
    Refused(Failure),
}

impl From<FrameError> for Ended {
    fn from(_: FrameError) -> Self {
        Self::Lost
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

impl Call {
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            frames: FrameReader::default(),
        }
    }

    pub async fn open(&mut self) -> Result<Open, FrameError> {
        self.frames.next(&mut self.stream).await
    }

    pub async fn input(&mut self) -> Result<Input, FrameError> {
        self.frames.next(&mut self.stream).await
    }

    pub async fn reply(&mut self, kind: ReplyKind) -> Result<(), FrameError> {
        frame::write(&mut self.stream, &Reply { kind: Some(kind) }).await
    }

    pub async fn done(&mut self, bytes: u64) -> Result<(), FrameError> {
        self.reply(ReplyKind::Done(Done { bytes, entries: 0 }))
            .await
    }

    pub async fn fail(&mut self, failure: Failure) -> Result<(), FrameError> {
        self.reply(ReplyKind::Error(failure.into_message())).await
    }

    /// Several replies in one write.
    pub async fn reply_all(&mut self, buffer: &mut BytesMut) -> Result<(), FrameError> {
        self.stream.write_all_buf(buffer).await?;
        Ok(())
    }

    /// Returns when the caller hung up, in calls that take no further input: anything it sends
    /// counts as hanging up too.
    pub async fn hung_up(&self) {
        loop {
            if self.stream.readable().await.is_err() {
                return;
            }
            match self.stream.try_read(&mut [0]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }

    /// Returns when the caller hung up although input of it may still be unread.
    pub async fn abandoned(&self) {
        loop {
            match self.stream.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => tokio::time::sleep(PRESENCE_CHECK).await,
                _ => return,
            }
        }
    }

    /// Ends the call because of a capture; the caller comes back.
    pub async fn quiesced(&mut self, taken: u64) -> Result<(), FrameError> {
        self.reply(ReplyKind::Quiesce(Quiesced { taken })).await
    }

    /// What the caller sent up to now and nothing more: from here on it cannot send, and knows.
    pub fn stop_input(&self) -> std::io::Result<()> {
        Ok(rustix::net::shutdown(
            &self.stream,
            rustix::net::Shutdown::Read,
        )?)
    }

    /// Both directions apart, for calls that use them at the same time.
    pub fn split(&mut self) -> (Sender<'_>, Receiver<'_>) {
        let (reader, writer) = self.stream.split();
        let receiver = Receiver {
            stream: reader,
            frames: &mut self.frames,
        };
        (Sender { stream: writer }, receiver)
    }

    /// The connection in blocking mode and what was read of it beyond the request, for work that
    /// goes on in a thread.
    pub fn into_blocking(self) -> std::io::Result<(std::os::unix::net::UnixStream, BytesMut)> {
        let stream = self.stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok((stream, self.frames.into_remainder()))
    }
}

pub struct Sender<'a> {
    stream: WriteHalf<'a>,
}

impl Sender<'_> {
    pub async fn reply(&mut self, kind: ReplyKind) -> Result<(), FrameError> {
        frame::write(&mut self.stream, &Reply { kind: Some(kind) }).await
    }

    pub async fn done(&mut self, bytes: u64) -> Result<(), FrameError> {
        self.reply(ReplyKind::Done(Done { bytes, entries: 0 }))
            .await
    }
}

pub struct Receiver<'a> {
    stream: ReadHalf<'a>,
    frames: &'a mut FrameReader,
}

impl Receiver<'_> {
    pub async fn input(&mut self) -> Result<Input, FrameError> {
        self.frames.next(&mut self.stream).await
    }
}
