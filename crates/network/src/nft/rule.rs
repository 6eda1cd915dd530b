//! Rules as lists of expressions, written in the order the kernel evaluates them. An expression that
//! does not hold ends its rule.

use std::net::Ipv4Addr;

use crate::netlink::Attributes;

/// Where a chain is called from.
#[derive(Debug, Clone, Copy)]
pub struct Base {
    pub kind: &'static str,
    pub hook: u32,
    pub priority: i32,
}

impl Base {
    pub const fn filter(hook: u32, priority: i32) -> Self {
        Self {
            kind: "filter",
            hook,
            priority,
        }
    }

    pub const fn nat(hook: u32, priority: i32) -> Self {
        Self {
            kind: "nat",
            hook,
            priority,
        }
    }

    pub const PREROUTING: u32 = 0;
    pub const INPUT: u32 = 1;
    pub const FORWARD: u32 = 2;
    pub const OUTPUT: u32 = 3;
    pub const POSTROUTING: u32 = 4;
}

/// The verdict's place, sixteen bytes for names, and four words after them.
const VERDICT: u32 = 0;
const NAME: u32 = 1;
const WORD: [u32; 4] = [12, 13, 14, 15];

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;

const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const NFPROTO_IPV4: u8 = 2;

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const OFFSET_SOURCE: u32 = 12;
const OFFSET_DESTINATION: u32 = 16;
const OFFSET_CHECKSUM: u32 = 10;
/// In an ICMP error behind a plain header: its checksum, and the source of the packet it is about.
const OFFSET_ICMP_CHECKSUM: u32 = 22;
const OFFSET_QUOTED_SOURCE: u32 = 40;

const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
pub const STATE_INVALID: u32 = 1;
pub const STATE_ESTABLISHED: u32 = 2;
pub const STATE_RELATED: u32 = 4;
pub const STATE_NEW: u32 = 8;
const STATUS_DNAT: u32 = 1 << 5;

const ICMP: u8 = 1;

#[derive(Debug, Clone, Default)]
pub struct Rule {
    expressions: Attributes,
}

impl Rule {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn expressions(&self) -> &Attributes {
        &self.expressions
    }

    fn expression(mut self, name: &str, data: impl FnOnce(&mut Attributes)) -> Self {
        self.expressions.nest(1, |expression| {
            expression.put_str(1, name);
            expression.nest(2, data);
        });
        self
    }

    fn meta(self, key: u32, register: u32) -> Self {
        self.expression("meta", |data| {
            data.put_be32(1, register);
            data.put_be32(2, key);
        })
    }

    fn compare(self, register: u32, operation: u32, bytes: &[u8]) -> Self {
        self.expression("cmp", |data| {
            data.put_be32(1, register);
            data.put_be32(2, operation);
            data.nest(3, |value| value.put(1, bytes));
        })
    }

    fn load(self, base: u32, offset: u32, length: u32, register: u32) -> Self {
        self.expression("payload", |data| {
            data.put_be32(1, register);
            data.put_be32(2, base);
            data.put_be32(3, offset);
            data.put_be32(4, length);
        })
    }

    fn store(self, offset: u32, register: u32, checksum: u32, pseudo_header: bool) -> Self {
        const INTERNET_CHECKSUM: u32 = 1;
        self.expression("payload", |data| {
            data.put_be32(2, NETWORK_HEADER);
            data.put_be32(3, offset);
            data.put_be32(4, 4);
            data.put_be32(5, register);
            data.put_be32(6, INTERNET_CHECKSUM);
            data.put_be32(7, checksum);
            if pseudo_header {
                data.put_be32(8, 1);
            }
        })
    }

    fn masked(self, register: u32, mask: u32) -> Self {
        self.expression("bitwise", |data| {
            data.put_be32(1, register);
            data.put_be32(2, register);
            data.put_be32(3, 4);
            data.nest(4, |value| value.put(1, &mask.to_ne_bytes()));
            data.nest(5, |value| value.put(1, &[0; 4]));
        })
    }

    fn look_up(self, set: &str, key: u32, into: Option<u32>, inverted: bool) -> Self {
        self.expression("lookup", |data| {
            data.put_str(1, set);
            data.put_be32(2, key);
            if let Some(register) = into {
                data.put_be32(3, register);
            }
            if inverted {
                data.put_be32(5, 1);
            }
        })
    }

    fn immediate(self, register: u32, bytes: &[u8]) -> Self {
        self.expression("immediate", |data| {
            data.put_be32(1, register);
            data.nest(2, |value| value.put(1, bytes));
        })
    }

    fn verdict(self, code: i32, chain: Option<&str>) -> Self {
        self.expression("immediate", |data| {
            data.put_be32(1, VERDICT);
            data.nest(2, |value| {
                value.nest(2, |verdict| {
                    verdict.put(1, &code.to_be_bytes());
                    if let Some(chain) = chain {
                        verdict.put_str(2, chain);
                    }
                });
            });
        })
    }

    pub fn ipv4(self, is: bool) -> Self {
        let operation = if is { EQUAL } else { NOT_EQUAL };
        self.meta(META_NFPROTO, WORD[0])
            .compare(WORD[0], operation, &[NFPROTO_IPV4])
    }

    /// The packet came in on an interface whose name begins so.
    pub fn enters_by(self, prefix: &str, is: bool) -> Self {
        let operation = if is { EQUAL } else { NOT_EQUAL };
        self.meta(META_IIFNAME, NAME)
            .compare(NAME, operation, prefix.as_bytes())
    }

    /// The packet leaves through an interface whose name begins so.
    pub fn leaves_by(self, prefix: &str, is: bool) -> Self {
        let operation = if is { EQUAL } else { NOT_EQUAL };
        self.meta(META_OIFNAME, NAME)
            .compare(NAME, operation, prefix.as_bytes())
    }

    pub fn not_from(self, interface: &str) -> Self {
        self.meta(META_IIFNAME, NAME)
            .compare(NAME, NOT_EQUAL, &super::name_bytes(interface))
    }

    /// Finds what the map has for the interface the packet came in on; ends the rule when nothing.
    pub fn mapped_interface(self, map: &str) -> Self {
        self.meta(META_IIFNAME, NAME)
            .look_up(map, NAME, Some(WORD[0]), false)
    }

    /// Writes what [`Rule::mapped_interface`] found over the source address.
    pub fn rewrite_source(self) -> Self {
        self.store(OFFSET_SOURCE, WORD[0], OFFSET_CHECKSUM, true)
    }

    pub fn rewrite_destination(self, address: Ipv4Addr) -> Self {
        self.immediate(WORD[0], &address.octets()).store(
            OFFSET_DESTINATION,
            WORD[0],
            OFFSET_CHECKSUM,
            true,
        )
    }

    /// An ICMP error about a packet whose source is in the set gets another source quoted.
    pub fn rewrite_quoted_source(self, set: &str, address: Ipv4Addr) -> Self {
        self.load(NETWORK_HEADER, OFFSET_QUOTED_SOURCE, 4, WORD[0])
            .look_up(set, WORD[0], None, false)
            .immediate(WORD[0], &address.octets())
            .store(OFFSET_QUOTED_SOURCE, WORD[0], OFFSET_ICMP_CHECKSUM, false)
    }

    /// The first byte of the header says: version 4, no options.
    pub fn plain_header(self) -> Self {
        self.load(NETWORK_HEADER, 0, 1, WORD[0])
            .compare(WORD[0], EQUAL, &[0x45])
    }

    pub fn icmp_kind(self, kind: u8) -> Self {
        self.protocol(ICMP)
            .load(TRANSPORT_HEADER, 0, 1, WORD[0])
            .compare(WORD[0], EQUAL, &[kind])
    }

    pub fn source(self, address: Ipv4Addr, is: bool) -> Self {
        let operation = if is { EQUAL } else { NOT_EQUAL };
        self.load(NETWORK_HEADER, OFFSET_SOURCE, 4, WORD[1])
            .compare(WORD[1], operation, &address.octets())
    }

    pub fn source_in(self, set: &str) -> Self {
        self.load(NETWORK_HEADER, OFFSET_SOURCE, 4, WORD[0])
            .look_up(set, WORD[0], None, false)
    }

    pub fn destination(self, address: Ipv4Addr) -> Self {
        self.load(NETWORK_HEADER, OFFSET_DESTINATION, 4, WORD[0])
            .compare(WORD[0], EQUAL, &address.octets())
    }

    pub fn destination_in(self, set: &str, is: bool) -> Self {
        self.load(NETWORK_HEADER, OFFSET_DESTINATION, 4, WORD[0])
            .look_up(set, WORD[0], None, !is)
    }

    /// Source, destination, protocol and port are in the set.
    pub fn flow_in(self, set: &str) -> Self {
        self.load(NETWORK_HEADER, OFFSET_SOURCE, 4, WORD[0])
            .load(NETWORK_HEADER, OFFSET_DESTINATION, 4, WORD[1])
            .meta(META_L4PROTO, WORD[2])
            .load(TRANSPORT_HEADER, 2, 2, WORD[3])
            .look_up(set, WORD[0], None, false)
    }

    pub fn protocol(self, protocol: u8) -> Self {
        self.meta(META_L4PROTO, WORD[0])
            .compare(WORD[0], EQUAL, &[protocol])
    }

    pub fn port(self, protocol: u8, port: u16) -> Self {
        self.protocol(protocol)
            .load(TRANSPORT_HEADER, 2, 2, WORD[0])
            .compare(WORD[0], EQUAL, &port.to_be_bytes())
    }

    fn tracked(self, key: u32, any_of: u32) -> Self {
        self.expression("ct", |data| {
            data.put_be32(1, WORD[0]);
            data.put_be32(2, key);
        })
        .masked(WORD[0], any_of)
        .compare(WORD[0], NOT_EQUAL, &[0; 4])
    }

    pub fn state(self, any_of: u32) -> Self {
        self.tracked(CT_STATE, any_of)
    }

    /// Its destination was changed by a rule of ours.
    pub fn redirected(self) -> Self {
        self.tracked(CT_STATUS, STATUS_DNAT)
    }

    /// Holds while the source stays under a rate in this set.
    pub fn rate(self, set: &str, per_second: u64, burst: u32) -> Self {
        const UPDATE: u32 = 1;
        self.load(NETWORK_HEADER, OFFSET_SOURCE, 4, WORD[0])
            .dynamic(set, UPDATE, "limit", |limit| rate(limit, per_second, burst))
    }

    /// Holds while all packets that come this far together stay under a rate.
    pub fn rate_of_all(self, per_second: u64, burst: u32) -> Self {
        self.expression("limit", |limit| rate(limit, per_second, burst))
    }

    /// Holds once the source has more connections than this.
    pub fn connections_over(self, set: &str, count: u32) -> Self {
        const ADD: u32 = 0;
        self.load(NETWORK_HEADER, OFFSET_SOURCE, 4, WORD[0])
            .dynamic(set, ADD, "connlimit", |limit| {
                limit.put_be32(1, count);
                limit.put_be32(2, 1);
            })
    }

    fn dynamic(
        self,
        set: &str,
        operation: u32,
        name: &str,
        state: impl FnOnce(&mut Attributes),
    ) -> Self {
        self.expression("dynset", |data| {
            data.put_str(1, set);
            data.put_be32(3, operation);
            data.put_be32(4, WORD[0]);
            data.nest(7, |expression| {
                expression.put_str(1, name);
                expression.nest(2, state);
            });
        })
    }

    /// Copies the beginning of the packet to the listener of the group.
    pub fn log(self, group: u16, bytes: u32) -> Self {
        self.expression("log", |data| {
            data.put(1, &group.to_be_bytes());
            data.put_be32(3, bytes);
            data.put(4, &1u16.to_be_bytes());
        })
    }

    pub fn redirect_to(self, address: Ipv4Addr, port: u16) -> Self {
        const DNAT: u32 = 1;
        self.immediate(WORD[0], &address.octets())
            .immediate(WORD[1], &port.to_be_bytes())
            .expression("nat", |data| {
                data.put_be32(1, DNAT);
                data.put_be32(2, u32::from(NFPROTO_IPV4));
                data.put_be32(3, WORD[0]);
                data.put_be32(5, WORD[1]);
            })
    }

    pub fn masquerade(self) -> Self {
        self.expression("masq", |_| {})
    }

    pub fn reset(self) -> Self {
        self.expression("reject", |data| data.put_be32(1, 1))
    }

    /// Answers that it is prohibited.
    pub fn prohibit(self) -> Self {
        self.expression("reject", |data| {
            data.put_be32(1, 2);
            data.put(2, &[3]);
        })
    }

    pub fn accept(self) -> Self {
        self.verdict(1, None)
    }

    pub fn drop(self) -> Self {
        self.verdict(0, None)
    }

    pub fn go_to(self, chain: &str) -> Self {
        self.verdict(-4, Some(chain))
    }
}

fn rate(limit: &mut Attributes, per_second: u64, burst: u32) {
    limit.put(1, &per_second.to_be_bytes());
    limit.put(2, &1u64.to_be_bytes());
    limit.put_be32(3, burst);
    limit.put_be32(4, 0);
}
