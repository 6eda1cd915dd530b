//! What a request carries: nothing, a document, or a stream of bytes with the server's pace.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;
use tokio::io::{AsyncRead, ReadBuf};

use crate::ClientError;

/// Read from an upload's source at once.
const CHUNK: usize = 256 * 1024;

pub enum Outgoing {
    Whole(Option<Bytes>),
    Upload(Upload),
}

impl Outgoing {
    pub fn empty() -> Self {
        Self::Whole(None)
    }

    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()).filter(|bytes| !bytes.is_empty()))
    }

    pub fn json(value: &impl Serialize) -> Result<Self, ClientError> {
        serde_json::to_vec(value)
            .map(Self::bytes)
            .map_err(ClientError::Answer)
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    /// The same body again, when nothing of it was consumed by sending.
    pub(crate) fn again(&self) -> Option<Self> {
        match self {
            Self::Whole(bytes) => Some(Self::Whole(bytes.clone())),
            Self::Upload(_) => None,
        }
    }
}

/// Bytes from anything that can be read.
pub struct Upload {
    source: Pin<Box<dyn AsyncRead + Send>>,
    length: Option<u64>,
    buffer: BytesMut,
    over: bool,
}

impl Upload {
    /// `length` when it is known: the server can then refuse before the first byte.
    pub fn new(source: impl AsyncRead + Send + 'static, length: Option<u64>) -> Self {
        Self {
            source: Box::pin(source),
            length,
            buffer: BytesMut::new(),
            over: false,
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.over {
            return Poll::Ready(None);
        }
        self.buffer.resize(CHUNK, 0);
        let mut space = ReadBuf::new(&mut self.buffer);
        match self.source.as_mut().poll_read(cx, &mut space) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => {
                self.over = true;
                Poll::Ready(Some(Err(error)))
            }
            Poll::Ready(Ok(())) => {
                let count = space.filled().len();
                if count == 0 {
                    self.over = true;
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(Ok(self.buffer.split_to(count).freeze())))
            }
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upload(upload) => upload
                .poll_chunk(cx)
                .map(|chunk| chunk.map(|chunk| chunk.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Upload(upload) => upload.over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Upload(upload) => upload.length.map(SizeHint::with_exact).unwrap_or_default(),
        }
    }
}
