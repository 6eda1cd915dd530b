//! The host's side of every call: opens a stream through [`Connect`], sends the request, and hands
//! back typed answers. What a guest sends is hostile until it passed through here: frames are
//! bounded, texts cut, listings capped, offsets checked.

use async_recursion::async_recursion as boxed;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::frame::FrameError;
use crate::message::{
    ArchiveIn, ArchiveOut, ConnectPort, Done, Empty, ErrorCode, FileInfo, Info, ListDir, MakeDir,
    Metrics, Move, OutputFrom, PathRequest, Port, Process, ProcessRef, Quiesce, ReadFile, Refusals,
    Remove, ReplyKind, Request, Resize, SetAttributes, Shutdown, Signal, Start, Watch, WriteFile,
};

mod bounds;
mod call;
mod files;
mod follow;
mod listed;
mod port;
mod services;
mod stdin;

pub use bounds::{LISTING_MAX, PROCESSES_MAX, TEXT_MAX};
pub use files::{ArchiveReader, DirListing, FileReader, Upload, Watcher};
pub use follow::{ExecResult, Follow, FollowEvent};
pub use listed::{Bill, Listed, Pay};
pub use port::PortStream;
pub use stdin::StdinWriter;

use call::Call;

/// How long a call with one answer may take, and how long a stream may go without the next frame
/// it owes, unless [`Guest::within`] says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
/// How long opening a stream to the guest may take.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// What a shutdown may take beyond its grace time: killing, flushing, answering.
pub const SHUTDOWN_MARGIN: Duration = Duration::from_secs(30);

/// A byte stream to a guest.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Opens byte streams to one guest; each carries one call.
#[async_trait::async_trait]
pub trait Connect: Send + Sync {
    async fn connect(&self) -> io::Result<Box<dyn Stream>>;
}

#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error("the guest refused: {message}")]
    Refused { code: ErrorCode, message: String },
    #[error("the guest cannot be reached")]
    Connect(#[source] io::Error),
    #[error("lost the connection to the guest")]
    Frame(#[from] FrameError),
    #[error("the guest answered out of turn: {0}")]
    Unexpected(&'static str),
    #[error("the guest did not answer within {0:?}")]
    TimedOut(Duration),
    /// Whoever asked holds as much as they may.
    #[error("there is no memory for the list of the guest")]
    NoRoom,
    /// The guest is being captured; come back by process id and offset.
    #[error("the guest ended the call because it is being captured")]
    Quiesced,
}

impl GuestError {
    /// The guest's own code, when it was the guest that refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Connects to a guest that listens on a path this process can reach as it is.
#[derive(Clone, Debug)]
pub struct UnixConnect {
    pub path: std::path::PathBuf,
}

#[async_trait::async_trait]
impl Connect for UnixConnect {
    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(tokio::net::UnixStream::connect(&self.path).await?))
    }
}

/// Hears how calls end, for whoever has to write it down.
pub trait Observe: Send + Sync {
    /// Whether calls like this one are of interest.
    fn wants(&self, request: &Request) -> bool;
    /// Such a call is about to be made.
    fn asked(&self);
    /// The guest answered it, or it failed. More than once where a call has more answers.
    fn answered(&self, outcome: Result<(), &GuestError>);
}

/// One guest. Cheap to clone; holds no connection between calls.
#[derive(Clone)]
pub struct Guest {
    connect: Arc<dyn Connect>,
    deadline: Duration,
    observer: Option<Arc<dyn Observe>>,
    payer: Option<Arc<dyn Pay>>,
}

impl Guest {
    pub fn new(connect: Arc<dyn Connect>) -> Self {
        Self {
            connect,
            deadline: DEFAULT_DEADLINE,
            observer: None,
            payer: None,
        }
    }

    /// The same guest, with somebody who pays for what it lists. Listings of a guest without one are
    /// bounded and not paid for.
    pub fn paid_by(&self, payer: Arc<dyn Pay>) -> Self {
        Self {
            payer: Some(payer),
            ..self.clone()
        }
    }

    /// The same guest, with somebody who hears how its calls end.
    pub fn observed_by(&self, observer: Arc<dyn Observe>) -> Self {
        Self {
            observer: Some(observer),
            ..self.clone()
        }
    }

    /// The same guest with another deadline for its calls.
    pub fn within(&self, deadline: Duration) -> Self {
        Self {
            deadline,
            ..self.clone()
        }
    }

    /// The same guest for calls that wait for a process inside, which may take as long as it likes.
    pub fn patient(&self) -> Self {
        self.within(Duration::MAX)
    }

    async fn open(&self, request: Request) -> Result<Call, GuestError> {
        let observer = self.observer_of(&request);
        if let Some(observer) = &observer {
            observer.asked();
        }
        let opening = async {
            let patience = CONNECT_DEADLINE.min(self.deadline);
            let stream = timeout(patience, self.connect.connect())
                .await
                .map_err(|_| GuestError::TimedOut(patience))?
                .map_err(GuestError::Connect)?;
            Call::open(stream, request, self.deadline).await
        };
        let mut call = opening.await.inspect_err(|error| tell(&observer, error))?;
        call.observer = observer;
        Ok(call)
    }

    fn observer_of(&self, request: &Request) -> Option<Arc<dyn Observe>> {
        let wants = |observer: &&Arc<dyn Observe>| observer.wants(request);
        self.observer.as_ref().filter(wants).cloned()
    }

    async fn ask(&self, request: Request) -> Result<ReplyKind, GuestError> {
        let observer = self.observer_of(&request);
        let asking = async { self.open(request).await?.reply().await };
        match timeout(self.deadline, asking).await {
            Ok(answer) => answer,
            Err(_) => {
                let late = GuestError::TimedOut(self.deadline);
                tell(&observer, &late);
                Err(late)
            }
        }
    }

    async fn ask_done(&self, request: Request) -> Result<Done, GuestError> {
        match self.ask(request).await? {
            ReplyKind::Done(done) => Ok(done),
            _ => Err(GuestError::Unexpected("wanted done")),
        }
    }

    #[boxed]
    pub async fn info(&self) -> Result<Info, GuestError> {
        match self.ask(Request::Info(Empty {})).await? {
            ReplyKind::Info(info) => Ok(info),
            _ => Err(GuestError::Unexpected("wanted info")),
        }
    }

    /// Starts a process and leaves it to the guest. `follow` is cleared: use
    /// [`Guest::start_following`] for output on the same call.
    #[boxed]
    pub async fn start(&self, mut start: Start) -> Result<Process, GuestError> {
        start.follow = false;
        start.report_refusals = false;
        match self.ask(Request::Start(start)).await? {
            ReplyKind::Started(process) => Ok(process),
            _ => Err(GuestError::Unexpected("wanted started")),
        }
    }

    /// Starts a process and stays as its foreground follower: nothing is dropped, and a follower
    /// that does not read holds the process up. The first event is `Started`.
    #[boxed]
    pub async fn start_following(&self, mut start: Start) -> Result<Follow, GuestError> {
        start.follow = true;
        let of = OutputFrom {
            id: start.id.clone(),
            follow: true,
            ..OutputFrom::default()
        };
        let refusals = start.report_refusals;
        let call = self.open(Request::Start(start)).await?;
        Ok(Follow::new(self.clone(), of, call, true).with_refusals(refusals))
    }

    /// Runs a process to its end and collects at most [`cove_limits::EXEC_OUTPUT_MAX`] bytes of each
    /// stream; the rest is counted and dropped.
    #[boxed]
    pub async fn exec(&self, start: Start) -> Result<ExecResult, GuestError> {
        self.start_following(start).await?.collect().await
    }

    /// Replays a process's output from the given offsets and, with `follow`, goes on until its exit.
    #[boxed]
    pub async fn follow(&self, from: OutputFrom) -> Result<Follow, GuestError> {
        let call = self.open(Request::Output(from.clone())).await?;
        Ok(Follow::new(self.clone(), from, call, false))
    }

    pub async fn stdin(&self, id: impl Into<String>) -> Result<StdinWriter, GuestError> {
        let id = id.into();
        let call = self.open(Request::Stdin(process_ref(id.clone()))).await?;
        Ok(StdinWriter::new(self.clone(), id, call))
    }

    #[boxed]
    pub async fn signal(&self, signal: Signal) -> Result<(), GuestError> {
        self.ask_done(Request::Signal(signal)).await.map(drop)
    }

    #[boxed]
    pub async fn resize(&self, resize: Resize) -> Result<(), GuestError> {
        self.ask_done(Request::Resize(resize)).await.map(drop)
    }

    /// Every process the guest still knows, at most [`PROCESSES_MAX`].
    #[boxed]
    pub async fn processes(&self) -> Result<Listed<Process>, GuestError> {
        timeout(self.deadline, async {
            let mut call = self.open(Request::Processes(Empty {})).await?;
            let mut all = Listed::new(self.payer.as_deref());
            loop {
                match call.reply().await? {
                    ReplyKind::Processes(part) => {
                        if all.len() + part.processes.len() > PROCESSES_MAX {
                            return Err(GuestError::Unexpected("too many processes"));
                        }
                        all.extend(part.processes)?;
                    }
                    ReplyKind::Done(_) => return Ok(all),
                    _ => return Err(GuestError::Unexpected("wanted processes")),
                }
            }
        })
        .await
        .map_err(|_| GuestError::TimedOut(self.deadline))?
    }

    pub async fn process(&self, id: impl Into<String>) -> Result<Process, GuestError> {
        match self.ask(Request::Process(process_ref(id))).await? {
            ReplyKind::Process(process) => Ok(process),
            _ => Err(GuestError::Unexpected("wanted a process")),
        }
    }

    #[boxed]
    pub async fn read_file(&self, read: ReadFile) -> Result<FileReader, GuestError> {
        FileReader::start(self.open(Request::ReadFile(read)).await?).await
    }

    #[boxed]
    pub async fn write_file(&self, write: WriteFile) -> Result<Upload, GuestError> {
        Ok(Upload::new(self.open(Request::WriteFile(write)).await?))
    }

    #[boxed]
    pub async fn stat(&self, path: PathRequest) -> Result<FileInfo, GuestError> {
        match self.ask(Request::Stat(path)).await? {
            ReplyKind::File(info) => Ok(info),
            _ => Err(GuestError::Unexpected("wanted a file")),
        }
    }

    /// At most [`LISTING_MAX`] entries, whatever the guest sends.
    #[boxed]
    pub async fn list(&self, list: ListDir) -> Result<DirListing, GuestError> {
        let limit = list.limit;
        let entries = Listed::new(self.payer.as_deref());
        timeout(self.deadline, async {
            files::collect_listing(self.open(Request::List(list)).await?, limit, entries).await
        })
        .await
        .map_err(|_| GuestError::TimedOut(self.deadline))?
    }

    #[boxed]
    pub async fn mkdir(&self, make: MakeDir) -> Result<(), GuestError> {
        self.ask_done(Request::MakeDir(make)).await.map(drop)
    }

    #[boxed]
    pub async fn rename(&self, r#move: Move) -> Result<(), GuestError> {
        self.ask_done(Request::Move(r#move)).await.map(drop)
    }

    #[boxed]
    pub async fn remove(&self, remove: Remove) -> Result<(), GuestError> {
        self.ask_done(Request::Remove(remove)).await.map(drop)
    }

    #[boxed]
    pub async fn set_attributes(&self, set: SetAttributes) -> Result<(), GuestError> {
        self.ask_done(Request::SetAttributes(set)).await.map(drop)
    }

    /// The tree under a path as a tar stream.
    #[boxed]
    pub async fn archive_out(&self, archive: ArchiveOut) -> Result<ArchiveReader, GuestError> {
        Ok(ArchiveReader::new(
            self.open(Request::ArchiveOut(archive)).await?,
        ))
    }

    /// Takes a tar stream in; [`Upload::finish`] tells bytes and entries.
    #[boxed]
    pub async fn archive_in(&self, archive: ArchiveIn) -> Result<Upload, GuestError> {
        Ok(Upload::new(self.open(Request::ArchiveIn(archive)).await?))
    }

    /// Returns once the watch stands: everything after that moment is reported.
    #[boxed]
    pub async fn watch(&self, watch: Watch) -> Result<Watcher, GuestError> {
        Watcher::start(self.clone(), watch).await
    }

    #[boxed]
    pub async fn ports(&self) -> Result<Vec<Port>, GuestError> {
        match self.ask(Request::Ports(Empty {})).await? {
            ReplyKind::Ports(ports) => Ok(ports.ports),
            _ => Err(GuestError::Unexpected("wanted ports")),
        }
    }

    /// A connection to a TCP port inside; returns once it stands.
    #[boxed]
    pub async fn connect_port(&self, port: u16) -> Result<PortStream, GuestError> {
        let request = Request::ConnectPort(ConnectPort { port: port.into() });
        PortStream::start(self.open(request).await?).await
    }

    #[boxed]
    pub async fn metrics(&self) -> Result<Metrics, GuestError> {
        match self.ask(Request::Metrics(Empty {})).await? {
            ReplyKind::Metrics(metrics) => Ok(metrics),
            _ => Err(GuestError::Unexpected("wanted metrics")),
        }
    }

    /// What was refused because the network is off, since this was last asked.
    #[boxed]
    pub async fn take_refusals(&self) -> Result<Refusals, GuestError> {
        match self.ask(Request::TakeRefusals(Empty {})).await? {
            ReplyKind::Refusals(refusals) => Ok(refusals),
            _ => Err(GuestError::Unexpected("wanted refusals")),
        }
    }

    /// Asks the guest to let go of every connection, so that it can be captured. Returns once it has;
    /// it then takes no call until it is sent SIGUSR1.
    #[boxed]
    pub async fn quiesce(&self, wait: Duration) -> Result<(), GuestError> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let deadline = wait.saturating_add(self.deadline);
        timeout(deadline, async {
            let mut call = self.open(Request::Quiesce(Quiesce { wait_ms })).await?;
            match call.reply().await? {
                ReplyKind::Done(_) => {}
                _ => return Err(GuestError::Unexpected("wanted done")),
            }
            // Only its end of the connection counts, and that is closed when ours reads the end.
            match call.reply().await {
                Err(GuestError::Frame(FrameError::Closed)) => Ok(()),
                _ => Err(GuestError::Unexpected("wanted the end")),
            }
        })
        .await
        .map_err(|_| GuestError::TimedOut(deadline))?
    }

    /// Tells a restored guest to look who it is now.
    #[boxed]
    pub async fn refresh(&self) -> Result<(), GuestError> {
        self.ask_done(Request::Refresh(Empty {})).await.map(drop)
    }

    /// Ends every process inside and the guest itself. Returns when all is flushed.
    #[boxed]
    pub async fn shutdown(&self, grace: Duration) -> Result<(), GuestError> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.within(grace.saturating_add(SHUTDOWN_MARGIN))
            .ask_done(Request::Shutdown(Shutdown { grace_ms }))
            .await
            .map(drop)
    }
}

fn tell(observer: &Option<Arc<dyn Observe>>, error: &GuestError) {
    if let Some(observer) = observer {
        observer.answered(Err(error));
    }
}

fn process_ref(id: impl Into<String>) -> ProcessRef {
    ProcessRef { id: id.into() }
}
