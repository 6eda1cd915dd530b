//! The fleet: its certificate authority, the nodes that joined, and tokens by which others join.
//!
//! The authority is made with the first join token. Its key is in the database, wrapped by the fleet key, a file that
//! is not. Nodes are rows; this process holds a [`Host`] with a [`Link`] for each, and compares the two every few
//! seconds.

use async_recursion::async_recursion as boxed;
use std::sync::Arc;

use cove_limits::{
    HOST_LABELS_MAX, HOST_TAINTS_MAX, JOIN_TOKEN_MAX_S, JOIN_TOKEN_S, JOIN_TOKENS_MAX,
    NODE_ADDRESS_MAX, NODES_MAX,
};
use cove_model::secret::WrappedKeys;
use cove_model::{HostId, HostTraits, TraitsChange};
use cove_node::{
    Authority, CONTROL_DAYS, ControlTls, Issued, JoinAnswer, JoinRequest, JoinToken, Link,
    NODE_DAYS, Report, TokenKey, check_name,
};
use cove_runner_api::HostInventory;
use cove_store::{FleetRecord, JoinTokenRecord, Joined, NodeRecord, StoreError};
use cove_vault::{HostKeys, VaultError, Zeroizing};
use parking_lot::{Mutex, RwLock};
use time::{Duration, OffsetDateTime};
use tokio::sync::Semaphore;

use crate::Control;
use crate::audit::Operation;
use crate::error::{ControlError, ErrorCode};
use crate::hosts::Host;
use crate::principal::Principal;

mod lost;

/// What the wrapped bytes belong to.
const AUTHORITY: &[u8] = b"cove fleet authority 1";
const TOKEN: &[u8] = b"cove join token 1";

/// Joins that are looked at at once; whoever asks for one is nobody yet.
const JOINS_MAX: usize = 4;

/// The fleet, once there is one.
pub(crate) struct KnownFleet {
    known: RwLock<Option<Arc<Fleet>>>,
    joins: Semaphore,
    /// Held from reading the rows until the hosts are in line with them, so that old rows replace no newer ones.
    syncing: tokio::sync::Mutex<()>,
}

impl Default for KnownFleet {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
            joins: Semaphore::new(JOINS_MAX),
            syncing: tokio::sync::Mutex::default(),
        }
    }
}

/// What this process needs to speak to nodes.
pub(crate) struct Fleet {
    id: String,
    authority: Authority,
    keys: Arc<HostKeys>,
    tls: Arc<ControlTls>,
    /// When this process got its certificate.
    issued_at: Mutex<OffsetDateTime>,
}

/// The way to a node, and what is known of it.
pub(crate) struct NodeLink {
    pub name: String,
    pub link: Arc<Link>,
    record: RwLock<NodeRecord>,
    seen: Mutex<Option<Seen>>,
}

#[derive(Clone)]
struct Seen {
    at: OffsetDateTime,
    release: String,
    skew_ms: i64,
}

impl NodeLink {
    /// Of a node that nobody dials.
    #[cfg(feature = "testing")]
    #[expect(clippy::unwrap_used, reason = "for tests")]
    pub fn unlinked(host: &HostId, traits: HostTraits) -> Self {
        let now = OffsetDateTime::now_utc();
        let authority = Authority::load("testing", &Authority::make("testing").unwrap()).unwrap();
        let own = authority.control(now).unwrap();
        let tls = ControlTls::new(authority.certificate(), &own).unwrap();
        let record = NodeRecord {
            host: host.clone(),
            name: "testing".into(),
            address: "127.0.0.1:1".into(),
            public_key: String::new(),
            cordoned: false,
            traits,
            joined_at: now,
            expires_at: now + Duration::days(NODE_DAYS),
        };
        Self {
            name: record.name.clone(),
            link: Link::new(host.clone(), &record.address, tls).unwrap(),
            record: RwLock::new(record),
            seen: Mutex::default(),
        }
    }

    pub fn cordoned(&self) -> bool {
        self.record.read().cordoned
    }

    pub fn traits(&self) -> HostTraits {
        self.record.read().traits.clone()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeState {
    /// It joined and has not answered yet.
    Joining,
    Ready,
    Away,
}

/// A node as operators see it.
#[derive(Debug, Clone)]
pub struct Node {
    pub host: HostId,
    pub name: String,
    pub address: String,
    pub state: NodeState,
    /// Why it is away.
    pub reason: Option<String>,
    pub cordoned: bool,
    pub traits: HostTraits,
    pub joined_at: OffsetDateTime,
    pub certificate_expires_at: OffsetDateTime,
    pub last_seen_at: Option<OffsetDateTime>,
    pub release: Option<String>,
    /// Its clock less this one's.
    pub clock_skew_ms: Option<i64>,
    pub inventory: Option<HostInventory>,
}

/// A token, shown once.
#[derive(Debug)]
pub struct NewJoinToken {
    pub token: Zeroizing<String>,
    pub expires_at: OffsetDateTime,
}

/// A host that asks to join. Not authenticated yet.
pub type JoinNode = JoinRequest;

fn failed(error: impl std::fmt::Display) -> ControlError {
    ControlError::internal(format!("the fleet's certificates: {error}"))
}

fn wrapped(keys: &HostKeys, about: &[u8], plain: &[u8]) -> Result<String, ControlError> {
    let wrapped = keys.wrap(about, plain).map_err(failed)?;
    serde_json::to_string(&wrapped).map_err(failed)
}

fn unwrapped(
    keys: &HostKeys,
    about: &[u8],
    text: &str,
) -> Result<Zeroizing<Vec<u8>>, ControlError> {
    let wrapped: WrappedKeys = serde_json::from_str(text).map_err(failed)?;
    let opened = keys.unwrap(about, &wrapped).map_err(|error| match error {
        VaultError::OtherHostKey { .. } => ControlError::new(
            ErrorCode::Conflict,
            "the fleet key is not the one that this database was used with",
        )
        .hint("restore the fleet key from a backup: the file fleet.key in the data directory, or what fleet_key_file names"),
        other => failed(other),
    })?;
    opened.ok_or_else(|| failed("a wrapped key was changed"))
}

impl Fleet {
    fn open(
        record: &FleetRecord,
        keys: Arc<HostKeys>,
        now: OffsetDateTime,
    ) -> Result<Self, ControlError> {
        let key = unwrapped(&keys, AUTHORITY, &record.wrapped)?;
        let issued = Issued {
            certificate: record.authority.clone(),
            key,
        };
        let authority = Authority::load(&record.id, &issued).map_err(failed)?;
        let own = authority.control(now).map_err(failed)?;
        let tls = ControlTls::new(authority.certificate(), &own).map_err(failed)?;
        Ok(Self {
            id: record.id.clone(),
            authority,
            keys,
            tls,
            issued_at: Mutex::new(now),
        })
    }
}

impl Control {
    fn fleet(&self) -> Option<Arc<Fleet>> {
        self.0.fleet.known.read().clone()
    }

    fn fleet_key(&self) -> Result<Arc<HostKeys>, ControlError> {
        let key = self.config().fleet_key.clone();
        key.ok_or_else(|| {
            ControlError::new(
                ErrorCode::Unsupported,
                "this server has no fleet key: it could not write one when it started",
            )
            .hint("free disk space in the data directory, or set fleet_key_file, and restart the server")
        })
    }

    /// Where there is a fleet, makes ready to speak to its nodes.
    pub(crate) async fn open_fleet(&self) -> Result<(), ControlError> {
        let Some(record) = self.store().fleet().await? else {
            return Ok(());
        };
        let fleet = Fleet::open(&record, self.fleet_key()?, self.now())?;
        *self.0.fleet.known.write() = Some(Arc::new(fleet));
        self.sync_nodes().await
    }

    /// The fleet, which is made now if there is none.
    async fn make_fleet(&self) -> Result<Arc<Fleet>, ControlError> {
        if let Some(fleet) = self.fleet() {
            return Ok(fleet);
        }
        let keys = self.fleet_key()?;
        let id = hex::encode(rand::random::<[u8; 8]>());
        let made = Authority::make(&id).map_err(failed)?;
        let record = FleetRecord {
            wrapped: wrapped(&keys, AUTHORITY, &made.key)?,
            authority: made.certificate,
            id,
        };
        let kept = self.store().keep_fleet(&record).await?;
        let fleet = Arc::new(Fleet::open(&kept, keys, self.now())?);
        *self.0.fleet.known.write() = Some(Arc::clone(&fleet));
        Ok(fleet)
    }

    /// Operators only. A token by which one host joins.
    #[boxed]
    pub async fn create_join_token(
        &self,
        principal: &Principal,
        valid_s: Option<u64>,
    ) -> Result<NewJoinToken, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        self.to_the_end(async move {
            let outcome = control.try_create_token(&principal, valid_s).await;
            let operation = Operation::new("node.token", "fleet");
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_create_token(
        &self,
        principal: &Principal,
        valid_s: Option<u64>,
    ) -> Result<NewJoinToken, ControlError> {
        principal.require_operator()?;
        let valid_s = valid_s.unwrap_or(JOIN_TOKEN_S);
        if !(1..=JOIN_TOKEN_MAX_S).contains(&valid_s) {
            return Err(ControlError::invalid(format!(
                "valid_s: must be between 1 and {JOIN_TOKEN_MAX_S}"
            )));
        }
        let fleet = self.make_fleet().await?;
        let token = JoinToken::make(fleet.authority.certificate()).map_err(failed)?;
        let now = self.now();
        let expires_at = now + std::time::Duration::from_secs(valid_s);
        let record = JoinTokenRecord {
            id: token.id.clone(),
            wrapped: wrapped(&fleet.keys, TOKEN, token.key.bytes())?,
            created_at: now,
            expires_at,
            host: None,
        };
        match self.store().create_join_token(&record, now).await {
            Err(error @ StoreError::TooMany { .. }) => {
                let hint = format!(
                    "there are {JOIN_TOKENS_MAX} unused join tokens; wait until one expires"
                );
                Err(ControlError::from(error).hint(hint))
            }
            outcome => {
                outcome?;
                Ok(NewJoinToken {
                    token: token.text(),
                    expires_at,
                })
            }
        }
    }

    /// Takes a host into the fleet. Whoever asks proves that it has the token; there is no other authentication.
    #[boxed]
    pub async fn join_node(&self, request: JoinNode) -> Result<JoinAnswer, ControlError> {
        let control = self.clone();
        self.to_the_end(async move {
            let Ok(_place) = control.0.fleet.joins.try_acquire() else {
                return Err(ControlError::new(
                    ErrorCode::Unavailable,
                    "other hosts are joining now",
                )
                .retry_after(1));
            };
            let (answer, is_new) = control.try_join(&request).await?;
            if is_new {
                let operation = Operation::new("node.join", request.name.as_str());
                let home = control.home()?.clone();
                control.write_record(&home, None, operation, "ok").await?;
            }
            Ok(answer)
        })
        .await
    }

    /// The answer, and whether the host was not in the fleet before.
    async fn try_join(&self, request: &JoinRequest) -> Result<(JoinAnswer, bool), ControlError> {
        // The same answer whether there is no such token or the proof is wrong.
        let unknown = || {
            ControlError::new(
                ErrorCode::Forbidden,
                "this server does not know the join token",
            )
            .hint("create one with `cove node token` on the control plane")
        };
        let fleet = self.fleet().ok_or_else(unknown)?;
        let token = self.store().join_token(&request.token).await?;
        let token = token.ok_or_else(unknown)?;
        let key = unwrapped(&fleet.keys, TOKEN, &token.wrapped)?;
        let key = TokenKey::from_bytes(&key).ok_or_else(|| failed("a token's key"))?;
        if !request.is_proved(&key) {
            return Err(unknown());
        }
        check_name(&request.name).map_err(|error| ControlError::invalid(error.to_string()))?;
        check_address(&request.address)?;
        request.traits.check()?;
        let public = hex::decode(&request.public_key)
            .map_err(|_| ControlError::invalid("public_key: not hexadecimal"))?;
        let now = self.now();
        let certificate = fleet.authority.node(&request.host, &public, now);
        let certificate =
            certificate.map_err(|error| ControlError::invalid(format!("public_key: {error}")))?;
        let node = NodeRecord {
            host: request.host.clone(),
            name: request.name.clone(),
            address: request.address.clone(),
            public_key: request.public_key.clone(),
            cordoned: false,
            traits: request.traits.clone(),
            joined_at: now,
            expires_at: now + Duration::days(NODE_DAYS),
        };
        let refused = |code, message: String| Err(ControlError::new(code, message));
        let is_new = match self.store().join_node(&request.token, &node, now).await {
            Err(error @ StoreError::TooMany { .. }) => {
                let hint = format!("a fleet has at most {NODES_MAX}");
                return Err(ControlError::from(error).hint(hint));
            }
            outcome => match outcome? {
                Joined::New => true,
                Joined::Again => false,
                Joined::NoToken => return Err(unknown()),
                Joined::Used => {
                    let told = refused(
                        ErrorCode::Forbidden,
                        "this join token was used already".into(),
                    );
                    return told.map_err(|error| {
                        error.hint(
                            "each token admits one host; create another with `cove node token`",
                        )
                    });
                }
                Joined::Expired => {
                    let told = refused(ErrorCode::Forbidden, "this join token has expired".into());
                    return told
                        .map_err(|error| error.hint("create another with `cove node token`"));
                }
                Joined::NameTaken => {
                    let message = format!("a node named {} is in this fleet already", node.name);
                    let told = refused(ErrorCode::AlreadyExists, message);
                    return told.map_err(|error| {
                        error.hint(
                            "choose another with --name, or remove that node with `cove node rm`",
                        )
                    });
                }
                Joined::HostTaken { name } => {
                    let message = format!("this host is in the fleet already, as {name}");
                    let told = refused(ErrorCode::AlreadyExists, message);
                    return told.map_err(|error| {
                        error.hint("choose another data directory, or remove that node with `cove node rm`")
                    });
                }
            },
        };
        self.sync_nodes().await?;
        let authority = fleet.authority.certificate();
        let answer = JoinAnswer::make(&key, request, &fleet.id, authority, certificate);
        Ok((answer, is_new))
    }

    /// Brings the hosts of this process into line with the rows.
    async fn sync_nodes(&self) -> Result<(), ControlError> {
        let Some(fleet) = self.fleet() else {
            return Ok(());
        };
        let _turn = self.0.fleet.syncing.lock().await;
        let rows = self.store().nodes().await?;
        let before = self.hosts();
        let known = before.iter().filter(|host| host.node.is_some());
        let known: Vec<Arc<Host>> = known.cloned().collect();
        let mut nodes = Vec::new();
        let mut changed = false;
        for row in rows {
            let same = known.iter().find(|host| {
                let record = host.node.as_ref().map(|node| node.record.read());
                record.is_some_and(|record| {
                    record.host == row.host
                        && record.address == row.address
                        && record.joined_at == row.joined_at
                })
            });
            match same {
                Some(host) => {
                    if let Some(node) = &host.node {
                        *node.record.write() = row;
                    }
                    nodes.push(Arc::clone(host));
                }
                None => {
                    let tls = Arc::clone(&fleet.tls);
                    let link = Link::new(row.host.clone(), &row.address, tls).map_err(failed)?;
                    let runner = Arc::new(link.runner());
                    let id = row.host.clone();
                    let node = NodeLink {
                        name: row.name.clone(),
                        link,
                        record: RwLock::new(row),
                        seen: Mutex::default(),
                    };
                    let host = Host::new(id, runner, Some(node));
                    host.stale.mark_all();
                    nodes.push(host);
                    changed = true;
                }
            }
        }
        for host in &known {
            if !nodes.iter().any(|kept| Arc::ptr_eq(kept, host)) {
                host.ended.cancel();
                if let Some(node) = &host.node {
                    node.link.close();
                }
                changed = true;
            }
        }
        if changed {
            self.0.hosts.set_nodes(nodes);
        }
        Ok(())
    }

    /// What is done for the whole fleet every few seconds.
    pub(crate) async fn tend_fleet(&self) -> Result<(), ControlError> {
        let Some(fleet) = self.fleet() else {
            return Ok(());
        };
        let now = self.now();
        let age = now - *fleet.issued_at.lock();
        if age > Duration::days(CONTROL_DAYS) / 3 || age.is_negative() {
            let own = fleet.authority.control(now).map_err(failed)?;
            fleet.tls.replace(&own).map_err(failed)?;
            *fleet.issued_at.lock() = now;
        }
        self.sync_nodes().await
    }

    /// What is done for one host every few seconds: whether it answers, what it has, its certificate.
    pub(crate) async fn tend_node(&self, host: &Arc<Host>) -> Result<(), ControlError> {
        if let Some(node) = &host.node {
            let was_away = node.link.away().is_some();
            let asked = self.now();
            match node.link.report().await {
                Ok(report) => self.note_report(node, &report, asked),
                Err(error) => {
                    if !was_away && let Some(why) = node.link.away() {
                        tracing::warn!(node = node.name, host = %host.id, why, "a node does not answer");
                    }
                    tracing::debug!(node = node.name, %error, "cannot read the report of a node");
                    return Ok(());
                }
            }
            if was_away {
                tracing::info!(node = node.name, host = %host.id, "a node answers again");
                host.stale.mark_all();
            }
            self.renew_certificate(host, node).await;
        } else if self.hosts().len() < 2 {
            // Nobody places anything.
            return Ok(());
        }
        let asked = async { host.runner().await?.inventory().await };
        let told = asked.await;
        // A host that cannot say what it has gets nothing new.
        *host.inventory.lock() = told.as_ref().ok().cloned();
        told?;
        Ok(())
    }

    fn note_report(&self, node: &NodeLink, report: &Report, asked: OffsetDateTime) {
        let now = self.now();
        let middle: OffsetDateTime = asked + (now - asked) / 2_i32;
        let here = middle.unix_timestamp_nanos() / 1_000_000;
        let skew_ms = i64::try_from(i128::from(report.now_ms) - here).unwrap_or(i64::MAX);
        *node.seen.lock() = Some(Seen {
            at: now,
            release: report.release.clone(),
            skew_ms,
        });
    }

    async fn renew_certificate(&self, host: &Host, node: &NodeLink) {
        let now = self.now();
        let left = node.record.read().expires_at - now;
        let Some(fleet) = self.fleet() else {
            return;
        };
        if left > Duration::days(NODE_DAYS) / 2 {
            return;
        }
        let sign = |public: &[u8]| fleet.authority.node(&host.id, public, now);
        let expires = now + Duration::days(NODE_DAYS);
        let renewed = async {
            let renewed = node.link.renew(sign).await;
            renewed.map_err(failed)?;
            self.store().renew_node(&host.id, expires).await?;
            Ok::<_, ControlError>(())
        };
        match renewed.await {
            Ok(()) => node.record.write().expires_at = expires,
            Err(error) => {
                tracing::warn!(node = node.name, %error, "cannot renew the certificate of a node; retrying");
            }
        }
    }

    /// Operators only. By name.
    #[boxed]
    pub async fn list_nodes(&self, principal: &Principal) -> Result<Vec<Node>, ControlError> {
        principal.require_operator()?;
        let hosts = self.hosts();
        let nodes = hosts.iter().filter_map(|host| self.node_of(host));
        Ok(nodes.collect())
    }

    /// Operators only. By name or host id.
    #[boxed]
    pub async fn get_node(&self, principal: &Principal, which: &str) -> Result<Node, ControlError> {
        let nodes = self.list_nodes(principal).await?;
        let mut nodes = nodes.into_iter();
        let found = nodes.find(|node| node.name == which || node.host.as_str() == which);
        found.ok_or_else(|| ControlError::not_found("node", which))
    }

    /// Of what this process knows, for metrics.
    pub fn nodes(&self) -> Vec<Node> {
        let hosts = self.hosts();
        hosts.iter().filter_map(|host| self.node_of(host)).collect()
    }

    fn node_of(&self, host: &Host) -> Option<Node> {
        let node = host.node.as_ref()?;
        let record = node.record.read().clone();
        let seen = node.seen.lock().clone();
        let reason = node.link.away();
        let state = match (&reason, &seen) {
            (Some(_), _) => NodeState::Away,
            (None, Some(_)) => NodeState::Ready,
            (None, None) => NodeState::Joining,
        };
        Some(Node {
            host: record.host,
            name: record.name,
            address: record.address,
            state,
            reason,
            cordoned: record.cordoned,
            traits: record.traits,
            joined_at: record.joined_at,
            certificate_expires_at: record.expires_at,
            last_seen_at: seen.as_ref().map(|seen| seen.at),
            release: seen.as_ref().map(|seen| seen.release.clone()),
            clock_skew_ms: seen.as_ref().map(|seen| seen.skew_ms),
            inventory: host.inventory.lock().clone(),
        })
    }

    /// Operators only. A cordoned node takes nothing new; what is there goes on.
    #[boxed]
    pub async fn cordon_node(
        &self,
        principal: &Principal,
        which: &str,
        cordoned: bool,
    ) -> Result<Node, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = async {
                let node = control.get_node(&principal, &which).await?;
                control.store().cordon_node(&node.host, cordoned).await?;
                control.sync_nodes().await?;
                control.get_node(&principal, &which).await
            };
            let outcome = outcome.await;
            let action = match cordoned {
                true => "node.cordon",
                false => "node.uncordon",
            };
            let operation = Operation::new(action, which);
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Operators only. What is on the node stays there, whatever its taints are from now on.
    #[boxed]
    pub async fn change_traits(
        &self,
        principal: &Principal,
        which: &str,
        change: TraitsChange,
    ) -> Result<Node, ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = async {
                let node = control.get_node(&principal, &which).await?;
                change.check()?;
                let changed = control.store().change_traits(&node.host, &change).await;
                changed.map_err(too_many_traits)?;
                control.sync_nodes().await?;
                control.get_node(&principal, &which).await
            };
            let outcome = outcome.await;
            let mut operation = Operation::new("node.traits", which);
            operation.detail = outcome.is_ok().then(|| change.to_string());
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    /// Operators only. Its connections are cut; it can only come back with a new token. Refused while it has
    /// sandboxes, snapshots or volumes, unless it is `lost`: then they are lost with it, but for durable snapshots.
    #[boxed]
    pub async fn remove_node(
        &self,
        principal: &Principal,
        which: &str,
        lost: bool,
    ) -> Result<(), ControlError> {
        let (control, principal) = (self.clone(), principal.clone());
        let which = which.to_owned();
        self.to_the_end(async move {
            let outcome = control.try_remove_node(&principal, &which, lost).await;
            let mut operation = Operation::new("node.remove", which);
            operation.detail = lost.then(|| "lost".to_owned());
            control.conclude(&principal, operation, outcome).await
        })
        .await
    }

    async fn try_remove_node(
        &self,
        principal: &Principal,
        which: &str,
        lost: bool,
    ) -> Result<(), ControlError> {
        let node = self.get_node(principal, which).await?;
        if lost {
            self.give_up_node(&node).await?;
        }
        if let Some((what, count)) = self.store().remove_node(&node.host, self.now()).await? {
            let message = format!("node {} still has {count} {what}", node.name);
            return Err(ControlError::new(ErrorCode::InUse, message)
                .hint("cordon it, and delete what is on it first; `--lost` gives up a node that is gone for good"));
        }
        self.sync_nodes().await
    }
}

fn too_many_traits(error: StoreError) -> ControlError {
    match error {
        StoreError::TooMany { .. } => ControlError::from(error).hint(format!(
            "a node has at most {HOST_LABELS_MAX} labels and {HOST_TAINTS_MAX} taints; remove others"
        )),
        other => other.into(),
    }
}

/// A host name or address, and a port.
fn check_address(address: &str) -> Result<(), ControlError> {
    let invalid = || {
        ControlError::invalid(
            "address: must be a host name or address and a port, such as node-1:7071",
        )
    };
    if address.len() > NODE_ADDRESS_MAX {
        return Err(invalid());
    }
    let (name, port) = address.rsplit_once(':').ok_or_else(invalid)?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    match !name.is_empty() && name.bytes().all(plain) && is_port {
        true => Ok(()),
        false => Err(invalid()),
    }
}
