//! The network of one engine: attaches sandboxes, holds their rules, changes and removes them.
//!
//! What every sandbox has is kept in memory, and the kernel's table is made from it: whole when the
//! engine opens (in one transaction, so that adopted sandboxes never see a gap), in elements later.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use cove_model::{NetworkMode, NetworkPolicy, SandboxId};

use crate::address::{Addresses, INSIDE, index_of, interface};
use crate::link::{self, Counters};
use crate::netlink::{NetlinkError, Socket};
use crate::nft::{Ownership, Transaction};
use crate::policy::{Mode, Rules};
use crate::ruleset::{Layout, Ports, not_internet};
use crate::{conntrack, inside, tap};

#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// The engine's name on its host: eight hexadecimal digits.
    pub instance: String,
    pub addresses: Addresses,
}

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("the network of sandboxes")]
    Kernel(#[from] NetlinkError),
    #[error("{step}")]
    Io {
        step: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(
        "the range {range} for sandboxes overlaps the route {route}; choose another with network_range"
    )]
    Overlap { range: Addresses, route: String },
    #[error("a sandbox has no network to set a policy for")]
    NotAttached,
    #[error("the packet filter rules are not in force, so nothing can be attached to the network")]
    NoRules,
    #[error("the gateway refused the policy")]
    Gateway(#[source] io::Error),
    #[error("mode 'allowlist' needs the gateway, and this host runs none")]
    NoGateway,
}

impl NetworkError {
    pub(crate) fn io(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { step, source }
    }
}

impl From<NetworkError> for io::Error {
    fn from(error: NetworkError) -> Self {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        io::Error::other(text)
    }
}

/// Resolver and gateway: informed of every sandbox, by its outer address, before a packet of it can come.
pub trait Gate: Send + Sync {
    fn place(&self, outer: Ipv4Addr, sandbox: &SandboxId, policy: &NetworkPolicy)
    -> io::Result<()>;

    fn remove(&self, outer: Ipv4Addr);
}

pub struct Network {
    config: NetworkConfig,
    gate: OnceLock<Arc<dyn Gate>>,
    /// First and last addresses that are not the internet.
    private: Vec<(Ipv4Addr, Ipv4Addr)>,
    state: Mutex<State>,
    /// Interfaces and routes; apart from the rules, since the kernel lets one thread at a time in anyway.
    route: Mutex<Socket>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    netfilter: Socket,
    layout: Layout,
    built: bool,
    sandboxes: BTreeMap<u32, Rules>,
    /// Those the gateway knows of.
    placed: BTreeSet<u32>,
    /// Those with an interface whose queries for names do not leave by it: their policy is mode `none`, and the
    /// address of the resolver is their loopback's.
    silent: BTreeSet<u32>,
    owners: BTreeMap<u32, (SandboxId, NetworkPolicy)>,
    /// Indices under which somebody earlier may have left connections. Looking takes the kernel
    /// milliseconds, so nobody looks for those of a sandbox that never could make one.
    haunted: BTreeSet<u32>,
    /// Blocks of indices that were looked at as a whole.
    looked_at: BTreeSet<u32>,
}

/// Indices that are looked at together: as many as an engine claims at once.
const BLOCK: u32 = 256;

impl Network {
    /// Checks that the host can do it. Changes nothing that runs: the table of an earlier engine stays
    /// in force until [`Network::build`].
    pub fn open(config: NetworkConfig) -> Result<Self, NetworkError> {
        let mut route = Socket::route().map_err(NetworkError::io("open a route socket"))?;
        let netfilter = Socket::netfilter().map_err(NetworkError::io("open a netfilter socket"))?;
        if let Some(route) = link::conflict(&mut route, &config.addresses)? {
            let range = config.addresses;
            return Err(NetworkError::Overlap { range, route });
        }
        link::local_address(
            &mut route,
            config.addresses.gateway(),
            config.metric(),
            true,
        )?;
        let layout = Layout {
            table: table_name(&config.instance),
            addresses: config.addresses,
            ownership: Ownership::Kept,
            ports: None,
            log_group: None,
        };
        Ok(Self {
            gate: OnceLock::new(),
            private: not_internet(&config.addresses),
            state: Mutex::new(State {
                netfilter,
                layout,
                built: false,
                sandboxes: BTreeMap::new(),
                placed: BTreeSet::new(),
                silent: BTreeSet::new(),
                owners: BTreeMap::new(),
                haunted: BTreeSet::new(),
                looked_at: BTreeSet::new(),
            }),
            route: Mutex::new(route),
            config,
        })
    }

    pub fn addresses(&self) -> Addresses {
        self.config.addresses
    }

    /// Where the gateway listens and refusals are reported; comes into force with the next build.
    pub fn set_listeners(
        &self,
        ports: Option<Ports>,
        log_group: Option<u16>,
    ) -> Result<(), NetworkError> {
        let mut state = self.state();
        state.layout.ports = ports;
        state.layout.log_group = log_group;
        if state.built { state.rebuild() } else { Ok(()) }
    }

    /// To be called before sandboxes are adopted.
    pub fn set_gate(&self, gate: Arc<dyn Gate>) {
        let _ = self.gate.set(gate);
    }

    pub fn has_gate(&self) -> bool {
        self.gate.get().is_some()
    }

    /// Puts the rules of all known sandboxes into force and removes those of any other. From here on
    /// sandboxes can be attached.
    pub fn build(&self) -> Result<(), NetworkError> {
        let mut state = self.state();
        state.rebuild()?;
        state.built = true;
        Ok(())
    }

    /// A sandbox that an earlier engine attached; its rules come into force with [`Network::build`]. The
    /// gateway knows of it already.
    pub fn adopt(&self, index: u32, sandbox: &SandboxId, policy: &NetworkPolicy) {
        let rules = Rules::of(policy);
        let mut state = self.state();
        match policy.mode {
            NetworkMode::None => state.silent.insert(index),
            _ => state.placed.insert(index),
        };
        state
            .owners
            .insert(index, (sandbox.clone(), policy.clone()));
        state.sandboxes.insert(index, rules);
        // Its engine may have died while it changed the policy.
        state.haunted.insert(index);
    }

    fn tell_gate(
        &self,
        index: u32,
        sandbox: &SandboxId,
        policy: &NetworkPolicy,
    ) -> Result<(), NetworkError> {
        // One that never reached anything is nothing to it.
        if policy.mode == NetworkMode::None && !self.state().placed.contains(&index) {
            return Ok(());
        }
        match self.gate.get() {
            Some(gate) => {
                self.state().placed.insert(index);
                gate.place(self.config.addresses.outer(index), sandbox, policy)
                    .map_err(NetworkError::Gateway)
            }
            None if policy.mode == NetworkMode::Allowlist => Err(NetworkError::NoGateway),
            None => Ok(()),
        }
    }

    /// Gives a namespace its interface, with nothing allowed. The rules are there before the interface.
    pub fn attach(&self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), NetworkError> {
        self.look_for_connections(index)?;
        {
            let mut state = self.state();
            if !state.built {
                return Err(NetworkError::NoRules);
            }
            state.set(index, Some(Rules::default()))?;
        }
        let attached = self.connect(index, namespace);
        if attached.is_err() {
            let _ = self.route_delete(index);
            let _ = self.state().set(index, None);
        }
        attached
    }

    fn connect(&self, index: u32, namespace: BorrowedFd<'_>) -> Result<(), NetworkError> {
        let mut inner =
            inside::prepare(namespace).map_err(NetworkError::io("enter the namespace"))?;
        let taken = {
            let mut route = self.route();
            let made = link::make_pair(&mut route, index, namespace);
            // One of an earlier sandbox with the same index is not quite gone.
            let taken = made
                .as_ref()
                .is_err_and(|error| error.errno() == Some(rustix::io::Errno::EXIST));
            if taken {
                link::delete(&mut route, &interface(index))?;
                link::make_pair(&mut route, index, namespace)?;
            } else {
                made?;
            }
            link::bring_up(&mut route, index, self.config.addresses.outer(index))?;
            taken
        };
        // Queries for names go out by the interface now. A gateway that is a local address is none.
        let gateway = self.config.addresses.gateway();
        link::local_address(&mut inner, gateway, 0, false)?;
        self.state().silent.remove(&index);
        // What somebody before it left open would lead to this one now.
        if self.state().haunted.remove(&index) || taken {
            self.cut(index, &Rules::default())?;
        }
        Ok(link::configure_inside(&mut inner, &self.config.addresses)?)
    }

    /// Tells an attached namespace the gateway's hardware address, for programs that read it there.
    pub fn know_gateway(&self, namespace: BorrowedFd<'_>) -> Result<(), NetworkError> {
        let mut inner =
            inside::prepare(namespace).map_err(NetworkError::io("enter the namespace"))?;
        Ok(link::know_gateway(&mut inner, &self.config.addresses)?)
    }

    /// An interface for a machine with a network stack of its own: what it sends leaves through the namespace's
    /// interface, and what comes in there goes to it, unread by the namespace. It lives as long as the descriptor.
    /// `open` makes one called [`TAP`](crate::TAP) in the namespace of the calling thread.
    pub fn tap(
        &self,
        namespace: BorrowedFd<'_>,
        open: impl FnOnce() -> io::Result<OwnedFd> + Send,
    ) -> Result<OwnedFd, NetworkError> {
        inside::run(namespace, || {
            let mut inner = Socket::route()?;
            tap::make(&mut inner, open).map_err(|error| NetworkError::Kernel(error).into())
        })
        .map_err(NetworkError::io("make the machine's interface"))
    }

    /// Before an index is used first: which of its block others have left connections under.
    fn look_for_connections(&self, index: u32) -> Result<(), NetworkError> {
        let mut state = self.state();
        if state.looked_at.contains(&(index / BLOCK)) {
            return Ok(());
        }
        let addresses = self.config.addresses;
        let in_block = |address| {
            addresses
                .index(address)
                .is_some_and(|other| other / BLOCK == index / BLOCK)
        };
        let found = conntrack::sources(&mut state.netfilter, in_block)?;
        let found = found
            .into_iter()
            .filter_map(|address| addresses.index(address));
        state.haunted.extend(found);
        state.looked_at.insert(index / BLOCK);
        Ok(())
    }

    fn route_delete(&self, index: u32) -> Result<(), NetworkError> {
        Ok(link::delete(&mut self.route(), &interface(index))?)
    }

    /// Changes what a sandbox may do. In force when this returns: connections that are forbidden now are
    /// forgotten by the kernel.
    pub fn set(
        &self,
        index: u32,
        namespace: BorrowedFd<'_>,
        sandbox: &SandboxId,
        policy: &NetworkPolicy,
    ) -> Result<(), NetworkError> {
        let rules = Rules::of(policy);
        if !self.state().sandboxes.contains_key(&index) {
            return Err(NetworkError::NotAttached);
        }
        self.tell_gate(index, sandbox, policy)?;
        self.set_rules(index, namespace, rules)?;
        let owner = (sandbox.clone(), policy.clone());
        self.state().owners.insert(index, owner);
        Ok(())
    }

    /// Makes sure that the gateway knows a sandbox, so that it can keep a log for it, and tells its
    /// policy. `None` when nobody has that index.
    pub fn introduce(&self, index: u32) -> Result<Option<NetworkPolicy>, NetworkError> {
        let (owner, placed) = {
            let state = self.state();
            (
                state.owners.get(&index).cloned(),
                state.placed.contains(&index),
            )
        };
        let Some((sandbox, policy)) = owner else {
            return Ok(None);
        };
        if let Some(gate) = self.gate.get().filter(|_| !placed) {
            gate.place(self.config.addresses.outer(index), &sandbox, &policy)
                .map_err(NetworkError::Gateway)?;
            self.state().placed.insert(index);
        }
        Ok(Some(policy))
    }

    /// The same for a sandbox that reaches nothing and may have no interface.
    pub fn introduce_closed(&self, index: u32, sandbox: &SandboxId) -> Result<(), NetworkError> {
        let placed = self.state().placed.contains(&index);
        if let Some(gate) = self.gate.get().filter(|_| !placed) {
            let closed = NetworkPolicy::default();
            gate.place(self.config.addresses.outer(index), sandbox, &closed)
                .map_err(NetworkError::Gateway)?;
            self.state().placed.insert(index);
        }
        Ok(())
    }

    fn set_rules(
        &self,
        index: u32,
        namespace: BorrowedFd<'_>,
        rules: Rules,
    ) -> Result<(), NetworkError> {
        if rules.mode == Mode::Open || !rules.flows.is_empty() {
            forward_packets()?;
        }
        let old = self.state().set(index, Some(rules.clone()))?;
        let old = old.unwrap_or_default();
        // One that could reach nothing has no connections, but for those of somebody before it.
        let may_have = old.mode != Mode::None || self.state().haunted.contains(&index);
        if may_have && (old.mode, &old.flows) != (rules.mode, &rules.flows) {
            self.cut(index, &rules)?;
            self.state().haunted.remove(&index);
        }
        if old.down != rules.down {
            link::limit_rate(&mut self.route(), &interface(index), rules.down)?;
        }
        if old.up != rules.up {
            let limited = inside::run(namespace, || {
                let mut inner = Socket::route()?;
                link::limit_rate(&mut inner, INSIDE, rules.up)
                    .map_err(|error| NetworkError::Kernel(error).into())
            });
            limited.map_err(NetworkError::io("limit what the sandbox sends"))?;
        }
        Ok(())
    }

    /// Keeps the queries for names of a sandbox with an interface inside, where its guest refuses them, or lets them
    /// out by the interface again.
    pub fn keep_names_inside(
        &self,
        index: u32,
        namespace: BorrowedFd<'_>,
        inside: bool,
    ) -> Result<(), NetworkError> {
        if self.state().silent.contains(&index) == inside {
            return Ok(());
        }
        let gateway = self.config.addresses.gateway();
        let changed = inside::run(namespace, || {
            let mut inner = Socket::route()?;
            link::local_address(&mut inner, gateway, 0, inside).map_err(io::Error::other)
        });
        changed.map_err(NetworkError::io("move the resolver's address"))?;
        let mut state = self.state();
        match inside {
            true => state.silent.insert(index),
            false => state.silent.remove(&index),
        };
        Ok(())
    }

    fn cut(&self, index: u32, rules: &Rules) -> Result<(), NetworkError> {
        let outer = self.config.addresses.outer(index);
        let mut state = self.state();
        for connection in conntrack::list(&mut state.netfilter, outer)? {
            let allowed = rules.allows(
                connection.to,
                connection.protocol,
                connection.port,
                connection.redirected,
                |address| self.is_internet(address),
            );
            if !allowed {
                conntrack::delete(&mut state.netfilter, &connection)?;
            }
        }
        Ok(())
    }

    fn is_internet(&self, address: Ipv4Addr) -> bool {
        !self
            .private
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&address))
    }

    /// Takes a sandbox's rules away. Its interface goes with its namespace.
    pub fn release(&self, index: u32) -> Result<(), NetworkError> {
        // Also where the rules stay: the index may be another's next.
        let placed = {
            let mut state = self.state();
            state.owners.remove(&index);
            state.silent.remove(&index);
            state.placed.remove(&index)
        };
        if let Some(gate) = self.gate.get().filter(|_| placed) {
            gate.remove(self.config.addresses.outer(index));
        }
        let old = self.state().set(index, None)?;
        // One that could reach nothing has no connections.
        match old {
            Some(old) if old.mode != Mode::None => self.cut(index, &Rules::default()),
            _ => Ok(()),
        }
    }

    /// What went over a sandbox's interface; `None` when it has none any more.
    pub fn counters(&self, index: u32) -> Result<Option<Counters>, NetworkError> {
        Ok(link::counters(&mut self.route(), index)?)
    }

    /// Removes interfaces of this engine that no sandbox has. `ours` tells which indices are this
    /// engine's and free.
    pub fn sweep(&self, free: impl Fn(u32) -> bool) -> Result<u64, NetworkError> {
        let mut swept = 0;
        let mut route = self.route();
        for name in link::list(&mut route)? {
            if index_of(&name).is_some_and(&free) {
                link::delete(&mut route, &name)?;
                swept += 1;
            }
        }
        Ok(swept)
    }

    /// Removes the table and the gateway's address, for an engine that leaves nothing running.
    pub fn close(&self) {
        let mut state = self.state();
        if !state.sandboxes.is_empty() {
            return;
        }
        state.built = false;
        let mut change = Transaction::new(&state.layout.table);
        change.delete_table();
        if let Err(error) = state.netfilter.transact(change.finish())
            && error.errno() != Some(rustix::io::Errno::NOENT)
        {
            tracing::warn!(%error, "cannot remove the nftables table");
        }
        let (gateway, metric) = (self.config.addresses.gateway(), self.config.metric());
        if let Err(error) = link::local_address(&mut self.route(), gateway, metric, false) {
            tracing::warn!(%error, "cannot remove the gateway's address");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn route(&self) -> MutexGuard<'_, Socket> {
        self.route.lock()
    }
}

impl State {
    fn rebuild(&mut self) -> Result<(), NetworkError> {
        loop {
            let sandboxes = self.sandboxes.iter().map(|(index, rules)| (*index, rules));
            let change = self.layout.build(sandboxes).finish();
            match self.netfilter.transact(change) {
                // Kernels before 6.9 cannot keep a table of an owner that ended.
                Err(error)
                    if self.layout.ownership == Ownership::Kept
                        && error.errno() == Some(rustix::io::Errno::OPNOTSUPP) =>
                {
                    self.layout.ownership = Ownership::Shared;
                }
                other => return Ok(other?),
            }
        }
    }

    /// Returns what was there before. On failure nothing has changed.
    fn set(&mut self, index: u32, new: Option<Rules>) -> Result<Option<Rules>, NetworkError> {
        let old = self.sandboxes.get(&index).cloned();
        let change = self.layout.change(index, old.as_ref(), new.as_ref());
        match &new {
            Some(rules) => self.sandboxes.insert(index, rules.clone()),
            None => self.sandboxes.remove(&index),
        };
        let Some(change) = change.filter(|_| self.built) else {
            return Ok(old);
        };
        let done = match self.netfilter.transact(change.finish()) {
            // Somebody flushed the host's rules; sandboxes were cut off until now.
            Err(error) if error.errno() == Some(rustix::io::Errno::NOENT) => {
                tracing::warn!("the nftables table was missing; created again");
                self.rebuild()
            }
            other => other.map_err(NetworkError::Kernel),
        };
        if let Err(error) = done {
            match &old {
                Some(rules) => self.sandboxes.insert(index, rules.clone()),
                None => self.sandboxes.remove(&index),
            };
            return Err(error);
        }
        Ok(old)
    }
}

impl NetworkConfig {
    /// Tells routes of engines apart that are the same otherwise.
    fn metric(&self) -> u32 {
        u32::from_str_radix(&self.instance, 16).unwrap_or(1).max(1)
    }
}

const TABLE: &str = "cove-";

pub fn table_name(instance: &str) -> String {
    format!("{TABLE}{instance}")
}

/// The engine that a table is of.
pub(crate) fn instance_of(table: &str) -> Option<&str> {
    let instance = table.strip_prefix(TABLE)?;
    let digits = instance.bytes().all(|byte| byte.is_ascii_hexdigit());
    (instance.len() == 8 && digits).then_some(instance)
}

const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// Whether this host passes packets on between its interfaces.
pub fn forwards() -> bool {
    std::fs::read_to_string(FORWARDING).is_ok_and(|text| text.trim() == "1")
}

/// Answers to sandboxes come in on the host's own interfaces and have to be passed on.
fn forward_packets() -> Result<(), NetworkError> {
    if forwards() {
        return Ok(());
    }
    tracing::info!("turning on net.ipv4.ip_forward for sandboxes that reach the internet");
    std::fs::write(Path::new(FORWARDING), "1")
        .map_err(NetworkError::io("turn on net.ipv4.ip_forward"))
}
