//! The blocking side of a connection, for worker threads.

use std::io::{self, IoSlice, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::BytesMut;
use cove_protocol::frame::{self, CHUNK, HEADER};
use cove_protocol::message::{Done, Input, InputKind, Reply, ReplyKind};
use prost::Message;
use rustix::buffer::spare_capacity;

use crate::call::Ended;
use crate::failure::Failure;

/// A caller that neither sends nor takes anything for this long is given up.
const STALL_LIMIT: Duration = Duration::from_secs(300);

pub struct Conn {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// The frame handed out last; dropped from the buffer at the next read.
    used: usize,
}

pub enum Chunk<'a> {
    Data(&'a [u8]),
    End,
}

impl Conn {
    pub fn new(stream: UnixStream, rest: &[u8]) -> Self {
        // Without the limits a stalled caller would hold its thread for longer, no more.
        let _ = stream.set_read_timeout(Some(STALL_LIMIT));
        let _ = stream.set_write_timeout(Some(STALL_LIMIT));
        Self {
            stream,
            buffer: rest.to_vec(),
            used: 0,
        }
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The next piece of input.
    pub fn next(&mut self) -> Result<Chunk<'_>, Ended> {
        self.buffer.drain(..self.used);
        self.used = 0;
        loop {
            let announced = frame::announced(&self.buffer)?;
            if let Some(length) = announced
                && self.buffer.len() >= HEADER + length
            {
                self.used = HEADER + length;
                break;
            }
            let wanted = announced.map_or(CHUNK, |length| HEADER + length);
            self.buffer
                .reserve(wanted.saturating_sub(self.buffer.len()).max(1));
            match rustix::io::read(&self.stream, spare_capacity(&mut self.buffer)) {
                Ok(0) | Err(_) => return Err(Ended::Lost),
                Ok(_) => {}
            }
        }
        let body = &self.buffer[HEADER..self.used];
        if let Some(data) = frame::input_data(body) {
            return Ok(Chunk::Data(data));
        }
        match Input::decode(body).map(|input| input.kind) {
            Ok(Some(InputKind::End(_))) => Ok(Chunk::End),
            Ok(Some(InputKind::Data(data))) if data.is_empty() => Ok(Chunk::Data(&[])),
            _ => Err(Failure::invalid("wanted data or its end").into()),
        }
    }

    pub fn reply(&mut self, kind: ReplyKind) -> Result<(), Ended> {
        let mut buffer = BytesMut::new();
        frame::encode(&Reply { kind: Some(kind) }, &mut buffer)?;
        self.stream.write_all(&buffer).map_err(|_| Ended::Lost)
    }

    pub fn done(&mut self, bytes: u64, entries: u64) -> Result<(), Ended> {
        self.reply(ReplyKind::Done(Done { bytes, entries }))
    }

    pub fn fail(&mut self, failure: Failure) {
        // A caller that is gone cannot be answered.
        let _ = self.reply(ReplyKind::Error(failure.into_message()));
    }

    /// One `Data` frame straight from `payload`.
    pub fn data(&mut self, payload: &[u8]) -> Result<(), Ended> {
        let header = frame::data_header(payload.len())?;
        write_both(&self.stream, header.as_ref(), payload).map_err(|_| Ended::Lost)
    }
}

fn write_both(mut stream: &UnixStream, first: &[u8], second: &[u8]) -> io::Result<()> {
    let wrote = stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)])?;
    if wrote < first.len() {
        stream.write_all(&first[wrote..])?;
        return stream.write_all(second);
    }
    stream.write_all(&second[wrote - first.len()..])
}
