//! A sandbox's policy as packets see it.

use std::net::Ipv4Addr;

use cove_model::network::{AddressClass, Cidr, EntryKind, Target};
use cove_model::{NetworkMode, NetworkPolicy};

const BYTES_PER_MBIT: u64 = 125_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Nothing at all.
    #[default]
    None,
    /// TCP through the gateway, everything else only where a flow says so.
    Listed,
    /// The internet, and what flows add to it.
    Open,
}

/// Packets that may go out by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    pub first: Ipv4Addr,
    pub last: Ipv4Addr,
    pub protocol: u8,
    pub ports: (u16, u16),
}

impl Flow {
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    pub mode: Mode,
    pub flows: Vec<Flow>,
    /// Bytes per second the sandbox may send and receive.
    pub up: Option<u64>,
    pub down: Option<u64>,
}

impl Rules {
    /// The part of a policy that packets are judged by. Names and presets are the gateway's.
    pub fn of(policy: &NetworkPolicy) -> Self {
        let mut flows = Vec::new();
        for entry in policy.entries() {
            let (rule, block) = match entry.kind() {
                EntryKind::Rule(rule) => match rule.target {
                    Target::Addresses(block) => (rule, block),
                    Target::Name(_) => continue,
                },
                EntryKind::Preset(_) => continue,
            };
            let ports = rule
                .ports
                .map_or((0, u16::MAX), |range| (range.first, range.last));
            for (first, last) in opened(block) {
                flows.extend([Flow::TCP, Flow::UDP].map(|protocol| Flow {
                    first,
                    last,
                    protocol,
                    ports,
                }));
            }
        }
        let bytes = |mbit: Option<u32>| mbit.map(|mbit| u64::from(mbit) * BYTES_PER_MBIT);
        Self {
            mode: match policy.mode {
                NetworkMode::None => Mode::None,
                NetworkMode::Allowlist => Mode::Listed,
                NetworkMode::Open => Mode::Open,
            },
            flows: apart(&flows),
            up: bytes(policy.bandwidth_up_mbit),
            down: bytes(policy.bandwidth_down_mbit),
        }
    }

    /// Whether a connection may go on. `redirected` ones are the gateway's to judge.
    pub fn allows(
        &self,
        to: Ipv4Addr,
        protocol: u8,
        port: u16,
        redirected: bool,
        internet: impl Fn(Ipv4Addr) -> bool,
    ) -> bool {
        let listed = self.flows.iter().any(|flow| {
            flow.protocol == protocol
                && (flow.first..=flow.last).contains(&to)
                && (flow.ports.0..=flow.ports.1).contains(&port)
        });
        match self.mode {
            Mode::None => false,
            Mode::Listed => redirected || (listed && protocol != Flow::TCP),
            Mode::Open => redirected || listed || internet(to),
        }
    }
}

/// The same flows without overlaps, which the kernel's sets refuse.
fn apart(flows: &[Flow]) -> Vec<Flow> {
    let mut result = Vec::new();
    for protocol in [Flow::TCP, Flow::UDP] {
        let of: Vec<&Flow> = flows
            .iter()
            .filter(|flow| flow.protocol == protocol)
            .collect();
        // Where the set of entries that hold can change, in 64 bits: the last address has a next one.
        let mut borders: Vec<u64> = of
            .iter()
            .flat_map(|flow| {
                [
                    u64::from(u32::from(flow.first)),
                    u64::from(u32::from(flow.last)) + 1,
                ]
            })
            .collect();
        borders.sort_unstable();
        borders.dedup();
        let mut open: Vec<Flow> = Vec::new();
        for pair in borders.windows(2) {
            let (first, last) = (address(pair[0]), address(pair[1] - 1));
            let here: Vec<Flow> = merged_ports(&of, first)
                .into_iter()
                .map(|ports| Flow {
                    first,
                    last,
                    protocol,
                    ports,
                })
                .collect();
            let continues = open.len() == here.len()
                && open.iter().zip(&here).all(|(before, now)| {
                    before.ports == now.ports && u64::from(u32::from(before.last)) + 1 == pair[0]
                });
            if continues {
                open.iter_mut().for_each(|flow| flow.last = last);
            } else {
                result.append(&mut open);
                open = here;
            }
        }
        result.append(&mut open);
    }
    result
}

fn address(number: u64) -> Ipv4Addr {
    Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX))
}

/// The ports that are open at an address, in order and apart.
fn merged_ports(flows: &[&Flow], at: Ipv4Addr) -> Vec<(u16, u16)> {
    let mut ports: Vec<(u16, u16)> = flows
        .iter()
        .filter(|flow| (flow.first..=flow.last).contains(&at))
        .map(|flow| flow.ports)
        .collect();
    ports.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ports {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// What listing a block opens: all of it within a private block, otherwise its public parts.
fn opened(block: Cidr) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    if AddressClass::private_blocks()
        .iter()
        .any(|private| block.lies_within(*private))
    {
        return vec![(block.base(), block.last())];
    }
    let mut closed: Vec<Cidr> = AddressClass::private_blocks()
        .iter()
        .chain(AddressClass::never_blocks())
        .copied()
        .filter(|closed| closed.overlaps(block))
        .collect();
    closed.sort_unstable();
    let mut opened = Vec::new();
    let mut next = Some(u32::from(block.base()));
    for hole in closed {
        let Some(first) = next else { break };
        let before = u32::from(hole.base());
        if first < before {
            opened.push((first.into(), (before - 1).into()));
        }
        next = u32::from(hole.last()).checked_add(1);
    }
    let last = u32::from(block.last());
    if let Some(first) = next.filter(|first| *first <= last) {
        opened.push((first.into(), last.into()));
    }
    opened
}

#[cfg(test)]
mod tests {
    use cove_model::network::Entry;

    use super::*;

    #[test]
    fn a_wide_block_opens_no_private_network_inside_it() {
        for text in [
            "0.0.0.0/0",
            "8.0.0.0/6",
            "192.0.0.0/8",
            "10.0.0.0/7",
            "1.2.3.0/24",
        ] {
            let block: Cidr = text.parse().unwrap();
            let ranges = opened(block);
            let inside = |address: u32| {
                ranges
                    .iter()
                    .any(|(first, last)| (u32::from(*first)..=u32::from(*last)).contains(&address))
            };
            // Every border between two kinds of addresses, and its neighbours.
            for edge in AddressClass::private_blocks()
                .iter()
                .chain(AddressClass::never_blocks())
            {
                for border in [u32::from(edge.base()), u32::from(edge.last())] {
                    for address in [border.saturating_sub(1), border, border.saturating_add(1)] {
                        let opens = block.opens(address.into());
                        assert_eq!(inside(address), opens, "{text} {}", Ipv4Addr::from(address));
                    }
                }
            }
        }
        let own: Cidr = "10.1.0.0/16".parse().unwrap();
        assert_eq!(opened(own), [(own.base(), own.last())]);
        assert!(opened("127.0.0.0/8".parse().unwrap()).is_empty());
    }

    #[test]
    fn overlapping_entries_become_flows_that_lie_apart() {
        let policy = NetworkPolicy {
            mode: NetworkMode::Allowlist,
            allow: Some(
                Entry::list([
                    "10.0.0.0/8:80",
                    "10.1.0.0/16",
                    "10.1.2.3:22",
                    "10.255.255.255:1-90",
                    "10.0.0.0/8:81",
                ])
                .unwrap(),
            ),
            ..NetworkPolicy::default()
        };
        let rules = Rules::of(&policy);
        let holds = |address: Ipv4Addr, port: u16| {
            rules
                .flows
                .iter()
                .filter(|flow| {
                    flow.protocol == Flow::UDP
                        && (flow.first..=flow.last).contains(&address)
                        && (flow.ports.0..=flow.ports.1).contains(&port)
                })
                .count()
        };
        for (address, port, expected) in [
            ([10, 0, 0, 0], 80, 1),
            ([10, 0, 0, 0], 81, 1),
            ([10, 0, 0, 0], 82, 0),
            ([10, 1, 2, 3], 22, 1),
            ([10, 1, 0, 0], 0, 1),
            ([10, 1, 255, 255], 65_535, 1),
            ([10, 2, 0, 0], 22, 0),
            ([10, 255, 255, 255], 1, 1),
            ([10, 255, 255, 255], 80, 1),
            ([10, 255, 255, 254], 1, 0),
            ([11, 0, 0, 0], 80, 0),
        ] {
            assert_eq!(holds(address.into(), port), expected, "{address:?}:{port}");
        }
    }

    #[test]
    fn what_a_policy_allows_by_packet() {
        let public = Ipv4Addr::new(1, 1, 1, 1);
        let private = Ipv4Addr::new(10, 0, 0, 1);
        let internet = |address: Ipv4Addr| address == public;
        let flows = vec![Flow {
            first: private,
            last: private,
            protocol: Flow::UDP,
            ports: (500, 600),
        }];
        let rules = |mode| Rules {
            mode,
            flows: flows.clone(),
            ..Rules::default()
        };
        let ask = |mode, to, protocol, port, redirected| {
            rules(mode).allows(to, protocol, port, redirected, internet)
        };
        assert!(!ask(Mode::None, public, Flow::TCP, 80, false));
        assert!(!ask(Mode::None, private, Flow::UDP, 550, true));
        assert!(ask(Mode::Open, public, Flow::TCP, 80, false));
        assert!(!ask(Mode::Open, private, Flow::TCP, 550, false));
        assert!(ask(Mode::Open, private, Flow::UDP, 550, false));
        assert!(!ask(Mode::Open, private, Flow::UDP, 499, false));
        assert!(ask(Mode::Listed, public, Flow::TCP, 443, true));
        assert!(!ask(Mode::Listed, public, Flow::TCP, 443, false));
        assert!(ask(Mode::Listed, private, Flow::UDP, 600, false));
        assert!(!ask(Mode::Listed, public, Flow::UDP, 443, false));
    }
}
