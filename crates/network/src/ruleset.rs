//! The table of one engine: which packets of which sandbox go where.
//!
//! Rules are made once; a sandbox is elements in sets. Packets of a sandbox are known by the interface
//! they came in on: before anything else looks at them their source, the same in every sandbox, becomes
//! the sandbox's outer address, and all later rules ask for that address.
//!
//! ```text
//! prerouting  -450  entry     not IPv4 or not the inner source: dropped; source := outer address
//!                             (before fragments are put together: those of two sandboxes look alike)
//! prerouting  -100  redirect  DNS to our resolver; of listed sandboxes all TCP to the gateway
//! input          0  input     only what was redirected there; everything else of a sandbox is refused
//! forward        0  forward   neighbours refused; flows of the policy, and of open sandboxes the
//!                             internet, accepted; the rest refused
//! output         0  output    nobody on the host opens connections to a sandbox
//! postrouting  100  leave     the host's address for what goes out
//! postrouting  450  return    destination := inner address, also in what ICMP errors quote
//! ```

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use cove_model::network::{AddressClass, Cidr};

use crate::address::{Addresses, PREFIX, interface};
use crate::nft::{Base, Element, Ownership, Rule, SetKind, Transaction};
use crate::policy::{Flow, Mode, Rules};

const OUTER: &str = "outer";
const OURS: &str = "ours";
const ASKING: &str = "asking";
const LISTED: &str = "listed";
const OPEN: &str = "open";
const FLOWS: &str = "flows";
const PRIVATE: &str = "private";
const LOGGED: &str = "logged";
const CONNECTIONS: &str = "connections";
const REFUSE: &str = "refuse";

/// Refusals of one sandbox that reach the egress log in a second, and at once.
const LOGGED_PER_SECOND: u64 = 20;
const LOGGED_AT_ONCE: u32 = 40;
const LOGGED_FORGOTTEN_S: u64 = 60;
/// What the kernel copies of a refused packet: an IPv4 header without options, and the two ports behind it.
pub const LOGGED_BYTES: u32 = 24;
/// Connections one sandbox may have at a time; the host's table of connections is everybody's.
pub const CONNECTIONS_MAX: u32 = 8192;

/// What resolver and gateway listen on, at the gateway's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// UDP and TCP.
    pub dns: u16,
    pub tcp: u16,
}

/// What the rules of an engine depend on.
#[derive(Debug, Clone)]
pub struct Layout {
    pub table: String,
    pub addresses: Addresses,
    pub ownership: Ownership,
    pub ports: Option<Ports>,
    /// Where refused packets are reported to; absent: nowhere.
    pub log_group: Option<u16>,
}

impl Layout {
    /// The whole table with every sandbox, in one transaction.
    pub fn build<'a>(&self, sandboxes: impl Iterator<Item = (u32, &'a Rules)>) -> Transaction {
        let mut change = Transaction::new(&self.table);
        change.replace_table(self.ownership);
        self.sets(&mut change);
        for (name, base) in [
            (REFUSE, None),
            ("entry", Some(Base::filter(Base::PREROUTING, -450))),
            ("redirect", Some(Base::nat(Base::PREROUTING, -100))),
            ("input", Some(Base::filter(Base::INPUT, 0))),
            ("forward", Some(Base::filter(Base::FORWARD, 0))),
            ("output", Some(Base::filter(Base::OUTPUT, 0))),
            ("leave", Some(Base::nat(Base::POSTROUTING, 100))),
            ("return", Some(Base::filter(Base::POSTROUTING, 450))),
        ] {
            change.chain(name, base);
        }
        for (chain, rule) in self.rules() {
            change.rule(chain, &rule);
        }
        let mut all: Vec<(&str, Vec<Element>)> = Vec::new();
        for (index, rules) in sandboxes {
            for (set, elements) in self.elements(index, rules) {
                match all.iter_mut().find(|(name, _)| *name == set) {
                    Some((_, list)) => list.extend(elements),
                    None => all.push((set, elements.into_iter().collect())),
                }
            }
        }
        for (set, elements) in all {
            change.insert(set, &elements);
        }
        change
    }

    /// From one policy of a sandbox to another; `None` on either side: the sandbox is not there.
    pub fn change(
        &self,
        index: u32,
        old: Option<&Rules>,
        new: Option<&Rules>,
    ) -> Option<Transaction> {
        let before = old
            .map(|rules| self.elements(index, rules))
            .unwrap_or_default();
        let after = new
            .map(|rules| self.elements(index, rules))
            .unwrap_or_default();
        let mut change = Transaction::new(&self.table);
        let mut changed = false;
        for set in [OUTER, OURS, ASKING, LISTED, OPEN, FLOWS] {
            let of = |list: &[(&'static str, BTreeSet<Element>)]| {
                list.iter()
                    .find(|(name, _)| *name == set)
                    .map(|(_, elements)| elements.clone())
                    .unwrap_or_default()
            };
            let (before, after) = (of(&before), of(&after));
            let gone: Vec<Element> = before.difference(&after).cloned().collect();
            let come: Vec<Element> = after.difference(&before).cloned().collect();
            changed |= !gone.is_empty() || !come.is_empty();
            change.remove(set, &gone);
            change.insert(set, &come);
        }
        changed.then_some(change)
    }

    fn elements(&self, index: u32, rules: &Rules) -> Vec<(&'static str, BTreeSet<Element>)> {
        let outer = self.addresses.outer(index);
        let here = BTreeSet::from([Element::address(outer)]);
        let name = BTreeSet::from([Element::name_to_address(&interface(index), outer)]);
        let mut elements = vec![(OUTER, name), (OURS, here.clone())];
        match rules.mode {
            Mode::None => return elements,
            Mode::Listed => elements.extend([(ASKING, here.clone()), (LISTED, here)]),
            Mode::Open => elements.extend([(ASKING, here.clone()), (OPEN, here)]),
        }
        let flows: BTreeSet<Element> = rules
            .flows
            .iter()
            // TCP of listed sandboxes goes through the gateway, which knows the same entries.
            .filter(|flow| rules.mode == Mode::Open || flow.protocol != Flow::TCP)
            .map(|flow| Element::flow(outer, (flow.first, flow.last), flow.protocol, flow.ports))
            .collect();
        if !flows.is_empty() {
            elements.push((FLOWS, flows));
        }
        elements
    }

    fn sets(&self, change: &mut Transaction) {
        change.set(OUTER, SetKind::NameToAddress);
        for set in [OURS, ASKING, LISTED, OPEN] {
            change.set(set, SetKind::Addresses);
        }
        change.set(FLOWS, SetKind::Flows);
        change.set(PRIVATE, SetKind::Networks);
        let seconds = Some(LOGGED_FORGOTTEN_S);
        change.set(LOGGED, SetKind::PerAddress { seconds });
        change.set(CONNECTIONS, SetKind::PerAddress { seconds: None });
        let networks: Vec<Element> = not_internet(&self.addresses)
            .into_iter()
            .flat_map(|(first, last)| Element::network(first, last))
            .collect();
        change.insert(PRIVATE, &networks);
    }

    fn rules(&self) -> Vec<(&'static str, Rule)> {
        use crate::nft::state::{ESTABLISHED, INVALID, NEW, RELATED};
        let (inner, gateway) = (self.addresses.inner(), self.addresses.gateway());
        let from = || Rule::new().enters_by(PREFIX, true);
        let to = || Rule::new().leaves_by(PREFIX, true);
        let mut rules = vec![
            ("entry", Rule::new().enters_by(PREFIX, false).accept()),
            ("entry", Rule::new().ipv4(false).drop()),
        ];
        // What a sandbox sends with its own address, which is every packet of an honest one, is looked up
        // once.
        let own = Rule::new().source(inner, true).mapped_interface(OUTER);
        rules.push(("entry", own.rewrite_source().accept()));
        let forged = || Rule::new().mapped_interface(OUTER).source(inner, false);
        if let Some(group) = self.log_group {
            // By no sandbox of its own: the `nft` program of some distributions ends when it lists a rule
            // whose key comes from a map.
            let told = forged().rate_of_all(LOGGED_PER_SECOND, LOGGED_AT_ONCE);
            rules.push(("entry", told.log(group, LOGGED_BYTES)));
        }
        rules.push(("entry", forged().drop()));

        for chain in ["redirect", "input", "forward", "output", "leave", "return"] {
            rules.push((chain, Rule::new().ipv4(false).accept()));
        }

        if let Some(ports) = self.ports {
            for protocol in [Flow::UDP, Flow::TCP] {
                let question = from()
                    .source_in(ASKING)
                    .destination(gateway)
                    .port(protocol, 53);
                rules.push(("redirect", question.redirect_to(gateway, ports.dns)));
            }
            let listed = from().source_in(LISTED).protocol(Flow::TCP);
            rules.push(("redirect", listed.redirect_to(gateway, ports.tcp)));
        }

        let stranger = Rule::new().destination(gateway).enters_by(PREFIX, false);
        rules.extend([
            ("input", stranger.not_from("lo").drop()),
            ("input", Rule::new().enters_by(PREFIX, false).accept()),
            ("input", self.too_many()),
        ]);
        if let Some(ports) = self.ports {
            let redirected = |set, protocol, port| {
                let local = Rule::new()
                    .source_in(set)
                    .destination(gateway)
                    .port(protocol, port);
                ("input", local.redirected().accept())
            };
            rules.extend([
                redirected(ASKING, Flow::UDP, ports.dns),
                redirected(ASKING, Flow::TCP, ports.dns),
                // Also those from before a listed sandbox became an open one.
                redirected(ASKING, Flow::TCP, ports.tcp),
            ]);
        }
        rules.extend([
            ("input", Rule::new().source_in(OURS).go_to(REFUSE)),
            // Not rewritten, so its interface is nobody's any more.
            ("input", Rule::new().source(inner, true).drop()),
        ]);

        let known = to().destination_in(OURS, true).state(ESTABLISHED | RELATED);
        rules.extend([
            (
                "forward",
                from().leaves_by(PREFIX, true).source_in(OURS).go_to(REFUSE),
            ),
            ("forward", known.accept()),
            ("forward", to().destination_in(OURS, true).drop()),
            ("forward", Rule::new().enters_by(PREFIX, false).accept()),
            // Address translation passes these by: they would leave with the outer address.
            ("forward", Rule::new().state(INVALID).source_in(OURS).drop()),
            ("forward", self.too_many()),
            // Before the flows, whose ranges take longest to look up: most packets go to the internet.
            (
                "forward",
                Rule::new()
                    .source_in(OPEN)
                    .destination_in(PRIVATE, false)
                    .accept(),
            ),
            ("forward", Rule::new().flow_in(FLOWS).accept()),
            ("forward", Rule::new().source_in(OURS).go_to(REFUSE)),
            ("forward", Rule::new().source(inner, true).drop()),
        ]);

        rules.extend([
            ("output", to().destination_in(OURS, true).state(NEW).drop()),
            (
                "leave",
                Rule::new()
                    .source_in(OURS)
                    .leaves_by(PREFIX, false)
                    .masquerade(),
            ),
        ]);
        rules.push(("return", Rule::new().leaves_by(PREFIX, false).accept()));
        // Nearly everything: one look, and past the errors that only ICMP can carry.
        for protocol in [Flow::TCP, Flow::UDP] {
            let plain = Rule::new().protocol(protocol).destination_in(OURS, true);
            rules.push(("return", plain.rewrite_destination(inner).accept()));
        }
        // Unreachable, time exceeded, bad parameter.
        for kind in [3, 11, 12] {
            let error = to()
                .destination_in(OURS, true)
                .plain_header()
                .icmp_kind(kind);
            rules.push(("return", error.rewrite_quoted_source(OURS, inner)));
        }
        rules.push((
            "return",
            to().destination_in(OURS, true).rewrite_destination(inner),
        ));

        if let Some(group) = self.log_group {
            let told = Rule::new().rate(LOGGED, LOGGED_PER_SECOND, LOGGED_AT_ONCE);
            rules.push((REFUSE, told.log(group, LOGGED_BYTES)));
        }
        rules.extend([
            (REFUSE, Rule::new().protocol(Flow::TCP).reset()),
            (REFUSE, Rule::new().prohibit()),
        ]);
        rules
    }

    fn too_many(&self) -> Rule {
        Rule::new()
            .state(crate::nft::state::NEW)
            .source_in(OURS)
            .connections_over(CONNECTIONS, CONNECTIONS_MAX)
            .go_to(REFUSE)
    }
}

/// First and last address of every network an open sandbox must not reach, in order and apart.
pub fn not_internet(addresses: &Addresses) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    let own = addresses.range();
    let mut networks: Vec<(u32, u32)> = AddressClass::private_blocks()
        .iter()
        .chain(AddressClass::never_blocks())
        .chain([&Cidr::new(own.0, own.1)])
        .map(|block| (block.base().into(), block.last().into()))
        .collect();
    networks.sort_unstable();
    let mut apart: Vec<(u32, u32)> = Vec::new();
    for (first, last) in networks {
        match apart.last_mut() {
            Some(previous) if first <= previous.1.saturating_add(1) => {
                previous.1 = previous.1.max(last);
            }
            _ => apart.push((first, last)),
        }
    }
    apart
        .into_iter()
        .map(|(first, last)| (first.into(), last.into()))
        .collect()
}
