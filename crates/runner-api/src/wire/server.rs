//! The privileged side: accepts calls and hands them to the host's [`RunnerApi`].

use async_recursion::async_recursion as boxed;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cove_wire::frame::RUNNER;
use cove_wire::{Hello, Needs, Side, stream};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::frame::{self, Kind};
use super::{Request, SIDE};
use crate::{GuestStream, RunnerApi, RunnerError};

/// Calls under way at once; further connections wait in the socket's own queue.
pub const CALLS_MAX: usize = 4096;
/// Of those, the ones that wait for entries of a log, and for events. Above that nobody waits: the answer
/// is what there is, so that no number of followers keeps other calls out.
pub const WAITING_LOGS_MAX: usize = 1024;
pub const WAITING_EVENTS_MAX: usize = 64;
/// Lists being answered at once: each holds everything there is. Further ones wait.
pub const LISTS_MAX: usize = 8;
/// Requests up to this size are read as they come: with all calls taken they need 256 MiB.
const SMALL_REQUEST_BYTES: usize = 64 * 1024;
/// Bytes of larger requests that are read and decoded at once; others wait for their turn.
const LARGE_REQUESTS_BYTES: usize = 64 * 1024 * 1024;
/// How long a caller has to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a caller has to take an answer in.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long calls that change something may go on after a shutdown was asked for.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after a failed accept (no descriptors left, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens at `path`, for the owner alone: `owner` if given, else this process's own uid. A socket
/// that is left from before is replaced; anything else at that place is not touched.
pub fn bind(path: &Path, owner: Option<u32>) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something that is not a socket is in the way",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    if owner.is_some() {
        chown(path, owner, None)?;
    }
    Ok(listener)
}

/// Serves calls of the given uids until `shutdown`, then lets changes under way come to their end.
#[boxed]
pub async fn serve(
    listener: UnixListener,
    api: Arc<dyn RunnerApi>,
    allowed_uids: Vec<u32>,
    shutdown: CancellationToken,
) {
    serve_as(SIDE, listener, api, allowed_uids, shutdown).await;
}

/// [`serve`] as a runner with other features: how one of another version answers.
pub async fn serve_as(
    side: Side,
    listener: UnixListener,
    api: Arc<dyn RunnerApi>,
    allowed_uids: Vec<u32>,
    shutdown: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(CALLS_MAX));
    let waiting = Arc::new(Waiting {
        logs: Semaphore::new(WAITING_LOGS_MAX),
        events: Semaphore::new(WAITING_EVENTS_MAX),
        lists: Semaphore::new(LISTS_MAX),
        large_requests: Semaphore::new(LARGE_REQUESTS_BYTES),
    });
    let calls = TaskTracker::new();
    loop {
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = Arc::clone(&permits).acquire_owned() => permit,
        };
        let Ok(permit) = permit else { break };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a call");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match stream.peer_cred() {
            Ok(peer) if allowed_uids.contains(&peer.uid()) => {}
            Ok(peer) => {
                tracing::warn!(
                    uid = peer.uid(),
                    "refused a call: this uid has no permission"
                );
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "refused a call: the peer is unknown");
                continue;
            }
        }
        let (api, tracker, shutdown) = (Arc::clone(&api), calls.clone(), shutdown.clone());
        let waiting = Arc::clone(&waiting);
        calls.spawn(async move {
            let _permit = permit;
            if let Err(error) = answer(side, stream, api, &tracker, &waiting, shutdown).await {
                tracing::debug!(%error, "a call was interrupted");
            }
        });
    }
    calls.close();
    if timeout(DRAIN_TIMEOUT, calls.wait()).await.is_err() {
        tracing::warn!(left = calls.len(), "shutdown interrupted calls");
    }
}

async fn answer(
    side: Side,
    mut stream: UnixStream,
    api: Arc<dyn RunnerApi>,
    calls: &TaskTracker,
    waiting: &Waiting,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let asked = async {
        let (head, received) = stream::read_head_with(&mut stream, RUNNER).await?;
        let (kind, length) = frame::announced(head)?;
        let turn = waiting.turn(length).await?;
        let content = stream::body(&mut stream, length).await?;
        Ok::<_, io::Error>((kind, content, received, turn))
    };
    let (kind, content, received, turn) = timeout(REQUEST_TIMEOUT, asked).await??;
    let request = read_request(&side, kind, &content);
    drop((content, turn));
    let mut request = match request {
        Ok(request) => request,
        Err(refusal) => return send_error(&mut stream, &refusal).await,
    };
    if request == Request::Hello {
        let hello = side.hello(&Needs::default());
        return timeout(
            ANSWER_TIMEOUT,
            frame::write(&mut stream, Kind::Done, &hello),
        )
        .await?;
    }
    if let Err(refusal) = request.bound() {
        return send_error(&mut stream, &refusal).await;
    }
    if let Request::Connect { .. }
    | Request::ConnectVolume { .. }
    | Request::Visitor { .. }
    | Request::ExportSnapshot { .. } = &request
    {
        let connecting = async {
            match &request {
                Request::ExportSnapshot { id, plain } => api.export_snapshot(id, *plain).await,
                Request::Connect { id } => api.connect(id).await,
                Request::ConnectVolume { id } => api.connect_volume(id).await,
                Request::Visitor { id } => api.visitor(id).await,
                _ => unreachable!("matched above"),
            }
        };
        let connected = tokio::select! {
            connected = connecting => connected,
            () = hung_up(&mut stream) => return Ok(()),
            () = shutdown.cancelled() => return Ok(()),
        };
        return match connected {
            Ok(guest) => hand_over(stream, guest, shutdown).await,
            Err(error) => send_error(&mut stream, &error).await,
        };
    }
    let _waiting = waiting.enter(&mut request);
    let _list = match request.is_list() {
        true => tokio::select! {
            turn = waiting.lists.acquire() => turn.ok(),
            () = hung_up(&mut stream) => return Ok(()),
            () = shutdown.cancelled() => return Ok(()),
        },
        false => None,
    };
    let sent = if request.changes_something() {
        // In a task of its own: it ends when the change does, whoever is still listening.
        let call = calls.spawn(async move {
            match (request, received) {
                (Request::ImportSnapshot { id }, Some(file)) => import(&*api, id, file).await,
                (request, _) => perform(&*api, request).await,
            }
        });
        call.await.map_err(io::Error::other)?
    } else {
        tokio::select! {
            outcome = perform(&*api, request) => outcome,
            () = hung_up(&mut stream) => return Ok(()),
            () = shutdown.cancelled() => return Ok(()),
        }
    };
    match sent {
        Ok(answer) => timeout(ANSWER_TIMEOUT, answer.send(&mut stream)).await?,
        Err(error) => send_error(&mut stream, &error).await,
    }
}

/// The request, if this side can do all that it restricts. That is looked at twice: what the hello names before
/// the request is read, and what its content needs.
fn read_request(side: &Side, kind: Kind, content: &[u8]) -> Result<Request, RunnerError> {
    let unreadable = |error: &dyn std::fmt::Display| RunnerError::Invalid {
        message: format!("the request could not be read: {error}"),
    };
    let request = match kind {
        Kind::Opening => {
            let (hello, request) = Hello::take(content).map_err(|error| unreadable(&error))?;
            side.accept(&hello)?;
            request
        }
        Kind::Request => {
            side.accept_version(0)?;
            content
        }
        _ => return Err(unreadable(&"the first frame must be a request")),
    };
    let request: Request = frame::parse(request).map_err(|error| unreadable(&error))?;
    side.accept_content(&request.needs())?;
    Ok(request)
}

/// Room for calls that wait for something to happen, and for what they bring.
struct Waiting {
    logs: Semaphore,
    events: Semaphore,
    lists: Semaphore,
    large_requests: Semaphore,
}

impl Waiting {
    /// Waits for room for a request of that length; small ones need none.
    async fn turn(&self, length: usize) -> io::Result<Option<SemaphorePermit<'_>>> {
        if length <= SMALL_REQUEST_BYTES {
            return Ok(None);
        }
        let bytes = u32::try_from(length).map_err(io::Error::other)?;
        let turn = self.large_requests.acquire_many(bytes).await;
        turn.map(Some).map_err(io::Error::other)
    }

    /// Takes a place for a call that waits; without one left it does not wait.
    fn enter(&self, request: &mut Request) -> Option<SemaphorePermit<'_>> {
        let (room, wait_ms) = match request {
            Request::Egress { query } => (&self.logs, &mut query.wait_ms),
            Request::Events { wait_ms, .. }
            | Request::Visitors { wait_ms }
            | Request::BudgetsWanted { wait_ms } => (&self.events, wait_ms),
            _ => return None,
        };
        if *wait_ms == 0 {
            return None;
        }
        let entered = room.try_acquire().ok();
        if entered.is_none() {
            *wait_ms = 0;
        }
        entered
    }
}

async fn send_error(stream: &mut UnixStream, error: &RunnerError) -> io::Result<()> {
    timeout(ANSWER_TIMEOUT, frame::write(stream, Kind::Error, error)).await?
}

/// Callers say nothing after their request, so anything readable is the end.
async fn hung_up(stream: &mut UnixStream) {
    let mut byte = [0];
    let _ = stream.read(&mut byte).await;
}

async fn hand_over(
    mut stream: UnixStream,
    guest: GuestStream,
    shutdown: CancellationToken,
) -> io::Result<()> {
    match guest {
        GuestStream::Unix(guest) => {
            let guest = guest.into_std()?;
            let frame = frame::encode(Kind::Descriptor, &())?;
            let send = stream::send_with(&mut stream, &frame, std::os::fd::AsFd::as_fd(&guest));
            timeout(ANSWER_TIMEOUT, send).await?
        }
        GuestStream::Other(mut guest) => {
            let announce = frame::write(&mut stream, Kind::Relay, &());
            timeout(ANSWER_TIMEOUT, announce).await??;
            tokio::select! {
                copied = tokio::io::copy_bidirectional(&mut stream, &mut guest) => copied.map(drop),
                () = shutdown.cancelled() => Ok(()),
            }
        }
    }
}

/// An answer that is ready to be sent.
enum Answer {
    Frame(Vec<u8>),
    List(Box<dyn SendList>),
}

impl Answer {
    async fn send(self, stream: &mut UnixStream) -> io::Result<()> {
        match self {
            Self::Frame(frame) => tokio::io::AsyncWriteExt::write_all(stream, &frame).await,
            Self::List(list) => list.send(stream).await,
        }
    }
}

#[async_trait::async_trait]
trait SendList: Send {
    async fn send(self: Box<Self>, stream: &mut UnixStream) -> io::Result<()>;
}

#[async_trait::async_trait]
impl<T: Serialize + Send + Sync> SendList for Vec<T> {
    async fn send(self: Box<Self>, stream: &mut UnixStream) -> io::Result<()> {
        frame::write_list(stream, &self).await
    }
}

fn whole(content: &impl Serialize) -> Result<Answer, RunnerError> {
    frame::encode(Kind::Done, content)
        .map(Answer::Frame)
        .map_err(|error| RunnerError::Internal {
            message: format!("the answer could not be written: {error}"),
        })
}

fn list<T: Serialize + Send + Sync + 'static>(items: Vec<T>) -> Result<Answer, RunnerError> {
    Ok(Answer::List(Box::new(items)))
}

async fn import(
    api: &dyn RunnerApi,
    id: cove_model::SnapshotId,
    file: std::os::fd::OwnedFd,
) -> Result<Answer, RunnerError> {
    let file = std::os::unix::net::UnixStream::from(file);
    let file = file
        .set_nonblocking(true)
        .and_then(|()| UnixStream::from_std(file))
        .map_err(|error| RunnerError::Invalid {
            message: format!("the passed descriptor is not a socket: {error}"),
        })?;
    whole(&api.import_snapshot(id, GuestStream::Unix(file)).await?)
}

async fn perform(api: &dyn RunnerApi, request: Request) -> Result<Answer, RunnerError> {
    match request {
        Request::Create { request } => whole(&api.create(*request).await?),
        Request::Get { id } => whole(&api.get(&id).await?),
        Request::List => list(api.list().await?),
        Request::Start { id } => whole(&api.start(&id).await?),
        Request::Stop { id, grace_ms } => whole(&api.stop(&id, grace_ms).await?),
        Request::Delete { id } => whole(&api.delete(&id).await?),
        Request::Reinstate { request } => whole(&api.reinstate(*request).await?),
        Request::Resize { id, patch } => whole(&api.resize(&id, patch).await?),
        Request::Sample { id } => whole(&api.sample(&id).await?),
        Request::Samples => list(api.samples().await?),
        Request::Visitors { wait_ms } => whole(&api.visitors(wait_ms).await?),
        Request::Events { after, wait_ms } => whole(&api.events(after, wait_ms).await?),
        Request::Freeze { id } => whole(&api.freeze(&id).await?),
        Request::Pause { id } => whole(&api.pause(&id).await?),
        Request::Resume { id } => whole(&api.resume(&id).await?),
        Request::Snapshot { request } => whole(&api.snapshot(request).await?),
        Request::Snapshots => list(api.snapshots().await?),
        Request::GetSnapshot { id } => whole(&api.get_snapshot(&id).await?),
        Request::DeleteSnapshot { id } => whole(&api.delete_snapshot(&id).await?),
        Request::Rollback { request } => whole(&api.rollback(request).await?),
        Request::ImageFromSnapshot { id, name, owner } => {
            whole(&api.image_from_snapshot(&id, &name, owner).await?)
        }
        Request::SetNetwork { id, policy } => whole(&api.set_network(&id, policy).await?),
        Request::Egress { query } => whole(&api.egress(query).await?),
        Request::LogRefusals { id, refusals } => whole(&api.log_refusals(&id, refusals).await?),
        Request::CreateVolume { request } => whole(&api.create_volume(request).await?),
        Request::Volumes => list(api.volumes().await?),
        Request::AdoptVolume { id, owner } => whole(&api.adopt_volume(&id, &owner).await?),
        Request::DeleteVolume { id } => whole(&api.delete_volume(&id).await?),
        Request::Images => list(api.images().await?),
        Request::AddImage { source, owner } => whole(&api.add_image(source, owner).await?),
        Request::ImageJob { id } => whole(&api.image_job(&id).await?),
        Request::RemoveImage { id } => whole(&api.remove_image(&id).await?),
        Request::MakeSecretKeys { org } => whole(&api.make_secret_keys(&org).await?),
        Request::RewrapSecretKeys { keys } => whole(&api.rewrap_secret_keys(keys).await?),
        Request::SetSecrets { secrets } => whole(&api.set_secrets(secrets).await?),
        Request::ExposedSecrets { id } => whole(&api.exposed_secrets(&id).await?),
        Request::SecretUses => whole(&api.secret_uses().await?),
        Request::BudgetsWanted { wait_ms } => whole(&api.budgets_wanted(wait_ms).await?),
        Request::GrantBudgets { grants } => whole(&api.grant_budgets(grants).await?),
        Request::Approvals { org } => whole(&api.approvals(&org).await?),
        Request::DecideApproval { org, id, decision } => {
            whole(&api.decide_approval(&org, &id, decision).await?)
        }
        Request::Identity => whole(&api.identity().await?),
        Request::Check => whole(&api.check().await?),
        Request::Tiers => whole(&api.tiers().await?),
        Request::Inventory => whole(&api.inventory().await?),
        Request::Host => whole(&api.host().await?),
        Request::Hello
        | Request::Connect { .. }
        | Request::ConnectVolume { .. }
        | Request::Visitor { .. }
        | Request::ExportSnapshot { .. } => Err(RunnerError::Internal {
            message: "this call is answered elsewhere".into(),
        }),
        Request::ImportSnapshot { .. } => Err(RunnerError::Invalid {
            message: "no descriptor to import from was passed".into(),
        }),
    }
}
