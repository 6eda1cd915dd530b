//! The sandboxes that the gateway knows: who sits at which address, under which policy, with which
//! live connections.
//!
//! The engine places and removes them through the control socket. A connection is admitted under
//! the same lock that a policy is changed under, so that none slips through between the two.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use cove_model::SandboxId;
use cove_model::egress::EgressEntry;
use cove_model::network::{Cidr, Name};
use tokio::sync::{Notify, Semaphore};

use crate::control::{Placed, Termination};
use crate::journal::{Journal, Kept, Scribe};
use crate::limits::{Bucket, Limits, bucket};
use crate::log::Log;
use crate::policy::{Denied, Policy};
use crate::shares::Shares;

/// Addresses that one sandbox got, and how long they count.
const ANSWERED_MAX: usize = 4096;
const ANSWERED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Names that one address is remembered under.
const NAMES_PER_ADDRESS: usize = 8;
/// Logs kept of sandboxes that have no address now.
const RESTING_LOGS_MAX: usize = 1024;

#[derive(Debug)]
pub struct World {
    pub limits: Limits,
    /// Where sandboxes and the gateway itself live; nothing is ever dialled there.
    reserved: Vec<Cidr>,
    placed: RwLock<HashMap<Ipv4Addr, Arc<Sandbox>>>,
    logs: Mutex<Logs>,
    journal: Option<Arc<Journal>>,
    pub connections: Arc<Shares>,
    pub half_open: Arc<Shares>,
    pub dns_streams: Arc<Shares>,
    /// How much of the journal each organisation may write, for those that have sandboxes now.
    lines: Mutex<HashMap<Arc<str>, Weak<Mutex<Bucket>>>>,
}

#[derive(Debug, Default)]
struct Logs {
    by_sandbox: BTreeMap<SandboxId, Arc<Log>>,
    /// Those without an address, oldest first, and whose they are where that is known.
    resting: VecDeque<(SandboxId, Arc<str>)>,
}

/// One sandbox at its address.
#[derive(Debug)]
pub struct Sandbox {
    pub id: SandboxId,
    /// Whose shares it takes from: its organisation, or itself.
    pub owner: Arc<str>,
    pub address: Ipv4Addr,
    pub log: Arc<Log>,
    pub half_open: Arc<Semaphore>,
    pub connections: Arc<Semaphore>,
    pub outstanding: Arc<Semaphore>,
    pub dns_streams: Arc<Semaphore>,
    pub pipes: Arc<Semaphore>,
    queries: Mutex<Bucket>,
    chosen_names: Mutex<Bucket>,
    answered: Mutex<Answered>,
    rules: Mutex<Rules>,
    termination: Mutex<Option<Arc<Termination>>>,
}

#[derive(Debug)]
struct Rules {
    policy: Arc<Policy>,
    live: HashMap<u64, Live>,
    next: u64,
}

#[derive(Debug)]
struct Live {
    grounds: Grounds,
    /// Where it leads, once that is known.
    address: Option<Ipv4Addr>,
    cut: Arc<Cut>,
}

/// Why a connection was admitted; looked at again when the policy changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grounds {
    Name(Name, u16),
    Address(Ipv4Addr, u16),
}

/// An admitted connection. Dropping it takes it off the list.
#[derive(Debug)]
pub struct Ticket {
    pub rule: String,
    pub chosen_bytes: u32,
    sandbox: Arc<Sandbox>,
    id: u64,
    pub cut: Arc<Cut>,
    pub sent: AtomicU64,
    pub received: AtomicU64,
}

/// Set once, when a connection must end.
#[derive(Debug, Default)]
pub struct Cut {
    now: AtomicBool,
    told: Notify,
}

impl Cut {
    fn set(&self) {
        self.now.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    /// Returns when the connection must end.
    pub async fn wait(&self) {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            if self.now.load(Ordering::Acquire) {
                return;
            }
            told.await;
        }
    }
}

#[derive(Debug, Default)]
struct Answered {
    names: HashMap<Ipv4Addr, (Instant, Vec<Name>)>,
    order: VecDeque<Ipv4Addr>,
}

impl World {
    pub fn new(limits: Limits, reserved: Vec<Cidr>) -> Self {
        let half_open = limits
            .half_open_in_all
            .min(limits.connections_in_all.div_ceil(2));
        Self {
            connections: Shares::new("connections", limits.connections_in_all),
            half_open: Shares::new("connections not yet made", half_open),
            dns_streams: Shares::new("streams of questions", limits.dns_streams_in_all),
            lines: Mutex::default(),
            limits,
            reserved,
            placed: RwLock::default(),
            logs: Mutex::default(),
            journal: None,
        }
    }

    /// What is logged from now on is written down.
    pub fn log_to(&mut self, journal: Arc<Journal>) {
        self.journal = Some(journal);
    }

    fn new_log(&self, kept: &Kept) -> Arc<Log> {
        let scribe = self.journal.clone();
        let scribe = scribe.map(|journal| Scribe::new(journal, kept.sandbox.clone()));
        Arc::new(Log::restored(kept, scribe))
    }

    /// Logs of before, of sandboxes that have no address yet.
    pub fn remember(&self, logs: Vec<Kept>) {
        for kept in logs {
            let log = self.new_log(&kept);
            self.logs
                .lock()
                .by_sandbox
                .insert(kept.sandbox.clone(), log);
            let placed = self.placed.read();
            self.rest(&placed, &kept.sandbox, &"".into());
        }
    }

    pub fn at(&self, address: Ipv4Addr) -> Option<Arc<Sandbox>> {
        let placed = self.placed.read();
        placed.get(&address).cloned()
    }

    pub fn is_reserved(&self, address: Ipv4Addr) -> bool {
        self.reserved.iter().any(|block| block.contains(address))
    }

    pub fn connections(&self) -> usize {
        self.connections.held()
    }

    /// The journal's rate of an organisation, shared by its sandboxes.
    fn lines_of(&self, owner: &Arc<str>) -> Arc<Mutex<Bucket>> {
        let mut all = self.lines.lock();
        if let Some(lines) = all.get(owner).and_then(Weak::upgrade) {
            return lines;
        }
        all.retain(|_, lines| lines.strong_count() > 0);
        let now = Instant::now();
        let lines = bucket(OWNER_LINES_PER_SECOND, OWNER_LINES_AT_ONCE, now);
        let lines = Arc::new(Mutex::new(lines));
        all.insert(owner.clone(), Arc::downgrade(&lines));
        lines
    }

    pub fn sandboxes(&self) -> usize {
        let placed = self.placed.read();
        placed.len()
    }

    /// Puts a policy in force. Connections that it forbids are asked to end before this returns.
    pub fn place(&self, new: Placed) {
        let mut placed = self.placed.write();
        if let Some(sandbox) = placed.get(&new.address) {
            if sandbox.id == new.sandbox {
                *sandbox.termination.lock() = new.termination.map(Arc::new);
                sandbox.change(new.policy);
                return;
            }
            sandbox.cut_all();
        }
        let owner: Arc<str> = match new.owner.as_str() {
            "" => new.sandbox.as_str().into(),
            owner => owner.into(),
        };
        let log = self.log_to_use(&new.sandbox);
        log.belongs_to(self.lines_of(&owner));
        let sandbox = Sandbox::new(new, owner, log, &self.limits);
        if let Some(old) = placed.insert(sandbox.address, Arc::new(sandbox)) {
            self.rest(&placed, &old.id, &old.owner);
        }
    }

    pub fn remove(&self, address: Ipv4Addr) {
        let mut placed = self.placed.write();
        if let Some(sandbox) = placed.remove(&address) {
            sandbox.cut_all();
            self.rest(&placed, &sandbox.id, &sandbox.owner);
        }
    }

    /// Exactly these from now on; what stays as it was keeps its connections.
    pub fn replace(&self, table: Vec<Placed>) {
        let gone: Vec<Ipv4Addr> = {
            let placed = self.placed.read();
            let stays = |address: &&Ipv4Addr| table.iter().any(|new| new.address == **address);
            placed
                .keys()
                .filter(|address| !stays(address))
                .copied()
                .collect()
        };
        for address in gone {
            self.remove(address);
        }
        for new in table {
            self.place(new);
        }
    }

    fn log_to_use(&self, id: &SandboxId) -> Arc<Log> {
        let mut logs = self.logs.lock();
        logs.resting.retain(|(resting, _)| resting != id);
        let log = logs.by_sandbox.entry(id.clone());
        log.or_insert_with(|| self.new_log(&Kept::nothing(id.clone())))
            .clone()
    }

    /// The log of a sandbox that lost its address, unless it has moved to another.
    fn rest(&self, placed: &HashMap<Ipv4Addr, Arc<Sandbox>>, id: &SandboxId, owner: &Arc<str>) {
        if placed.values().any(|sandbox| sandbox.id == *id) {
            return;
        }
        let mut logs = self.logs.lock();
        if !logs.resting.iter().any(|(resting, _)| resting == id) {
            logs.resting.push_back((id.clone(), owner.clone()));
        }
        while logs.resting.len() > RESTING_LOGS_MAX {
            let oldest = one_too_many(&logs.resting);
            if let Some((oldest, _)) = logs.resting.remove(oldest) {
                logs.by_sandbox.remove(&oldest);
            }
        }
    }

    pub fn log(&self, id: &SandboxId) -> Option<Arc<Log>> {
        self.logs.lock().by_sandbox.get(id).cloned()
    }

    /// The sandbox is deleted; its log goes too, unless it still sits somewhere.
    pub fn forget(&self, id: &SandboxId) {
        let mut logs = self.logs.lock();
        if logs.resting.iter().any(|(resting, _)| resting == id) {
            logs.resting.retain(|(resting, _)| resting != id);
            logs.by_sandbox.remove(id);
            if let Some(journal) = &self.journal {
                journal.forget(id);
            }
        }
    }

    /// An entry that the packet filter wrote.
    pub fn append(&self, address: Ipv4Addr, entry: EgressEntry) {
        if let Some(sandbox) = self.at(address) {
            sandbox.log.append(entry);
        }
    }
}

/// The oldest of whoever has the most, so that nobody's logs are pushed out by another's.
fn one_too_many(resting: &VecDeque<(SandboxId, Arc<str>)>) -> usize {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for (_, owner) in resting {
        *counts.entry(owner).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count);
    most.and_then(|(most, _)| resting.iter().position(|(_, owner)| **owner == *most))
        .unwrap_or(0)
}

/// Lines that all sandboxes of one organisation write into the journal, a second and at once.
const OWNER_LINES_PER_SECOND: u32 = 100;
const OWNER_LINES_AT_ONCE: u32 = 2000;
/// Pipes that one sandbox may fill at once; beyond that its bytes are copied through small buffers.
const PIPES_MAX: usize = 64;

impl Sandbox {
    fn new(placed: Placed, owner: Arc<str>, log: Arc<Log>, limits: &Limits) -> Self {
        let now = Instant::now();
        let queries = bucket(limits.queries_per_second, limits.queries_burst, now);
        let chosen = bucket(
            limits.tunnel_bytes_per_second,
            limits.tunnel_bytes_burst,
            now,
        );
        Self {
            termination: Mutex::new(placed.termination.map(Arc::new)),
            id: placed.sandbox,
            owner,
            address: placed.address,
            log,
            half_open: Arc::new(Semaphore::new(limits.half_open)),
            connections: Arc::new(Semaphore::new(limits.connections)),
            outstanding: Arc::new(Semaphore::new(limits.queries_outstanding)),
            dns_streams: Arc::new(Semaphore::new(limits.dns_streams)),
            pipes: Arc::new(Semaphore::new(PIPES_MAX)),
            queries: Mutex::new(queries),
            chosen_names: Mutex::new(chosen),
            answered: Mutex::default(),
            rules: Mutex::new(Rules {
                policy: Arc::new(placed.policy),
                live: HashMap::new(),
                next: 0,
            }),
        }
    }

    pub fn policy(&self) -> Arc<Policy> {
        self.rules.lock().policy.clone()
    }

    pub fn termination(&self) -> Option<Arc<Termination>> {
        self.termination.lock().clone()
    }

    pub fn may_ask(&self) -> bool {
        self.queries.lock().take(1, Instant::now()).is_ok()
    }

    /// Whether that many bytes of names the guest made up may leave the host now.
    pub fn may_choose(&self, bytes: u32) -> bool {
        self.chosen_names.lock().take(bytes, Instant::now()).is_ok()
    }

    /// Decides by the policy in force and, if that allows it, puts the connection on the list.
    pub fn admit(self: &Arc<Self>, grounds: Grounds) -> Result<Ticket, Denied> {
        let mut rules = self.rules.lock();
        let (rule, chosen_bytes) = decide(&rules.policy, &grounds)?;
        let cut = Arc::new(Cut::default());
        let id = rules.next;
        rules.next += 1;
        let live = Live {
            grounds,
            address: None,
            cut: cut.clone(),
        };
        rules.live.insert(id, live);
        Ok(Ticket {
            rule,
            chosen_bytes,
            sandbox: self.clone(),
            id,
            cut,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        })
    }

    fn change(&self, policy: Policy) {
        let mut rules = self.rules.lock();
        if *rules.policy == policy {
            return;
        }
        rules.policy = Arc::new(policy);
        let policy = rules.policy.clone();
        let forbidden: Vec<u64> = rules
            .live
            .iter()
            .filter(|(_, live)| !stays(&policy, live))
            .map(|(id, _)| *id)
            .collect();
        for id in forbidden {
            if let Some(live) = rules.live.remove(&id) {
                live.cut.set();
            }
        }
    }

    fn cut_all(&self) {
        let mut rules = self.rules.lock();
        rules.policy = Arc::new(Policy::default());
        for (_, live) in rules.live.drain() {
            live.cut.set();
        }
    }

    /// Remembers that this sandbox got these addresses for the name.
    pub fn answered(&self, name: &Name, addresses: &[Ipv4Addr]) {
        let now = Instant::now();
        let mut answered = self.answered.lock();
        for address in addresses {
            if let Some((at, names)) = answered.names.get_mut(address) {
                *at = now;
                names.retain(|known| known != name);
                names.push(name.clone());
                if names.len() > NAMES_PER_ADDRESS {
                    names.remove(0);
                }
                continue;
            }
            answered.names.insert(*address, (now, vec![name.clone()]));
            answered.order.push_back(*address);
            if answered.order.len() > ANSWERED_MAX
                && let Some(oldest) = answered.order.pop_front()
            {
                answered.names.remove(&oldest);
            }
        }
    }

    /// The names this sandbox got that address for, the latest first.
    pub fn names_of(&self, address: Ipv4Addr) -> Vec<Name> {
        let answered = self.answered.lock();
        match answered.names.get(&address) {
            Some((at, names)) if at.elapsed() < ANSWERED_FOR => {
                names.iter().rev().cloned().collect()
            }
            _ => Vec::new(),
        }
    }
}

fn decide(policy: &Policy, grounds: &Grounds) -> Result<(String, u32), Denied> {
    match grounds {
        Grounds::Name(name, port) => policy
            .name_and_port(name, *port)
            .map(|grant| (grant.rule, grant.chosen_bytes)),
        Grounds::Address(address, port) => policy
            .address_and_port(*address, *port)
            .map(|allowed| (allowed.to_string(), 0))
            .ok_or(Denied::NotListed),
    }
}

fn stays(policy: &Policy, live: &Live) -> bool {
    decide(policy, &live.grounds).is_ok()
        && live
            .address
            .is_none_or(|address| policy.may_carry_to(address, live.grounds.port()).is_ok())
}

impl Grounds {
    fn port(&self) -> u16 {
        match self {
            Self::Name(_, port) | Self::Address(_, port) => *port,
        }
    }
}

impl Ticket {
    /// Notes where the connection is about to lead, if the policy in force still allows that.
    pub fn leads_to(&self, address: Ipv4Addr) -> Result<(), Denied> {
        let mut rules = self.sandbox.rules.lock();
        let policy = rules.policy.clone();
        let Some(live) = rules.live.get_mut(&self.id) else {
            return Err(Denied::NotListed);
        };
        policy.may_carry_to(address, live.grounds.port())?;
        live.address = Some(address);
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.sandbox.rules.lock().live.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use cove_model::NetworkMode;

    use super::*;
    use crate::policy::Allowed;

    const HOME: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

    fn policy(rules: &[&str]) -> Policy {
        let allowed = rules.iter().map(|text| Allowed {
            rule: text.parse().unwrap(),
            preset: None,
        });
        Policy {
            mode: NetworkMode::Allowlist,
            allowed: allowed.collect(),
        }
    }

    fn place(world: &World, id: &SandboxId, rules: &[&str]) {
        world.place(Placed {
            termination: None,
            address: HOME,
            owner: String::new(),
            sandbox: id.clone(),
            policy: policy(rules),
        });
    }

    fn grounds(name: &str) -> Grounds {
        Grounds::Name(Name::from_text(name).unwrap(), 443)
    }

    #[tokio::test]
    async fn a_new_policy_cuts_what_it_forbids_and_nothing_else() {
        let world = World::new(Limits::default(), Vec::new());
        let id = SandboxId::random();
        place(&world, &id, &["a.example", "b.example"]);
        let sandbox = world.at(HOME).unwrap();
        let kept = sandbox.admit(grounds("a.example")).unwrap();
        let ended = sandbox.admit(grounds("b.example")).unwrap();
        place(&world, &id, &["a.example"]);
        ended.cut.wait().await;
        assert!(!kept.cut.now.load(Ordering::Acquire));
        assert!(sandbox.admit(grounds("b.example")).is_err());
    }

    #[tokio::test]
    async fn taking_a_private_block_away_cuts_the_names_that_lead_there() {
        let world = World::new(Limits::default(), Vec::new());
        let id = SandboxId::random();
        place(&world, &id, &["a.example", "10.0.0.0/8"]);
        let sandbox = world.at(HOME).unwrap();
        let ticket = sandbox.admit(grounds("a.example")).unwrap();
        ticket.leads_to(Ipv4Addr::new(10, 1, 1, 1)).unwrap();
        place(&world, &id, &["a.example"]);
        ticket.cut.wait().await;
    }

    #[tokio::test]
    async fn narrowing_a_private_block_to_another_port_cuts_the_names_that_lead_there() {
        let world = World::new(Limits::default(), Vec::new());
        let id = SandboxId::random();
        place(&world, &id, &["a.example", "10.0.0.0/8"]);
        let sandbox = world.at(HOME).unwrap();
        let ticket = sandbox.admit(grounds("a.example")).unwrap();
        ticket.leads_to(Ipv4Addr::new(10, 1, 1, 1)).unwrap();
        place(&world, &id, &["a.example", "10.0.0.0/8:5432"]);
        ticket.cut.wait().await;
        let again = sandbox.admit(grounds("a.example")).unwrap();
        let refused = again.leads_to(Ipv4Addr::new(10, 1, 1, 1));
        assert_eq!(refused, Err(Denied::Private));
    }

    /// The cells of a row of docs/limits.md: total, most for one, always for one.
    fn row(name: &str) -> [String; 3] {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md");
        let page = std::fs::read_to_string(path).unwrap();
        let start = format!("| {name} |");
        let row = page.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("there is no row '{name}'"));
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        [2, 3, 4].map(|cell| cells[cell].replace(',', ""))
    }

    #[test]
    fn the_page_of_limits_has_the_numbers_of_the_gateway() {
        let limits = Limits::default();
        for (name, total) in [
            ("Connections through the gateway", limits.connections_in_all),
            ("Such connections not made yet", limits.half_open_in_all),
            (
                "DNS queries to resolvers",
                crate::serve::QUESTIONS_MAX as usize,
            ),
            ("DNS connections over TCP", limits.dns_streams_in_all),
            ("Pipes between sockets", crate::proxy::relay::PIPES_MAX),
        ] {
            let numbers = [total, total / 2].map(|number| number.to_string());
            assert_eq!(row(name)[..2], numbers, "{name}");
        }
        let logs = RESTING_LOGS_MAX.to_string();
        assert_eq!(
            row("Egress logs of stopped sandboxes")[..2],
            [&logs[..], &logs]
        );
        let lines = format!("{OWNER_LINES_PER_SECOND} a second");
        assert_eq!(
            row("Lines of egress logs that are kept")[1..],
            [&lines[..], &lines]
        );
    }

    #[tokio::test]
    async fn an_organisation_that_logs_much_leaves_the_lines_of_others() {
        let world = World::new(Limits::default(), Vec::new());
        let now = Instant::now();
        let lines_of = |owner: &str| world.lines_of(&owner.into());
        let greedy = lines_of("greedy");
        while greedy.lock().take(1, now).is_ok() {}
        // Of all its sandboxes together.
        assert!(lines_of("greedy").lock().take(1, now).is_err());
        assert!(lines_of("other").lock().take(1, now).is_ok());
    }

    #[tokio::test]
    async fn an_organisation_with_many_resting_logs_loses_its_own() {
        let world = World::new(Limits::default(), Vec::new());
        let rest = |owner: &str| {
            let id = SandboxId::random();
            drop(world.log_to_use(&id));
            world.rest(&HashMap::new(), &id, &owner.into());
            id
        };
        let quiet: Vec<SandboxId> = (0..10).map(|_| rest("quiet")).collect();
        let first = rest("greedy");
        for _ in 0..2 * RESTING_LOGS_MAX {
            rest("greedy");
        }
        assert!(world.log(&first).is_none());
        assert!(quiet.iter().all(|id| world.log(id).is_some()));
        assert_eq!(world.logs.lock().resting.len(), RESTING_LOGS_MAX);
    }

    #[tokio::test]
    async fn another_sandbox_at_the_same_address_inherits_nothing() {
        let world = World::new(Limits::default(), Vec::new());
        place(&world, &SandboxId::random(), &["a.example"]);
        let old = world.at(HOME).unwrap();
        let ticket = old.admit(grounds("a.example")).unwrap();
        old.answered(
            &Name::from_text("a.example").unwrap(),
            &[Ipv4Addr::new(1, 1, 1, 1)],
        );
        place(&world, &SandboxId::random(), &["a.example"]);
        ticket.cut.wait().await;
        let new = world.at(HOME).unwrap();
        assert!(new.names_of(Ipv4Addr::new(1, 1, 1, 1)).is_empty());
        assert!(old.admit(grounds("a.example")).is_err());
    }

    #[test]
    fn logs_of_removed_sandboxes_rest_until_they_are_forgotten() {
        let world = World::new(Limits::default(), Vec::new());
        let id = SandboxId::random();
        place(&world, &id, &[]);
        world.forget(&id);
        assert!(world.log(&id).is_some(), "it still sits somewhere");
        world.remove(HOME);
        assert!(world.log(&id).is_some());
        world.forget(&id);
        assert!(world.log(&id).is_none());
    }

    #[test]
    fn a_sandbox_that_moves_takes_its_log_along() {
        let world = World::new(Limits::default(), Vec::new());
        let id = SandboxId::random();
        place(&world, &id, &[]);
        let log = world.log(&id).unwrap();
        world.place(Placed {
            termination: None,
            owner: String::new(),
            address: Ipv4Addr::new(10, 9, 0, 2),
            sandbox: id.clone(),
            policy: policy(&[]),
        });
        world.remove(HOME);
        world.forget(&id);
        assert!(Arc::ptr_eq(&log, &world.log(&id).unwrap()));
    }

    #[test]
    fn what_was_answered_is_bounded() {
        let world = World::new(Limits::default(), Vec::new());
        place(&world, &SandboxId::random(), &[]);
        let sandbox = world.at(HOME).unwrap();
        let name = Name::from_text("a.example").unwrap();
        for bits in 0..(2 * ANSWERED_MAX as u32) {
            sandbox.answered(&name, &[Ipv4Addr::from_bits(bits)]);
        }
        let answered = sandbox.answered.lock();
        assert_eq!(answered.names.len(), ANSWERED_MAX);
        assert_eq!(answered.order.len(), ANSWERED_MAX);
    }
}
