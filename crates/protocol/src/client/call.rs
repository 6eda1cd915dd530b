//! One open stream: frames out, bounded frames in.

use async_recursion::async_recursion as boxed;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::bounds::bound;
use super::{GuestError, Observe, Stream, tell};
use crate::frame::{self, CHUNK, FrameError, FrameReader};
use crate::message::{Empty, ErrorCode, Input, InputKind, Open, Reply, ReplyKind, Request};

pub(super) struct Call {
    pub stream: Box<dyn Stream>,
    pub frames: FrameReader,
    pub deadline: Duration,
    /// Bytes of input the guest took, once it ended the call because of a capture.
    pub taken: u64,
    pub observer: Option<Arc<dyn Observe>>,
    /// The observer heard that the guest took the request.
    told: bool,
    out: BytesMut,
}

impl Call {
    #[boxed]
    pub async fn open(
        stream: Box<dyn Stream>,
        request: Request,
        deadline: Duration,
    ) -> Result<Self, GuestError> {
        let mut call = Self {
            stream,
            frames: FrameReader::default(),
            deadline,
            taken: 0,
            observer: None,
            told: false,
            out: BytesMut::new(),
        };
        let open = Open::new(request);
        frame::encode(&open, &mut call.out)?;
        call.drain().await?;
        Ok(call)
    }

    /// The next reply, however long it takes.
    #[boxed]
    pub async fn reply(&mut self) -> Result<ReplyKind, GuestError> {
        let answer = self.read_reply().await;
        match &answer {
            // The call is taken up again, and then it is known.
            Err(GuestError::Quiesced) => {}
            Err(error) => tell(&self.observer, error),
            Ok(_) if self.told => {}
            Ok(_) => {
                self.told = true;
                if let Some(observer) = &self.observer {
                    observer.answered(Ok(()));
                }
            }
        }
        answer
    }

    async fn read_reply(&mut self) -> Result<ReplyKind, GuestError> {
        let reply: Reply = self.frames.next(&mut self.stream).await?;
        match bound(reply.kind.ok_or(GuestError::Unexpected("an empty reply"))?) {
            ReplyKind::Error(error) => Err(GuestError::Refused {
                code: ErrorCode::try_from(error.code).unwrap_or(ErrorCode::Internal),
                message: error.message,
            }),
            ReplyKind::Quiesce(quiesced) => {
                self.taken = quiesced.taken;
                Err(GuestError::Quiesced)
            }
            kind => Ok(kind),
        }
    }

    /// The next reply, which the guest owes within the deadline.
    #[boxed]
    pub async fn reply_soon(&mut self) -> Result<ReplyKind, GuestError> {
        let deadline = self.deadline;
        match timeout(deadline, self.reply()).await {
            Ok(answer) => answer,
            Err(_) => {
                let late = GuestError::TimedOut(deadline);
                tell(&self.observer, &late);
                Err(late)
            }
        }
    }

    /// Sends data in frames. When the guest hung up, its reason is the error.
    #[boxed]
    pub async fn send(&mut self, mut data: Bytes) -> Result<(), GuestError> {
        while !data.is_empty() {
            let part = data.split_to(data.len().min(CHUNK));
            self.send_input(InputKind::Data(part)).await?;
        }
        Ok(())
    }

    #[boxed]
    pub async fn send_end(&mut self) -> Result<(), GuestError> {
        self.send_input(InputKind::End(Empty {})).await
    }

    #[boxed]
    pub async fn send_input(&mut self, kind: InputKind) -> Result<(), GuestError> {
        frame::encode(&Input { kind: Some(kind) }, &mut self.out)?;
        match self.drain().await {
            Err(GuestError::Frame(FrameError::Closed)) => match self.reply_soon().await {
                Err(refused) => Err(refused),
                Ok(_) => Err(GuestError::Unexpected("an answer before the end of input")),
            },
            other => other,
        }
    }

    /// Writes what is encoded; a write that does not move for a whole deadline fails.
    async fn drain(&mut self) -> Result<(), GuestError> {
        while !self.out.is_empty() {
            let wrote = timeout(self.deadline, self.stream.write_buf(&mut self.out))
                .await
                .map_err(|_| GuestError::TimedOut(self.deadline))?
                .map_err(FrameError::from)?;
            if wrote == 0 {
                return Err(FrameError::Closed.into());
            }
        }
        Ok(())
    }
}
