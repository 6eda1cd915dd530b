//! Standard input of a running process.

use async_recursion::async_recursion as boxed;
use bytes::Bytes;

use super::call::Call;
use super::{Guest, GuestError};
use crate::frame::CHUNK;
use crate::message::{Empty, InputKind, ProcessRef, ReplyKind, Request};

/// Writes block while the process does not read: the pressure is the process's own. Dropping the
/// writer leaves the input open for another. A capture of the sandbox ends the call underneath; it is
/// taken up again, and what the guest had not taken is sent once more.
pub struct StdinWriter {
    guest: Guest,
    id: String,
    call: Call,
    /// Bytes sent by calls that are over.
    before: u64,
    /// Bytes sent by this call, the piece under way not counted.
    sent: u64,
}

impl StdinWriter {
    pub(super) fn new(guest: Guest, id: String, call: Call) -> Self {
        Self {
            guest,
            id,
            call,
            before: 0,
            sent: 0,
        }
    }

    /// Queues bytes; [`StdinWriter::flush`] or [`StdinWriter::close`] tells whether they arrived.
    #[boxed]
    pub async fn write(&mut self, mut data: Bytes) -> Result<(), GuestError> {
        while !data.is_empty() {
            let part = data.slice(..data.len().min(CHUNK));
            match self.call.send_input(InputKind::Data(part.clone())).await {
                Ok(()) => {
                    self.sent += part.len() as u64;
                    drop(data.split_to(part.len()));
                }
                Err(GuestError::Quiesced) => {
                    // All pieces before this one were taken, and of this one all or nothing.
                    let taken = self.call.taken.checked_sub(self.sent);
                    let taken = usize::try_from(taken.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
                    if taken > part.len() {
                        return Err(GuestError::Unexpected("an impossible count of input"));
                    }
                    drop(data.split_to(taken));
                    self.take_up().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the process's pipe or terminal took everything; the bytes written by this call
    /// so far.
    #[boxed]
    pub async fn flush(&mut self) -> Result<u64, GuestError> {
        self.ask(|| InputKind::Flush(Empty {})).await
    }

    /// Ends the input: the process reads end of file (a terminal gets its end-of-file character).
    #[boxed]
    pub async fn close(mut self) -> Result<u64, GuestError> {
        self.ask(|| InputKind::End(Empty {})).await
    }

    async fn ask(&mut self, what: impl Fn() -> InputKind) -> Result<u64, GuestError> {
        loop {
            let answer = match self.call.send_input(what()).await {
                Ok(()) => self.call.reply().await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(ReplyKind::Done(done)) => return Ok(self.before + done.bytes),
                Ok(_) => return Err(GuestError::Unexpected("wanted done")),
                Err(GuestError::Quiesced) => self.take_up().await?,
                Err(error) => return Err(error),
            }
        }
    }

    async fn take_up(&mut self) -> Result<(), GuestError> {
        self.before += self.call.taken;
        self.sent = 0;
        let id = self.id.clone();
        self.call = self.guest.open(Request::Stdin(ProcessRef { id })).await?;
        Ok(())
    }
}
