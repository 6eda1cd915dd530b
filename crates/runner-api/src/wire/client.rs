//! The unprivileged side: a [`RunnerApi`] that asks over the socket.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_model::approval::{Approval, Decision};
use cove_model::secret::{OrgKeys, OrgSecrets};
use cove_model::{
    ApprovalId, NetworkPolicy, OrgId, ResourcesPatch, SandboxId, SnapshotId, VolumeId,
};
use cove_wire::frame::RUNNER;
use cove_wire::{Hello, stream};
use serde::de::DeserializeOwned;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::frame::{self, Kind, LIST_BYTES_MAX};
use super::{Request, SIDE};
use crate::{
    BudgetGrant, BudgetsWanted, ByteStream, CreateRequest, EgressBatch, EgressQuery, EventBatch,
    GuestStream, HostIdentity, HostInventory, HostReport, ImageJob, ImageOwner, ImageSource,
    ImageView, Imported, Refusals, Reinstate, RollbackRequest, RolledBack, RunnerApi, RunnerError,
    Sample, SandboxView, SecretUses, SnapshotRequest, SnapshotView, TierReport, VolumeRequest,
    VolumeView,
};

/// How long the socket may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a question may take.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a change may take.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(180);

/// How long memory may take to go to disk or come back: many gigabytes on a slow one.
const CAPTURE_TIMEOUT: Duration = Duration::from_secs(900);
/// How long a snapshot may take to arrive, over whatever line its sender has.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(6 * 3600);

/// A way to the runner of another host. Descriptors cannot travel there: where one would come, the connection itself
/// continues as what the descriptor stands for.
#[async_trait]
pub trait Dial: Send + Sync + 'static {
    /// A connection for one call, which the caller sends.
    async fn call(&self) -> io::Result<Box<dyn ByteStream>>;
    /// Sends a call with the reading end of `stream`; the answer comes over what is returned.
    async fn call_with(
        &self,
        frame: Vec<u8>,
        stream: GuestStream,
    ) -> io::Result<Box<dyn ByteStream>>;
}

/// A runner behind a unix socket, here or on another host. Holds no connection between calls.
#[derive(Clone)]
pub struct Client(Way);

#[derive(Clone)]
enum Way {
    Here(PathBuf),
    There(Arc<dyn Dial>),
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Way::Here(path) => f.debug_tuple("Client").field(path).finish(),
            Way::There(_) => f.write_str("Client(remote)"),
        }
    }
}

fn unreachable(error: &io::Error) -> RunnerError {
    RunnerError::Unreachable {
        message: error.to_string(),
    }
}

fn out_of_turn() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of the wrong kind")
}

fn opening(request: &Request) -> io::Result<Vec<u8>> {
    frame::encode_opening(&SIDE.hello(&request.needs()), request)
}

/// A refusal. One that this side does not know is reported in its own words.
fn refusal(content: &[u8]) -> io::Result<RunnerError> {
    frame::parse(content).or_else(|error| {
        let refusal: serde_json::Value = frame::parse(content)?;
        let code = refusal.get("code").and_then(serde_json::Value::as_str);
        let text = refusal.get("message").and_then(serde_json::Value::as_str);
        match code {
            Some(code) => Ok(RunnerError::Internal {
                message: format!(
                    "the runner is newer and refuses with {code:?}: {:?}",
                    text.unwrap_or_default()
                ),
            }),
            None => Err(error),
        }
    })
}

async fn connect(path: &std::path::Path) -> io::Result<UnixStream> {
    timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await?
}

impl Client {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(Way::Here(path.into()))
    }

    /// The runner of another host.
    pub fn remote(dial: Arc<dyn Dial>) -> Self {
        Self(Way::There(dial))
    }

    async fn open(&self, request: &Request) -> io::Result<GuestStream> {
        let mut stream = match &self.0 {
            Way::Here(path) => GuestStream::Unix(connect(path).await?),
            Way::There(dial) => GuestStream::Other(dial.call().await?),
        };
        stream.write_all(&opening(request)?).await?;
        stream.flush().await?;
        Ok(stream)
    }

    /// Which version the runner speaks, and what it can enforce.
    pub async fn hello(&self) -> Result<Hello, RunnerError> {
        self.question(Request::Hello).await
    }

    async fn within<T>(
        limit: Duration,
        call: impl Future<Output = io::Result<Result<T, RunnerError>>>,
    ) -> Result<T, RunnerError> {
        let outcome = timeout(limit, call).await.unwrap_or_else(|_| {
            let text = format!("no answer within {} s", limit.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        });
        outcome.map_err(|error| unreachable(&error))?
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        request: Request,
        limit: Duration,
    ) -> Result<T, RunnerError> {
        Self::within(limit, async {
            let mut stream = self.open(&request).await?;
            let (kind, content) = frame::read(&mut stream).await?;
            match kind {
                Kind::Done => Ok(Ok(frame::parse(&content)?)),
                Kind::Error => Ok(Err(refusal(&content)?)),
                _ => Err(out_of_turn()),
            }
        })
        .await
    }

    async fn question<T: DeserializeOwned>(&self, request: Request) -> Result<T, RunnerError> {
        self.ask(request, QUESTION_TIMEOUT).await
    }

    async fn change<T: DeserializeOwned>(&self, request: Request) -> Result<T, RunnerError> {
        self.ask(request, CHANGE_TIMEOUT).await
    }

    /// A call that is answered with a connection.
    async fn stream(&self, request: Request) -> Result<GuestStream, RunnerError> {
        Self::within(QUESTION_TIMEOUT, async {
            let mut stream = match self.open(&request).await? {
                GuestStream::Unix(stream) => stream,
                GuestStream::Other(mut stream) => {
                    let (kind, content) = frame::read(&mut stream).await?;
                    return match kind {
                        // What the descriptor stands for is now at the other end.
                        Kind::Descriptor | Kind::Relay => Ok(Ok(GuestStream::Other(stream))),
                        Kind::Error => Ok(Err(refusal(&content)?)),
                        _ => Err(out_of_turn()),
                    };
                }
            };
            let (head, received) = stream::read_head_with(&mut stream, RUNNER).await?;
            let (kind, length) = frame::announced(head)?;
            let content = stream::body(&mut stream, length).await?;
            match (kind, received) {
                (Kind::Descriptor, Some(received)) => {
                    let guest = std::os::unix::net::UnixStream::from(received);
                    guest.set_nonblocking(true)?;
                    Ok(Ok(GuestStream::Unix(UnixStream::from_std(guest)?)))
                }
                (Kind::Relay, _) => Ok(Ok(GuestStream::Unix(stream))),
                (Kind::Error, _) => Ok(Err(refusal(&content)?)),
                _ => Err(out_of_turn()),
            }
        })
        .await
    }

    /// Sends the request with the reading end of `file`; what is not a socket is copied into one.
    async fn send_file(&self, request: &Request, file: GuestStream) -> io::Result<GuestStream> {
        let path = match &self.0 {
            Way::Here(path) => path,
            Way::There(dial) => {
                let answer = dial.call_with(opening(request)?, file).await?;
                return Ok(GuestStream::Other(answer));
            }
        };
        let socket = match file {
            GuestStream::Unix(socket) => socket,
            GuestStream::Other(mut file) => {
                let (mut into, socket) = UnixStream::pair()?;
                tokio::spawn(async move {
                    // The runner sees the end of it, early or not.
                    let _ = tokio::io::copy(&mut file, &mut into).await;
                });
                socket
            }
        };
        let mut stream = connect(path).await?;
        let frame = opening(request)?;
        let socket = socket.into_std()?;
        stream::send_with(&mut stream, &frame, std::os::fd::AsFd::as_fd(&socket)).await?;
        Ok(GuestStream::Unix(stream))
    }

    async fn collect<T: DeserializeOwned>(&self, request: Request) -> Result<Vec<T>, RunnerError> {
        Self::within(QUESTION_TIMEOUT, async {
            let mut stream = self.open(&request).await?;
            let (mut all, mut bytes) = (Vec::new(), 0);
            loop {
                let (kind, content) = frame::read(&mut stream).await?;
                bytes += content.len();
                if bytes > LIST_BYTES_MAX {
                    return Err(io::Error::other("the list is too long"));
                }
                match kind {
                    Kind::More | Kind::Done => all.extend(frame::parse::<Vec<T>>(&content)?),
                    Kind::Error => return Ok(Err(refusal(&content)?)),
                    _ => return Err(out_of_turn()),
                }
                if kind == Kind::Done {
                    return Ok(Ok(all));
                }
            }
        })
        .await
    }
}

#[async_trait]
impl RunnerApi for Client {
    async fn create(&self, request: CreateRequest) -> Result<SandboxView, RunnerError> {
        let request = Box::new(request);
        self.change(Request::Create { request }).await
    }

    async fn get(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.question(Request::Get { id: id.clone() }).await
    }

    async fn list(&self) -> Result<Vec<SandboxView>, RunnerError> {
        self.collect(Request::List).await
    }

    async fn start(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.change(Request::Start { id: id.clone() }).await
    }

    async fn stop(&self, id: &SandboxId, grace_ms: u64) -> Result<SandboxView, RunnerError> {
        let limit = CHANGE_TIMEOUT.saturating_add(Duration::from_millis(grace_ms));
        let id = id.clone();
        self.ask(Request::Stop { id, grace_ms }, limit).await
    }

    async fn delete(&self, id: &SandboxId) -> Result<(), RunnerError> {
        self.change(Request::Delete { id: id.clone() }).await
    }

    async fn reinstate(&self, request: Reinstate) -> Result<SandboxView, RunnerError> {
        let request = Box::new(request);
        self.change(Request::Reinstate { request }).await
    }

    async fn resize(
        &self,
        id: &SandboxId,
        patch: ResourcesPatch,
    ) -> Result<SandboxView, RunnerError> {
        let id = id.clone();
        self.change(Request::Resize { id, patch }).await
    }

    async fn sample(&self, id: &SandboxId) -> Result<Sample, RunnerError> {
        self.question(Request::Sample { id: id.clone() }).await
    }

    async fn samples(&self) -> Result<Vec<(SandboxId, Sample)>, RunnerError> {
        self.collect(Request::Samples).await
    }

    async fn connect(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        self.stream(Request::Connect { id: id.clone() }).await
    }

    async fn visitors(&self, wait_ms: u64) -> Result<Vec<SandboxId>, RunnerError> {
        let limit = QUESTION_TIMEOUT.saturating_add(Duration::from_millis(wait_ms));
        self.ask(Request::Visitors { wait_ms }, limit).await
    }

    async fn visitor(&self, id: &SandboxId) -> Result<GuestStream, RunnerError> {
        self.stream(Request::Visitor { id: id.clone() }).await
    }

    async fn events(&self, after: u64, wait_ms: u64) -> Result<EventBatch, RunnerError> {
        let limit = QUESTION_TIMEOUT.saturating_add(Duration::from_millis(wait_ms));
        self.ask(Request::Events { after, wait_ms }, limit).await
    }

    async fn freeze(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.change(Request::Freeze { id: id.clone() }).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.ask(Request::Pause { id: id.clone() }, CAPTURE_TIMEOUT)
            .await
    }

    async fn resume(&self, id: &SandboxId) -> Result<SandboxView, RunnerError> {
        self.ask(Request::Resume { id: id.clone() }, CAPTURE_TIMEOUT)
            .await
    }

    async fn snapshot(&self, request: SnapshotRequest) -> Result<SnapshotView, RunnerError> {
        self.ask(Request::Snapshot { request }, CAPTURE_TIMEOUT)
            .await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotView>, RunnerError> {
        self.collect(Request::Snapshots).await
    }

    async fn get_snapshot(&self, id: &SnapshotId) -> Result<SnapshotView, RunnerError> {
        self.question(Request::GetSnapshot { id: id.clone() }).await
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), RunnerError> {
        self.change(Request::DeleteSnapshot { id: id.clone() })
            .await
    }

    async fn rollback(&self, request: RollbackRequest) -> Result<RolledBack, RunnerError> {
        self.ask(Request::Rollback { request }, CAPTURE_TIMEOUT)
            .await
    }

    async fn export_snapshot(
        &self,
        id: &SnapshotId,
        plain: bool,
    ) -> Result<GuestStream, RunnerError> {
        let id = id.clone();
        self.stream(Request::ExportSnapshot { id, plain }).await
    }

    async fn import_snapshot(
        &self,
        id: SnapshotId,
        file: GuestStream,
    ) -> Result<Imported, RunnerError> {
        let request = Request::ImportSnapshot { id };
        Self::within(TRANSFER_TIMEOUT, async {
            let mut stream = self.send_file(&request, file).await?;
            let (kind, content) = frame::read(&mut stream).await?;
            match kind {
                Kind::Done => Ok(Ok(frame::parse(&content)?)),
                Kind::Error => Ok(Err(refusal(&content)?)),
                _ => Err(out_of_turn()),
            }
        })
        .await
    }

    async fn image_from_snapshot(
        &self,
        id: &SnapshotId,
        name: &str,
        owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError> {
        let (id, name) = (id.clone(), name.to_owned());
        self.change(Request::ImageFromSnapshot { id, name, owner })
            .await
    }

    async fn set_network(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
    ) -> Result<SandboxView, RunnerError> {
        let id = id.clone();
        self.change(Request::SetNetwork { id, policy }).await
    }

    async fn egress(&self, query: EgressQuery) -> Result<EgressBatch, RunnerError> {
        let limit = QUESTION_TIMEOUT.saturating_add(Duration::from_millis(query.wait_ms));
        self.ask(Request::Egress { query }, limit).await
    }

    async fn log_refusals(&self, id: &SandboxId, refusals: Refusals) -> Result<(), RunnerError> {
        let id = id.clone();
        self.change(Request::LogRefusals { id, refusals }).await
    }

    async fn create_volume(&self, request: VolumeRequest) -> Result<VolumeView, RunnerError> {
        self.change(Request::CreateVolume { request }).await
    }

    async fn volumes(&self) -> Result<Vec<VolumeView>, RunnerError> {
        self.collect(Request::Volumes).await
    }

    async fn adopt_volume(&self, id: &VolumeId, owner: &str) -> Result<VolumeView, RunnerError> {
        let (id, owner) = (id.clone(), owner.to_owned());
        self.change(Request::AdoptVolume { id, owner }).await
    }

    async fn delete_volume(&self, id: &VolumeId) -> Result<(), RunnerError> {
        self.change(Request::DeleteVolume { id: id.clone() }).await
    }

    async fn connect_volume(&self, id: &VolumeId) -> Result<GuestStream, RunnerError> {
        self.stream(Request::ConnectVolume { id: id.clone() }).await
    }

    async fn images(&self) -> Result<Vec<ImageView>, RunnerError> {
        self.collect(Request::Images).await
    }

    async fn add_image(
        &self,
        source: ImageSource,
        owner: ImageOwner,
    ) -> Result<ImageJob, RunnerError> {
        self.change(Request::AddImage { source, owner }).await
    }

    async fn image_job(&self, id: &str) -> Result<ImageJob, RunnerError> {
        self.question(Request::ImageJob { id: id.to_owned() }).await
    }

    async fn remove_image(&self, id: &str) -> Result<(), RunnerError> {
        self.change(Request::RemoveImage { id: id.to_owned() })
            .await
    }

    async fn make_secret_keys(&self, org: &OrgId) -> Result<OrgKeys, RunnerError> {
        self.question(Request::MakeSecretKeys { org: org.clone() })
            .await
    }

    async fn rewrap_secret_keys(&self, keys: OrgKeys) -> Result<OrgKeys, RunnerError> {
        self.question(Request::RewrapSecretKeys { keys }).await
    }

    async fn set_secrets(&self, secrets: OrgSecrets) -> Result<(), RunnerError> {
        self.change(Request::SetSecrets { secrets }).await
    }

    async fn exposed_secrets(
        &self,
        id: &SandboxId,
    ) -> Result<BTreeMap<String, String>, RunnerError> {
        self.question(Request::ExposedSecrets { id: id.clone() })
            .await
    }

    async fn secret_uses(&self) -> Result<SecretUses, RunnerError> {
        self.question(Request::SecretUses).await
    }

    async fn budgets_wanted(&self, wait_ms: u64) -> Result<BudgetsWanted, RunnerError> {
        let limit = QUESTION_TIMEOUT.saturating_add(Duration::from_millis(wait_ms));
        self.ask(Request::BudgetsWanted { wait_ms }, limit).await
    }

    async fn grant_budgets(&self, grants: Vec<BudgetGrant>) -> Result<(), RunnerError> {
        self.change(Request::GrantBudgets { grants }).await
    }

    async fn approvals(&self, org: &OrgId) -> Result<Vec<Approval>, RunnerError> {
        self.question(Request::Approvals { org: org.clone() }).await
    }

    async fn decide_approval(
        &self,
        org: &OrgId,
        id: &ApprovalId,
        decision: Decision,
    ) -> Result<(), RunnerError> {
        self.change(Request::DecideApproval {
            org: org.clone(),
            id: id.clone(),
            decision,
        })
        .await
    }

    async fn identity(&self) -> Result<HostIdentity, RunnerError> {
        self.question(Request::Identity).await
    }

    async fn check(&self) -> Result<(), RunnerError> {
        self.question(Request::Check).await
    }

    async fn tiers(&self) -> Result<Vec<TierReport>, RunnerError> {
        self.question(Request::Tiers).await
    }

    async fn inventory(&self) -> Result<HostInventory, RunnerError> {
        self.question(Request::Inventory).await
    }

    async fn host(&self) -> Result<HostReport, RunnerError> {
        self.question(Request::Host).await
    }
}
