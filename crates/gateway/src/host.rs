//! The engine's side: starts the gateway process or adopts the one that runs, keeps it alive, and
//! tells it the policies.
//!
//! ```text
//! <directory>/control.sock   calls, root only
//! <directory>/process        pid and start time of the process, to end one that does not answer
//! <directory>/egress.0 .1    what it logged, for the process after it
//! <directory>/log            what it had to say; empty in ordinary life
//! <directory>/outdated       which older program serves on, since when (its modification time)
//! ```
//! The table of policies is kept here as well, so that a process that was killed is replaced by one
//! that knows all of them before it reads its first packet.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use cove_model::egress::{EgressBatch, EgressEntry, EgressQuery};
use cove_model::network::Cidr;
use cove_model::{NetworkPolicy, SandboxId};
use tokio::net::UnixStream;
use tokio::time::timeout;

pub use crate::control::Termination;
use crate::control::{self, Call, Hello, Placed, Reply, Request};
use crate::limits::Limits;
use crate::policy::Policy;

mod age;
mod journal;
mod packages;
mod presets;
mod process;
mod resolvers;
#[cfg(test)]
mod scripted;
mod watch;

pub use packages::PackageHosts;
pub use presets::{Audience, PresetError, Presets, is_operators};

/// How long an ordinary call may take; it takes well under a millisecond.
const CALL: Duration = Duration::from_secs(5);
/// Between tries to reach a process that is being replaced.
const RETRY: Duration = Duration::from_millis(10);
/// How long a process that lives may leave a hello unanswered before it counts as stuck.
const HELLO: Duration = Duration::from_secs(20);
/// What a call may take beyond the wait it asks for.
const SLACK: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// The static program, `cove_embedded::GATEWAY`.
    pub program: &'static [u8],
    /// Made if it is missing, for its owner only.
    pub directory: PathBuf,
    pub instance: String,
    /// Whom the process becomes. Nobody else on the host should be that.
    pub uid: u32,
    pub gid: u32,
    /// Where the packet filter sends questions, over UDP and TCP.
    pub dns: SocketAddrV4,
    /// Where the packet filter redirects connections to.
    pub proxy: SocketAddrV4,
    /// Resolvers to ask; empty for those of `resolv_conf`, followed when it changes.
    pub resolvers: Vec<SocketAddr>,
    pub resolv_conf: PathBuf,
    pub presets: Presets,
    /// Addresses of sandboxes and of the gateway: never dialled, never answered.
    pub reserved: Vec<Cidr>,
    pub limits: Limits,
    pub owners: Owners,
    pub terminations: Terminations,
}

/// Which sandboxes hold secrets. The engine notes it before it places a sandbox.
#[derive(Debug, Clone, Default)]
pub struct Terminations(Arc<Mutex<BTreeMap<SandboxId, Termination>>>);

impl Terminations {
    pub fn note(&self, sandbox: &SandboxId, termination: Termination) {
        self.0.lock().insert(sandbox.clone(), termination);
    }

    pub fn forget(&self, sandbox: &SandboxId) {
        self.0.lock().remove(sandbox);
    }

    fn of(&self, sandbox: &SandboxId) -> Option<Termination> {
        self.0.lock().get(sandbox).cloned()
    }
}

/// Whose each sandbox is. The engine notes it before it places a sandbox.
#[derive(Debug, Clone, Default)]
pub struct Owners(Arc<Mutex<BTreeMap<SandboxId, (String, Audience)>>>);

impl Owners {
    fn all(&self) -> MutexGuard<'_, BTreeMap<SandboxId, (String, Audience)>> {
        self.0.lock()
    }

    pub fn note(&self, sandbox: &SandboxId, owner: &str, audience: Audience) {
        let owner = (owner.to_owned(), audience);
        self.all().insert(sandbox.clone(), owner);
    }

    pub fn forget(&self, sandbox: &SandboxId) {
        self.all().remove(sandbox);
    }

    /// One that nobody noted is the operator's, who uses the engine without organisations.
    fn of(&self, sandbox: &SandboxId) -> (String, Audience) {
        let nobody = || (String::new(), Audience::Operator);
        self.all().get(sandbox).cloned().unwrap_or_else(nobody)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error(transparent)]
    Preset(#[from] PresetError),
    #[error("cannot {step} for the egress gateway")]
    Start {
        step: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the egress gateway did not start: {message}")]
    Refused { message: String },
    #[error("the egress gateway lacks the features: {}", .features.join(", "))]
    MissingFeature { features: Vec<String> },
    #[error("the egress gateway does not answer")]
    Silent(#[source] io::Error),
}

/// A handle that is cheap to clone. The process goes on when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Gateway(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: GatewayConfig,
    /// What the program is, to tell an older one from ours.
    build: String,
    table: Mutex<Table>,
    /// Held while the table is changed and the process informed, and while the process is sent the whole
    /// table: what it hears last is what the table says. Taken after `life` where both are.
    telling: tokio::sync::Mutex<()>,
    /// Held while the process is started or replaced.
    life: tokio::sync::Mutex<Life>,
}

#[derive(Debug, Default)]
struct Life {
    /// The process, where it is a child of ours.
    child: Option<Child>,
    /// The resolvers that it got last.
    upstreams: Vec<SocketAddr>,
    stopped: bool,
}

impl Gateway {
    /// Adopts the process of this instance if one runs, else starts one. `placed` are the sandboxes
    /// there are; of what an adopted process had, nothing else stays.
    pub async fn start(
        config: GatewayConfig,
        placed: Vec<(Ipv4Addr, SandboxId, NetworkPolicy)>,
    ) -> Result<Self, GatewayError> {
        let build = process::build_of(config.program);
        let mut table = BTreeMap::new();
        for (address, sandbox, policy) in placed {
            // One list that cannot be read any more must not leave all others without a gateway.
            let (owner, audience) = config.owners.of(&sandbox);
            let expanded = config.presets.expand_async(&policy, audience).await;
            let policy = expanded.unwrap_or_else(|error| {
                tracing::error!(%error, %sandbox, "cannot apply a network policy; the sandbox reaches nothing");
                Policy::default()
            });
            let placed = Placed {
                address,
                owner,
                termination: config.terminations.of(&sandbox),
                sandbox,
                policy,
            };
            table.insert(address, placed);
        }
        let gateway = Self(Arc::new(Inner {
            config,
            build,
            table: Mutex::new(table),
            telling: tokio::sync::Mutex::default(),
            life: tokio::sync::Mutex::default(),
        }));
        gateway.0.ensure(Fresh::Policies).await?;
        watch::begin(&gateway.0);
        Ok(gateway)
    }

    /// In force when this returns; connections that it forbids are being cut.
    pub async fn set_policy(
        &self,
        address: Ipv4Addr,
        sandbox: &SandboxId,
        policy: &NetworkPolicy,
    ) -> Result<(), GatewayError> {
        let (owner, audience) = self.0.config.owners.of(sandbox);
        let policy = self.0.config.presets.expand_async(policy, audience).await?;
        let placed = Placed {
            address,
            owner,
            termination: self.0.config.terminations.of(sandbox),
            sandbox: sandbox.clone(),
            policy,
        };
        self.place(placed).await
    }

    async fn place(&self, placed: Placed) -> Result<(), GatewayError> {
        let change = |table: &mut Table| {
            table.insert(placed.address, placed.clone());
        };
        self.0.change(change, Call::Place(placed.clone())).await
    }

    /// [`Gateway::set_policy`] for threads that may wait. The runtime the gateway was started on must
    /// be running: it is what replaces a process that died.
    pub fn set_policy_blocking(
        &self,
        address: Ipv4Addr,
        sandbox: &SandboxId,
        policy: &NetworkPolicy,
    ) -> Result<(), GatewayError> {
        let (owner, audience) = self.0.config.owners.of(sandbox);
        let placed = Placed {
            address,
            owner,
            termination: self.0.config.terminations.of(sandbox),
            sandbox: sandbox.clone(),
            policy: self.0.config.presets.expand(policy, audience)?,
        };
        let _telling = self.0.telling.blocking_lock();
        self.0.table().insert(address, placed.clone());
        self.0.tell_blocking(|| Call::Place(placed.clone()))
    }

    /// [`Gateway::remove`] for threads that may wait.
    pub fn remove_blocking(&self, address: Ipv4Addr) -> Result<(), GatewayError> {
        let _telling = self.0.telling.blocking_lock();
        self.0.table().remove(&address);
        self.0.tell_blocking(|| Call::Remove { address })
    }

    /// Nobody sits at that address any more; its connections are cut. The log stays.
    pub async fn remove(&self, address: Ipv4Addr) -> Result<(), GatewayError> {
        let change = |table: &mut Table| {
            table.remove(&address);
        };
        self.0.change(change, Call::Remove { address }).await
    }

    /// The sandbox is deleted, and its log with it.
    pub async fn forget(&self, sandbox: &SandboxId) -> Result<(), GatewayError> {
        let sandbox = sandbox.clone();
        self.0.tell(Call::Forget { sandbox }).await
    }

    /// Decisions that the packet filter took.
    pub async fn append(&self, entries: Vec<(Ipv4Addr, EgressEntry)>) -> Result<(), GatewayError> {
        self.0.tell(Call::Append(entries)).await
    }

    /// What was decided for a sandbox; waits for the first entry if the query says so.
    pub async fn egress(&self, query: EgressQuery) -> Result<EgressBatch, GatewayError> {
        let after = query.after;
        let limit = Duration::from_millis(query.wait_ms) + SLACK;
        match self.0.call(Call::Egress(query), limit).await? {
            Reply::Egress(batch) => Ok(batch),
            Reply::Unknown => Ok(EgressBatch {
                entries: Vec::new(),
                next: after,
                lost: after != 0,
            }),
            other => Err(unexpected(other)),
        }
    }

    /// Who serves now.
    pub async fn hello(&self) -> Result<Hello, GatewayError> {
        self.0.hello().await
    }

    /// Leaves the process to the next engine: this one starts none any more, whatever becomes of it.
    pub async fn let_go(&self) {
        self.0.life.lock().await.stopped = true;
    }

    /// Ends the process and every connection it carries. Without this it lives on.
    pub async fn stop(&self) -> Result<(), GatewayError> {
        let mut life = self.0.life.lock().await;
        life.stopped = true;
        self.0.end(&mut life).await
    }
}

type Table = BTreeMap<Ipv4Addr, Placed>;

/// What a process that is found running has to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fresh {
    /// The table, since it may have another engine's.
    Policies,
    /// Nothing; it has heard everything.
    Nothing,
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// Changes the table and tells the process. When that has died it is replaced by one that has the
    /// table, so that the change is in force as well.
    async fn change(
        &self,
        change: impl FnOnce(&mut Table),
        call: Call,
    ) -> Result<(), GatewayError> {
        let told = {
            let _telling = self.telling.lock().await;
            change(&mut self.table());
            self.call(call, CALL).await
        };
        match told {
            Ok(reply) => expect_done(reply),
            Err(_) => self.ensure(Fresh::Policies).await,
        }
    }

    /// A call about logs. What is lost when the process has died stays lost.
    async fn tell(&self, call: Call) -> Result<(), GatewayError> {
        let error = match self.call(call, CALL).await {
            Ok(reply) => return expect_done(reply),
            Err(error) => error,
        };
        self.ensure(Fresh::Policies).await?;
        Err(error)
    }

    async fn call(&self, call: Call, limit: Duration) -> Result<Reply, GatewayError> {
        let asked = async {
            let mut stream = self.connect().await?;
            let request = Request::new(&self.config.instance, call);
            control::write(&mut stream, &request).await?;
            control::read_reply(&mut stream).await
        };
        let asked = timeout(limit, asked).await;
        asked
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(GatewayError::Silent)
    }

    /// Tries until it is heard: the process that replaces one that died has the table, so a call
    /// that comes twice does no harm.
    fn tell_blocking(&self, call: impl Fn() -> Call) -> Result<(), GatewayError> {
        let deadline = Instant::now() + CALL;
        loop {
            let error = match self.call_blocking(call()) {
                Ok(reply) => return expect_done(reply),
                Err(error) => error,
            };
            if Instant::now() > deadline {
                return Err(GatewayError::Silent(error));
            }
            std::thread::sleep(RETRY);
        }
    }

    fn call_blocking(&self, call: Call) -> io::Result<Reply> {
        let (path, _directory) = process::control_path(&self.config.directory)?;
        let mut stream = std::os::unix::net::UnixStream::connect(path)?;
        stream.set_read_timeout(Some(CALL))?;
        stream.set_write_timeout(Some(CALL))?;
        let request = Request::new(&self.config.instance, call);
        stream.write_all(&control::encode(&request)?)?;
        control::read_reply_blocking(&mut stream)
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        let (path, _directory) = process::control_path(&self.config.directory)?;
        UnixStream::connect(path).await
    }

    async fn hello(&self) -> Result<Hello, GatewayError> {
        match self.call(Call::Hello, CALL).await? {
            Reply::Hello(hello) => Ok(hello),
            other => Err(unexpected(other)),
        }
    }

    /// A process that serves and knows the table, adopted or new.
    async fn ensure(&self, fresh: Fresh) -> Result<(), GatewayError> {
        let mut life = self.life.lock().await;
        if life.stopped {
            return Err(GatewayError::Silent(io::ErrorKind::NotConnected.into()));
        }
        if let Ok(hello) = &self.found().await {
            // One that lacks what this engine may ask for is replaced before it is asked.
            let ours = hello.has_everything()
                && hello.instance == self.config.instance
                && (hello.dns, hello.proxy) == (self.config.dns, self.config.proxy);
            if ours && !self.is_outdated(hello) {
                if fresh == Fresh::Policies {
                    self.push(&mut life).await?;
                }
                return Ok(());
            }
        }
        self.end(&mut life).await?;
        self.launch(&mut life).await
    }

    /// The process that serves. One that lives is asked again: it carries everybody's connections, and
    /// a call that failed is no reason to cut them.
    async fn found(&self) -> Result<Hello, GatewayError> {
        let deadline = Instant::now() + HELLO;
        loop {
            let found = self.hello().await;
            // One whose answers make no sense is of another version, and asking again changes nothing.
            let senseless = matches!(&found, Err(GatewayError::Silent(error))
                if error.kind() == io::ErrorKind::InvalidData);
            let again =
                found.is_err() && !senseless && Instant::now() < deadline && self.is_alive();
            if !again {
                return found;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Tells a process that was there before us what we know.
    async fn push(&self, life: &mut Life) -> Result<(), GatewayError> {
        let _telling = self.telling.lock().await;
        let table = self.table().values().cloned().collect();
        expect_done(self.call(Call::Replace(table), CALL).await?)?;
        let upstreams = self.upstreams();
        expect_done(self.call(Call::Upstreams(upstreams.clone()), CALL).await?)?;
        life.upstreams = upstreams;
        Ok(())
    }

    fn upstreams(&self) -> Vec<SocketAddr> {
        if self.config.resolvers.is_empty() {
            resolvers::of(&self.config.resolv_conf)
        } else {
            self.config.resolvers.clone()
        }
    }
}

fn expect_done(reply: Reply) -> Result<(), GatewayError> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(unexpected(other)),
    }
}

fn unexpected(reply: Reply) -> GatewayError {
    let message = match reply {
        Reply::Refused { message } => message,
        Reply::Missing { features } => return GatewayError::MissingFeature { features },
        other => format!("it answered {other:?}"),
    };
    GatewayError::Refused { message }
}
