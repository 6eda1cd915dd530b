//! Answers that go on: raw bytes, lines of JSON, server-sent events. Each reads at the caller's pace.

use async_recursion::async_recursion as boxed;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http::{Response, header};
use http_body::Body;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, ReadBuf};

use crate::{Answer, ClientError};

/// The longest line taken from a live answer.
const LINE_MAX: usize = 4 * 1024 * 1024;

/// A body as raw bytes.
pub struct ByteStream {
    answer: Answer,
    length: Option<u64>,
    ready: Bytes,
}

impl ByteStream {
    pub(crate) fn new(response: Response<Answer>) -> Self {
        let length = response
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        Self {
            answer: response.into_body(),
            length,
            ready: Bytes::new(),
        }
    }

    /// What the server says is to come; absent where it cannot know.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    #[boxed]
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        if !self.ready.is_empty() {
            return Ok(Some(std::mem::take(&mut self.ready)));
        }
        loop {
            match self.answer.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(error),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

impl AsyncRead for ByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            match Pin::new(&mut this.answer).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Err(std::io::Error::other(error)));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        this.ready = data;
                    }
                }
            }
        }
        let count = this.ready.len().min(buf.remaining());
        buf.put_slice(&this.ready[..count]);
        this.ready.advance(count);
        Poll::Ready(Ok(()))
    }
}

/// A body of JSON values, one a line.
pub struct Lines<T> {
    bytes: ByteStream,
    buffer: BytesMut,
    _of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    pub(crate) fn new(response: Response<Answer>) -> Self {
        Self {
            bytes: ByteStream::new(response),
            buffer: BytesMut::new(),
            _of: PhantomData,
        }
    }

    /// The next value; `None` at the end. Dropping the future loses nothing.
    #[boxed]
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            let Some(line) = line(&mut self.bytes, &mut self.buffer).await? else {
                return Ok(None);
            };
            if !line.is_empty() {
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(ClientError::Answer);
            }
        }
    }
}

async fn line(bytes: &mut ByteStream, buffer: &mut BytesMut) -> Result<Option<Bytes>, ClientError> {
    let mut searched = 0;
    loop {
        if let Some(at) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
            let mut line = buffer.split_to(searched + at + 1);
            line.truncate(searched + at);
            return Ok(Some(line.freeze()));
        }
        searched = buffer.len();
        if searched > LINE_MAX {
            return Err(ClientError::Protocol("a line of the answer is too long"));
        }
        match bytes.next().await? {
            Some(more) => buffer.extend_from_slice(&more),
            None if buffer.is_empty() => return Ok(None),
            None => return Err(ClientError::Protocol("the answer ended inside a line")),
        }
    }
}

/// A body of server-sent events with JSON data.
pub struct ServerEvents<T> {
    bytes: ByteStream,
    buffer: BytesMut,
    data: String,
    _of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> ServerEvents<T> {
    pub(crate) fn new(response: Response<Answer>) -> Self {
        let bytes = ByteStream::new(response);
        Self {
            bytes,
            buffer: BytesMut::new(),
            data: String::new(),
            _of: PhantomData,
        }
    }

    #[boxed]
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        while let Some(line) = line(&mut self.bytes, &mut self.buffer).await? {
            let text = std::str::from_utf8(&line)
                .map_err(|_| ClientError::Protocol("an event is not text"))?
                .trim_end_matches('\r');
            if let Some(part) = text.strip_prefix("data:") {
                self.data.push_str(part.strip_prefix(' ').unwrap_or(part));
                if self.data.len() > LINE_MAX {
                    return Err(ClientError::Protocol("an event is too long"));
                }
            } else if text.is_empty() && !self.data.is_empty() {
                let data = std::mem::take(&mut self.data);
                return serde_json::from_str(&data)
                    .map(Some)
                    .map_err(ClientError::Answer);
            }
        }
        Ok(None)
    }
}
