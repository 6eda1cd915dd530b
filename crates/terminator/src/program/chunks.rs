//! Bodies in the encoding `aws-chunked` whose chunks are signed: each is signed anew, with the same length.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};

use super::sigv4::Chain;

/// A chunk is held until all of it is here, since its signature comes before it. Clients send 64 KiB or 128 KiB.
pub const CHUNK_MAX: usize = 1 << 20;
/// A chunk's first line, and all trailers.
const LINE_MAX: usize = 256;
const TRAILERS_MAX: usize = 4096;
const SIGNATURE: &str = ";chunk-signature=";
const TRAILER_SIGNATURE: &str = "x-amz-trailer-signature";
const END: &[u8] = b"\r\n";

enum Next {
    Head,
    Data { head: String, size: usize },
    Trailers,
    Nothing,
}

/// Finds chunks in pieces that are cut anywhere, and signs them.
pub struct Resigner {
    chain: Chain,
    trailer: bool,
    held: BytesMut,
    next: Next,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("signed chunks: {what}"))
}

fn is_signature(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

impl Resigner {
    pub fn new(chain: Chain, trailer: bool) -> Self {
        Self {
            chain,
            trailer,
            held: BytesMut::new(),
            next: Next::Head,
        }
    }

    /// What can be sent after this piece.
    pub fn push(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        self.held.extend_from_slice(piece);
        let mut ready = BytesMut::new();
        while self.step(&mut ready)? {}
        Ok(ready.freeze())
    }

    /// Refuses a body that ends before its last chunk.
    pub fn finish(&self) -> io::Result<()> {
        match self.next {
            Next::Nothing => Ok(()),
            _ => Err(malformed("the body ends early")),
        }
    }

    fn step(&mut self, ready: &mut BytesMut) -> io::Result<bool> {
        match &self.next {
            Next::Head => {
                let Some(at) = find(&self.held, END) else {
                    return match self.held.len() > LINE_MAX {
                        true => Err(malformed("the line before a chunk is too long")),
                        false => Ok(false),
                    };
                };
                let line = self.held.split_to(at + END.len());
                let line = std::str::from_utf8(&line[..at]).unwrap_or_default();
                let parts = line.split_once(SIGNATURE);
                let (head, _) = parts
                    .filter(|(_, signature)| is_signature(signature))
                    .ok_or_else(|| malformed("a chunk has no signature"))?;
                let digits =
                    (1..=8).contains(&head.len()) && head.bytes().all(|b| b.is_ascii_hexdigit());
                let size = usize::from_str_radix(head, 16).ok();
                let size = size.filter(|size| digits && *size <= CHUNK_MAX);
                let size = size.ok_or_else(|| malformed("a chunk is longer than 1 MiB"))?;
                let head = head.to_owned();
                if size == 0 && self.trailer {
                    let signature = self.chain.chunk(b"");
                    ready.extend_from_slice(format!("{head}{SIGNATURE}{signature}\r\n").as_bytes());
                    self.next = Next::Trailers;
                } else {
                    self.next = Next::Data { head, size };
                }
            }
            Next::Data { head, size } => {
                let size = *size;
                if self.held.len() < size + END.len() {
                    return Ok(false);
                }
                if self.held[size..size + END.len()] != *END {
                    return Err(malformed("a chunk has another length than it says"));
                }
                let signature = self.chain.chunk(&self.held[..size]);
                ready.extend_from_slice(format!("{head}{SIGNATURE}{signature}\r\n").as_bytes());
                ready.extend_from_slice(&self.held.split_to(size + END.len()));
                self.next = match size {
                    0 => Next::Nothing,
                    _ => Next::Head,
                };
            }
            Next::Trailers => {
                let Some(at) = find(&self.held, b"\r\n\r\n") else {
                    return match self.held.len() > TRAILERS_MAX {
                        true => Err(malformed("the trailers are too long")),
                        false => Ok(false),
                    };
                };
                let text = self.held.split_to(at + 4);
                let text = std::str::from_utf8(&text[..at])
                    .map_err(|_| malformed("trailers are not text"))?;
                ready.extend_from_slice(self.trailers(text)?.as_bytes());
                self.next = Next::Nothing;
            }
            Next::Nothing if self.held.is_empty() => return Ok(false),
            Next::Nothing => return Err(malformed("something follows the last chunk")),
        }
        Ok(true)
    }

    fn trailers(&mut self, text: &str) -> io::Result<String> {
        let wrong = || malformed("the trailers have no signature at their end");
        let (lines, last) = text.rsplit_once('\n').ok_or_else(wrong)?;
        let (name, signature) = last.split_once(':').ok_or_else(wrong)?;
        if !name.eq_ignore_ascii_case(TRAILER_SIGNATURE) || !is_signature(signature.trim()) {
            return Err(wrong());
        }
        let mut canonical = String::new();
        for line in lines
            .split('\n')
            .map(str::trim)
            .filter(|line| !line.is_empty())
        {
            let (name, value) = line.split_once(':').ok_or_else(wrong)?;
            canonical.push_str(&format!("{}:{}\n", name.to_ascii_lowercase(), value.trim()));
        }
        let signature = self.chain.trailer(&canonical);
        Ok(format!("{lines}\n{name}:{signature}\r\n\r\n"))
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// A body on its way to the server.
pub struct Resigned<B> {
    body: B,
    resigner: Resigner,
    size: SizeHint,
    ended: bool,
}

impl<B: Body<Data = Bytes>> Resigned<B> {
    pub fn new(body: B, chain: Chain, trailer: bool) -> Self {
        Self {
            // Signatures have one length.
            size: body.size_hint(),
            body,
            resigner: Resigner::new(chain, trailer),
            ended: false,
        }
    }
}

impl<B> Body for Resigned<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        while !this.ended {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers of HTTP's own are not among what is signed.
                    let Ok(piece) = frame.into_data() else {
                        continue;
                    };
                    let ready = this
                        .resigner
                        .push(&piece)
                        .inspect_err(|_| this.ended = true)?;
                    if !ready.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(ready))));
                    }
                }
                Some(Err(error)) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                None => {
                    this.ended = true;
                    this.resigner.finish()?;
                }
            }
        }
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}
