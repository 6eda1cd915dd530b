//! A connection to a port inside, as a plain byte stream with half-close.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::call::Call;
use super::{GuestError, Stream};
use crate::frame::{self, FrameReader};
use crate::message::{Empty, Input, InputKind, Reply, ReplyKind};

/// Payload put into one frame on the way in.
const WRITE_CHUNK: usize = 64 * 1024;
/// Read from the stream at once on the way out.
const READ_CHUNK: usize = 64 * 1024;

pub struct PortStream {
    stream: Box<dyn Stream>,
    frames: FrameReader,
    /// Payload of the last frame that was not read yet.
    ready: Bytes,
    read_over: bool,
    out: BytesMut,
    end_sent: bool,
}

impl PortStream {
    pub(super) async fn start(mut call: Call) -> Result<Self, GuestError> {
        match call.reply_soon().await? {
            ReplyKind::Done(_) => Ok(Self {
                stream: call.stream,
                frames: call.frames,
                ready: Bytes::new(),
                read_over: false,
                out: BytesMut::new(),
                end_sent: false,
            }),
            _ => Err(GuestError::Unexpected("wanted a connection")),
        }
    }

    /// Takes complete frames until one has payload or ends the stream.
    fn take_frames(&mut self) -> io::Result<()> {
        while self.ready.is_empty() && !self.read_over {
            let Some(body) = self.frames.take().map_err(broken)? else {
                break;
            };
            match Reply::decode(body).map_err(broken)?.kind {
                Some(ReplyKind::Data(data)) => self.ready = data,
                Some(ReplyKind::Done(_)) => self.read_over = true,
                _ => return Err(broken("an unexpected frame on a port connection")),
            }
        }
        Ok(())
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                wrote => self.out.advance(wrote),
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl AsyncRead for PortStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            this.take_frames()?;
            if !this.ready.is_empty() {
                let count = this.ready.len().min(buf.remaining());
                buf.put_slice(&this.ready.split_to(count));
                return Poll::Ready(Ok(()));
            }
            if this.read_over {
                return Poll::Ready(Ok(()));
            }
            let filled = ready!(this.frames.poll_fill(&mut this.stream, cx, READ_CHUNK))?;
            if filled == 0 {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.end_sent {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.poll_drain(cx))?;
        let part = &data[..data.len().min(WRITE_CHUNK)];
        let kind = Some(InputKind::Data(Bytes::copy_from_slice(part)));
        frame::encode(&Input { kind }, &mut this.out).map_err(broken)?;
        // A frame that cannot go out now is kept and sent before anything else.
        if let Poll::Ready(result) = this.poll_drain(cx) {
            result?;
        }
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    /// Ends this direction only; the other stays readable until the port closes it.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.end_sent {
            this.end_sent = true;
            let kind = Some(InputKind::End(Empty {}));
            frame::encode(&Input { kind }, &mut this.out).map_err(broken)?;
        }
        this.poll_drain(cx)
    }
}
