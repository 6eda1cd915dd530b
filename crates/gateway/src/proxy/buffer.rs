//! Bytes of a client that have been read but not passed on.

use std::io;

use tokio::net::TcpStream;

/// Read at once; small, since most heads and hellos are.
const STEP: usize = 4096;

#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Everything, leaving no memory behind.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// The first bytes; the rest stays.
    pub fn take_first(&mut self, count: usize) -> Vec<u8> {
        let rest = self.bytes.split_off(count);
        std::mem::replace(&mut self.bytes, rest)
    }

    /// Waits for bytes and reads some, never holding more than `max`. Memory is taken only once
    /// there is something to read. 0 means that the client has no more to say.
    pub async fn read(&mut self, stream: &TcpStream, max: usize) -> io::Result<usize> {
        loop {
            stream.readable().await?;
            let held = self.bytes.len();
            let step = STEP.min(max.saturating_sub(held));
            if step == 0 {
                return Err(io::Error::other("the buffer is full"));
            }
            self.bytes.resize(held + step, 0);
            let read = stream.try_read(&mut self.bytes[held..]);
            self.bytes
                .truncate(held + read.as_ref().map_or(0, |count| *count));
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
        }
    }
}
