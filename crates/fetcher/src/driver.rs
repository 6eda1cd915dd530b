//! The privileged side: starts `cove-fetcher` for one pull, asks it, and checks what it answers. Holds
//! the bytes of layers on their way and never looks into them.

use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use cove_confine::SealedProgram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::error::RegistryError;
use crate::wire::{
    DATA_BYTES_MAX, Digest, HEADER_BYTES, Header, Layer, Manifest, Order, Reply, Request,
    STREAMS_MAX,
};

/// Frames of one layer that wait to be written to disk.
const WAITING_FRAMES: usize = 16;
/// From the start of the program until it knows what the image consists of.
const RESOLVE_MAX: Duration = Duration::from_secs(300);

/// What happens to one layer.
#[derive(Debug)]
pub enum BlobEvent {
    Data(Vec<u8>),
    /// What came so far is void.
    Restart,
    End(Result<(), RegistryError>),
}

type Streams = Arc<Mutex<[Option<mpsc::Sender<BlobEvent>>; STREAMS_MAX as usize]>>;

/// One running program. It is killed when this is dropped.
#[derive(Debug)]
pub struct Fetch {
    _child: Child,
    requests: tokio::sync::Mutex<OwnedWriteHalf>,
    streams: Streams,
    reader: JoinHandle<()>,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn helper(detail: impl ToString) -> RegistryError {
    RegistryError::Helper {
        detail: detail.to_string(),
    }
}

impl Fetch {
    /// Starts the program as `uid`, which must be root's to give and own nothing, and has it look up
    /// what the order asks for.
    pub async fn start(
        program: &SealedProgram,
        uid: u32,
        order: Order,
    ) -> Result<(Self, Manifest), RegistryError> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(helper)?;
        ours.set_nonblocking(true).map_err(helper)?;
        let child = Command::from(program.command())
            .arg(uid.to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(helper)?;
        let (replies, requests) = UnixStream::from_std(ours).map_err(helper)?.into_split();
        let (resolved, answer) = oneshot::channel();
        let streams: Streams = Arc::default();
        let reader = tokio::spawn(read(replies, Arc::clone(&streams), resolved));
        let fetch = Self {
            _child: child,
            requests: tokio::sync::Mutex::new(requests),
            streams,
            reader,
        };
        fetch.ask(&Request::Start(Box::new(order))).await?;
        let manifest = tokio::time::timeout(RESOLVE_MAX, answer)
            .await
            .map_err(|_| RegistryError::Timeout {
                seconds: RESOLVE_MAX.as_secs(),
            })?
            .map_err(|_| helper("it ended without an answer"))??;
        Ok((fetch, manifest))
    }

    /// Asks for a layer from its byte `from` on. At most [`STREAMS_MAX`] at once; what the layer is is
    /// for the caller to check.
    pub async fn blob(
        &self,
        layer: &Layer,
        from: u64,
    ) -> Result<mpsc::Receiver<BlobEvent>, RegistryError> {
        let (sender, receiver) = mpsc::channel(WAITING_FRAMES);
        let stream = {
            let mut streams = lock(&self.streams);
            let free = streams.iter().position(Option::is_none);
            let free = free.ok_or_else(|| helper("too many layers at once"))?;
            streams[free] = Some(sender);
            u8::try_from(free).map_err(helper)?
        };
        let Digest(digest) = layer.digest;
        self.ask(&Request::Blob {
            stream,
            digest: Digest(digest),
            size: layer.size,
            from,
        })
        .await?;
        Ok(receiver)
    }

    async fn ask(&self, request: &Request) -> Result<(), RegistryError> {
        let frame = request.encode();
        self.requests
            .lock()
            .await
            .write_all(&frame)
            .await
            .map_err(helper)
    }
}

fn lock(
    streams: &Streams,
) -> parking_lot::MutexGuard<'_, [Option<mpsc::Sender<BlobEvent>>; STREAMS_MAX as usize]> {
    streams.lock()
}

/// Hands out what the program says until it ends or says something it must not.
async fn read(
    mut replies: OwnedReadHalf,
    streams: Streams,
    resolved: oneshot::Sender<Result<Manifest, RegistryError>>,
) {
    let mut resolved = Some(resolved);
    let error = loop {
        let reply = match next(&mut replies).await {
            Ok(reply) => reply,
            Err(error) => break error,
        };
        let (stream, event) = match reply {
            Reply::Resolved(manifest) => match resolved.take() {
                // Nobody waits any more when the pull was given up.
                Some(answer) => {
                    let _ = answer.send(Ok(*manifest));
                    continue;
                }
                None => break helper("it answered twice"),
            },
            Reply::Failed(error) => match resolved.take() {
                Some(answer) => {
                    let _ = answer.send(Err(error));
                    continue;
                }
                None => break helper("it answered twice"),
            },
            Reply::Data { stream, bytes } => (stream, BlobEvent::Data(bytes)),
            Reply::Restart { stream } => (stream, BlobEvent::Restart),
            Reply::End { stream, result } => (stream, BlobEvent::End(result)),
        };
        let place = usize::from(stream);
        let ends = matches!(event, BlobEvent::End(_));
        let sender = match ends {
            true => lock(&streams)[place].take(),
            false => lock(&streams)[place].clone(),
        };
        match sender {
            // A layer that nobody wants any more is read and dropped.
            Some(sender) => drop(sender.send(event).await),
            None => break helper("it sent a layer that was not asked for"),
        }
    };
    if let Some(answer) = resolved {
        let _ = answer.send(Err(error.clone()));
    }
    let waiting = std::mem::take(&mut *lock(&streams));
    for sender in waiting.into_iter().flatten() {
        let _ = sender.send(BlobEvent::End(Err(error.clone()))).await;
    }
}

async fn next(replies: &mut OwnedReadHalf) -> Result<Reply, RegistryError> {
    let mut header = [0; HEADER_BYTES];
    replies.read_exact(&mut header).await.map_err(helper)?;
    let header = Header::of_reply(header).map_err(helper)?;
    let mut payload = Vec::with_capacity(header.length.min(DATA_BYTES_MAX));
    let mut rest = replies.take(header.length as u64);
    rest.read_to_end(&mut payload).await.map_err(helper)?;
    if payload.len() != header.length {
        return Err(helper("it ended in the middle of a frame"));
    }
    Reply::decode(header, payload).map_err(helper)
}
