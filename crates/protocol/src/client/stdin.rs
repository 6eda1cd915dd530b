//! Standard input of a running process.

use bytes::Bytes;

use super::GuestError;
use super::call::Call;
use crate::message::{Empty, InputKind, ReplyKind};

/// Writes block while the process does not read: the pressure is the process's own. Dropping the
/// writer leaves the input open for another.
pub struct StdinWriter {
    call: Call,
}

impl StdinWriter {
    pub(super) fn new(call: Call) -> Self {
        Self { call }
    }

    /// Queues bytes; [`StdinWriter::flush`] or [`StdinWriter::close`] tells whether they arrived.
    pub async fn write(&mut self, data: Bytes) -> Result<(), GuestError> {
        self.call.send(data).await
    }

    /// Waits until the process's pipe or terminal took everything; the bytes written by this call
    /// so far.
    pub async fn flush(&mut self) -> Result<u64, GuestError> {
        self.call.send_input(InputKind::Flush(Empty {})).await?;
        self.done().await
    }

    /// Ends the input: the process reads end of file (a terminal gets its end-of-file character).
    pub async fn close(mut self) -> Result<u64, GuestError> {
        self.call.send_end().await?;
        self.done().await
    }

    async fn done(&mut self) -> Result<u64, GuestError> {
        match self.call.reply().await? {
            ReplyKind::Done(done) => Ok(done.bytes),
            _ => Err(GuestError::Unexpected("wanted done")),
        }
    }
}
