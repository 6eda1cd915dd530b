//! nftables over netlink: tables, chains, sets, elements and rules as messages of one transaction.
//!
//! Nothing here knows what the rules are for; that is in `ruleset`.

mod rule;

use std::net::Ipv4Addr;

use crate::netlink::{APPEND, Attributes, Batch, CREATE};

pub use rule::{Base, Rule};

/// What the kernel knows about the connection a packet belongs to.
pub mod state {
    pub use super::rule::{
        STATE_ESTABLISHED as ESTABLISHED, STATE_INVALID as INVALID, STATE_NEW as NEW,
        STATE_RELATED as RELATED,
    };
}

const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM + 2;
const NEW_CHAIN: u16 = SUBSYSTEM + 3;
const NEW_RULE: u16 = SUBSYSTEM + 6;
const NEW_SET: u16 = SUBSYSTEM + 9;
const NEW_ELEMENT: u16 = SUBSYSTEM + 12;
const DELETE_ELEMENT: u16 = SUBSYSTEM + 14;

const FAMILY_INET: u8 = 1;
/// Elements of one message; a nested attribute holds 64 KiB.
const ELEMENTS_PER_MESSAGE: usize = 500;
/// Bytes of an interface's name as the kernel compares it.
pub const NAME_BYTES: usize = 16;

const SET_CONSTANT: u32 = 0x2;
const SET_INTERVAL: u32 = 0x4;
const SET_MAP: u32 = 0x8;
const SET_TIMEOUT: u32 = 0x10;
const SET_EVALUATED: u32 = 0x20;
const SET_CONCATENATION: u32 = 0x80;
const INTERVAL_END: u32 = 0x1;

/// How `nft list` should show a key; the kernel does not look at it.
const TYPE_ADDRESS: u32 = 7;
const TYPE_PROTOCOL: u32 = 12;
const TYPE_PORT: u32 = 13;
const TYPE_NAME: u32 = 41;
const TYPE_BITS: u32 = 6;

/// Who may change a table, and what becomes of it when they end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Only the socket that made it, so that flushing the host's rules spares it; it stays when the
    /// socket closes, and the next one takes it over. Since Linux 6.9.
    Kept,
    /// Anybody.
    Shared,
}

/// What a set holds.
#[derive(Debug, Clone, Copy)]
pub enum SetKind {
    Addresses,
    /// Networks, known when the table is made.
    Networks,
    /// Interface name to address.
    NameToAddress,
    /// Source, range of destinations, protocol, range of ports.
    Flows,
    /// Filled by rules with a state per address; forgotten after this long without use.
    PerAddress {
        seconds: Option<u64>,
    },
}

/// One element in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Element {
    key: Vec<u8>,
    key_end: Option<Vec<u8>>,
    data: Option<Vec<u8>>,
    ends_interval: bool,
}

impl Element {
    pub fn address(address: Ipv4Addr) -> Self {
        Self::plain(address.octets().to_vec())
    }

    pub fn name_to_address(name: &str, address: Ipv4Addr) -> Self {
        Self {
            data: Some(address.octets().to_vec()),
            ..Self::plain(name_bytes(name).to_vec())
        }
    }

    /// A network in a set of networks: two elements, where it begins and where it is over.
    pub fn network(first: Ipv4Addr, last: Ipv4Addr) -> Vec<Self> {
        let mut elements = vec![Self::address(first)];
        if let Some(after) = u32::from(last).checked_add(1) {
            elements.push(Self {
                ends_interval: true,
                ..Self::address(after.into())
            });
        }
        elements
    }

    pub fn flow(
        source: Ipv4Addr,
        destinations: (Ipv4Addr, Ipv4Addr),
        protocol: u8,
        ports: (u16, u16),
    ) -> Self {
        let key = |destination: Ipv4Addr, port: u16| {
            let mut key = Vec::with_capacity(16);
            key.extend(source.octets());
            key.extend(destination.octets());
            key.extend([protocol, 0, 0, 0]);
            key.extend(port.to_be_bytes());
            key.extend([0, 0]);
            key
        };
        Self {
            key_end: Some(key(destinations.1, ports.1)),
            ..Self::plain(key(destinations.0, ports.0))
        }
    }

    fn plain(key: Vec<u8>) -> Self {
        Self {
            key,
            key_end: None,
            data: None,
            ends_interval: false,
        }
    }

    fn write(&self, list: &mut Attributes, deleting: bool) {
        const LIST_ELEMENT: u16 = 1;
        const KEY: u16 = 1;
        const DATA: u16 = 2;
        const FLAGS: u16 = 3;
        const KEY_END: u16 = 10;
        list.nest(LIST_ELEMENT, |element| {
            element.nest(KEY, |key| value(key, &self.key));
            if let Some(end) = &self.key_end {
                element.nest(KEY_END, |key| value(key, end));
            }
            if let Some(data) = self.data.as_ref().filter(|_| !deleting) {
                element.nest(DATA, |attribute| value(attribute, data));
            }
            if self.ends_interval {
                element.put_be32(FLAGS, INTERVAL_END);
            }
        });
    }
}

fn value(attributes: &mut Attributes, bytes: &[u8]) {
    const VALUE: u16 = 1;
    attributes.put(VALUE, bytes);
}

pub fn name_bytes(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    for (slot, byte) in bytes.iter_mut().zip(name.bytes().take(NAME_BYTES - 1)) {
        *slot = byte;
    }
    bytes
}

/// Changes to one table that come into force together or not at all.
#[derive(Debug)]
pub struct Transaction {
    batch: Batch,
    table: String,
    sets: u32,
}

impl Transaction {
    pub fn new(table: &str) -> Self {
        let mut batch = Batch::default();
        batch.message(
            "begin",
            BATCH_BEGIN,
            0,
            &batch_header(),
            &Attributes::default(),
        );
        Self {
            batch,
            table: table.to_owned(),
            sets: 0,
        }
    }

    /// Puts an empty table in the place of whatever had the name.
    pub fn replace_table(&mut self, ownership: Ownership) {
        let mut table = Attributes::default();
        table.put_str(1, &self.table);
        let named = table.clone();
        if ownership == Ownership::Kept {
            const FLAGS: u16 = 2;
            const OWNER_AND_PERSIST: u32 = 0x2 | 0x4;
            table.put_be32(FLAGS, OWNER_AND_PERSIST);
        }
        // Deleting what is not there would fail the whole, so it is made first.
        self.add("make the table", NEW_TABLE, CREATE, &table);
        self.add("clear the table", DELETE_TABLE, 0, &named);
        self.add("make the table", NEW_TABLE, CREATE, &table);
    }

    pub fn delete_table(&mut self) {
        let mut table = Attributes::default();
        table.put_str(1, &self.table);
        self.add("delete the table", DELETE_TABLE, 0, &table);
    }

    pub fn set(&mut self, name: &str, kind: SetKind) {
        const FLAGS: u16 = 3;
        const KEY_TYPE: u16 = 4;
        const KEY_LENGTH: u16 = 5;
        const DATA_TYPE: u16 = 6;
        const DATA_LENGTH: u16 = 7;
        const DESCRIPTION: u16 = 9;
        const ID: u16 = 10;
        const TIMEOUT: u16 = 11;
        const USER_DATA: u16 = 13;
        const SHOWN_KEY: u8 = 0;
        const SHOWN_DATA: u8 = 1;
        const HOST_ORDER: u32 = 1;
        const NETWORK_ORDER: u32 = 2;
        self.sets += 1;
        let mut set = self.named(name);
        set.put_be32(ID, self.sets);
        let (flags, key_type, key_length) = match kind {
            SetKind::Addresses => (0, TYPE_ADDRESS, 4),
            SetKind::Networks => (SET_INTERVAL | SET_CONSTANT, TYPE_ADDRESS, 4),
            SetKind::NameToAddress => (SET_MAP, TYPE_NAME, NAME_BYTES as u32),
            SetKind::Flows => {
                let shown = [TYPE_ADDRESS, TYPE_ADDRESS, TYPE_PROTOCOL, TYPE_PORT]
                    .into_iter()
                    .fold(0, |all, field| all << TYPE_BITS | field);
                (SET_INTERVAL | SET_CONCATENATION, shown, 16)
            }
            SetKind::PerAddress { seconds } => {
                let timeout = if seconds.is_some() { SET_TIMEOUT } else { 0 };
                (SET_EVALUATED | timeout, TYPE_ADDRESS, 4)
            }
        };
        set.put_be32(FLAGS, flags);
        set.put_be32(KEY_TYPE, key_type);
        set.put_be32(KEY_LENGTH, key_length);
        match kind {
            SetKind::NameToAddress => {
                set.put_be32(DATA_TYPE, TYPE_ADDRESS);
                set.put_be32(DATA_LENGTH, 4);
                // Read by the `nft` program alone, which shows names backwards without it.
                let mut shown = Vec::new();
                for (kind, order) in [(SHOWN_KEY, HOST_ORDER), (SHOWN_DATA, NETWORK_ORDER)] {
                    shown.extend([kind, 4]);
                    shown.extend(order.to_ne_bytes());
                }
                set.put(USER_DATA, &shown);
            }
            SetKind::Flows => set.nest(DESCRIPTION, |description| {
                const CONCATENATION: u16 = 2;
                description.nest(CONCATENATION, |fields| {
                    for length in [4, 4, 1, 2] {
                        fields.nest(1, |field| field.put_be32(1, length));
                    }
                });
            }),
            SetKind::PerAddress { seconds } => {
                const SIZE: u16 = 1;
                /// As many as there are outer addresses.
                const SIZE_MAX: u32 = 65_536;
                set.nest(DESCRIPTION, |description| {
                    description.put_be32(SIZE, SIZE_MAX)
                });
                if let Some(seconds) = seconds {
                    set.put(TIMEOUT, &(seconds * 1000).to_be_bytes());
                }
            }
            SetKind::Addresses | SetKind::Networks => {}
        }
        self.add("make a set", NEW_SET, CREATE, &set);
    }

    pub fn chain(&mut self, name: &str, base: Option<Base>) {
        const NAME: u16 = 3;
        const HOOK: u16 = 4;
        const POLICY: u16 = 5;
        const TYPE: u16 = 7;
        const ACCEPT: u32 = 1;
        let mut chain = Attributes::default();
        chain.put_str(1, &self.table);
        chain.put_str(NAME, name);
        if let Some(base) = base {
            chain.nest(HOOK, |hook| {
                hook.put_be32(1, base.hook);
                hook.put(2, &base.priority.to_be_bytes());
            });
            chain.put_be32(POLICY, ACCEPT);
            chain.put_str(TYPE, base.kind);
        }
        self.add("make a chain", NEW_CHAIN, CREATE, &chain);
    }

    pub fn rule(&mut self, chain: &str, rule: &Rule) {
        const EXPRESSIONS: u16 = 4;
        let mut attributes = self.named(chain);
        attributes.nest(EXPRESSIONS, |list| list.append(rule.expressions()));
        self.add("add a rule", NEW_RULE, CREATE | APPEND, &attributes);
    }

    pub fn insert(&mut self, set: &str, elements: &[Element]) {
        self.elements("add elements", NEW_ELEMENT, CREATE, set, elements);
    }

    pub fn remove(&mut self, set: &str, elements: &[Element]) {
        self.elements("remove elements", DELETE_ELEMENT, 0, set, elements);
    }

    fn elements(
        &mut self,
        step: &'static str,
        kind: u16,
        flags: u16,
        set: &str,
        elements: &[Element],
    ) {
        const ELEMENTS: u16 = 3;
        for chunk in elements.chunks(ELEMENTS_PER_MESSAGE) {
            let mut attributes = self.named(set);
            attributes.nest(ELEMENTS, |list| {
                for element in chunk {
                    element.write(list, kind == DELETE_ELEMENT);
                }
            });
            self.add(step, kind, flags, &attributes);
        }
    }

    /// Table and name, which most messages begin with.
    fn named(&self, name: &str) -> Attributes {
        let mut attributes = Attributes::default();
        attributes.put_str(1, &self.table);
        attributes.put_str(2, name);
        attributes
    }

    fn add(&mut self, step: &'static str, kind: u16, flags: u16, attributes: &Attributes) {
        let header = [FAMILY_INET, 0, 0, 0];
        self.batch.message(step, kind, flags, &header, attributes);
    }

    pub fn finish(mut self) -> Batch {
        // The end of a batch is never answered, the message before it is.
        self.batch.acknowledge();
        self.batch.message(
            "commit",
            BATCH_END,
            0,
            &batch_header(),
            &Attributes::default(),
        );
        self.batch
    }
}

fn batch_header() -> [u8; 4] {
    const NFTABLES: u16 = 10;
    let [high, low] = NFTABLES.to_be_bytes();
    [0, 0, high, low]
}
