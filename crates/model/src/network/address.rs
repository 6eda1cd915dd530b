//! Blocks of IPv4 addresses, and which of them are nobody's business unless a policy lists them.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A block of addresses. Its host bits are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    base: Ipv4Addr,
    prefix: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    #[error("not an IPv4 address or block like 10.1.0.0/16")]
    Form,
    #[error("bits below the prefix are set; the block is {0}")]
    HostBits(Cidr),
}

/// How far away an address is, seen from a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    Public,
    /// Private, shared, link-local or set aside: only for those who list it.
    Private,
    /// This host, everybody at once, or nobody: never.
    Never,
}

/// What only those reach who list it. Documentation ranges are not here: they are used as public
/// addresses in closed networks, and lead nowhere elsewhere.
const PRIVATE: [Cidr; 7] = [
    Cidr::new(Ipv4Addr::new(10, 0, 0, 0), 8),
    Cidr::new(Ipv4Addr::new(100, 64, 0, 0), 10),
    Cidr::new(Ipv4Addr::new(169, 254, 0, 0), 16),
    Cidr::new(Ipv4Addr::new(172, 16, 0, 0), 12),
    Cidr::new(Ipv4Addr::new(192, 0, 0, 0), 24),
    Cidr::new(Ipv4Addr::new(192, 168, 0, 0), 16),
    Cidr::new(Ipv4Addr::new(198, 18, 0, 0), 15),
];

const NEVER: [Cidr; 4] = [
    Cidr::new(Ipv4Addr::new(0, 0, 0, 0), 8),
    Cidr::new(Ipv4Addr::new(127, 0, 0, 0), 8),
    Cidr::new(Ipv4Addr::new(224, 0, 0, 0), 4),
    Cidr::new(Ipv4Addr::new(240, 0, 0, 0), 4),
];

impl AddressClass {
    pub fn of(address: Ipv4Addr) -> Self {
        if NEVER.iter().any(|block| block.contains(address)) {
            Self::Never
        } else if PRIVATE.iter().any(|block| block.contains(address)) {
            Self::Private
        } else {
            Self::Public
        }
    }

    /// Blocks that a packet filter drops unless they are listed.
    pub fn private_blocks() -> &'static [Cidr] {
        &PRIVATE
    }

    /// Blocks that a packet filter always drops.
    pub fn never_blocks() -> &'static [Cidr] {
        &NEVER
    }
}

impl Cidr {
    /// Panics at compile time, or in a test, when the prefix is no prefix; host bits are cleared.
    pub const fn new(base: Ipv4Addr, prefix: u8) -> Self {
        assert!(prefix <= 32, "a prefix has at most 32 bits");
        let base = Ipv4Addr::from_bits(base.to_bits() & mask(prefix));
        Self { base, prefix }
    }

    pub const fn single(address: Ipv4Addr) -> Self {
        Self::new(address, 32)
    }

    pub const fn base(self) -> Ipv4Addr {
        self.base
    }

    pub const fn prefix(self) -> u8 {
        self.prefix
    }

    pub const fn contains(self, address: Ipv4Addr) -> bool {
        address.to_bits() & mask(self.prefix) == self.base.to_bits()
    }

    /// The last address of the block.
    pub const fn last(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.base.to_bits() | !mask(self.prefix))
    }

    pub const fn lies_within(self, other: Self) -> bool {
        self.prefix >= other.prefix && other.contains(self.base)
    }

    pub const fn overlaps(self, other: Self) -> bool {
        self.lies_within(other) || other.lies_within(self)
    }

    /// Whether listing this block opens `address`. A wide block such as 0.0.0.0/0 does not open the
    /// private ranges inside it: whoever wants one names it, or a part of it.
    pub fn opens(self, address: Ipv4Addr) -> bool {
        self.contains(address)
            && match AddressClass::of(address) {
                AddressClass::Never => false,
                AddressClass::Public => true,
                AddressClass::Private => PRIVATE
                    .iter()
                    .any(|block| block.contains(address) && self.lies_within(*block)),
            }
    }
}

const fn mask(prefix: u8) -> u32 {
    if prefix == 0 {
        0
    } else {
        u32::MAX << (32 - prefix)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix == 32 {
            write!(f, "{}", self.base)
        } else {
            write!(f, "{}/{}", self.base, self.prefix)
        }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address, prefix) = match text.split_once('/') {
            None => (text, 32),
            Some((address, digits)) => {
                let plain = !digits.is_empty()
                    && digits.len() <= 2
                    && digits.bytes().all(|b| b.is_ascii_digit());
                let prefix = digits.parse().ok().filter(|bits| plain && *bits <= 32);
                (address, prefix.ok_or(CidrError::Form)?)
            }
        };
        let address: Ipv4Addr = address.parse().map_err(|_| CidrError::Form)?;
        let block = Self::new(address, prefix);
        if block.base == address {
            Ok(block)
        } else {
            Err(CidrError::HostBits(block))
        }
    }
}

impl TryFrom<String> for Cidr {
    type Error = CidrError;
    fn try_from(text: String) -> Result<Self, CidrError> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(block: Cidr) -> String {
        block.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_know_how_far_away_they_are() {
        for (address, reach) in [
            ("8.8.8.8", AddressClass::Public),
            ("203.0.113.80", AddressClass::Public),
            ("10.0.0.1", AddressClass::Private),
            ("172.31.255.255", AddressClass::Private),
            ("172.32.0.0", AddressClass::Public),
            ("169.254.169.254", AddressClass::Private),
            ("100.127.0.1", AddressClass::Private),
            ("127.0.0.1", AddressClass::Never),
            ("0.0.0.0", AddressClass::Never),
            ("224.0.0.1", AddressClass::Never),
            ("255.255.255.255", AddressClass::Never),
        ] {
            assert_eq!(
                AddressClass::of(address.parse().unwrap()),
                reach,
                "{address}"
            );
        }
    }

    #[test]
    fn a_wide_block_does_not_open_what_is_private() {
        let metadata = Ipv4Addr::new(169, 254, 169, 254);
        for wide in ["0.0.0.0/0", "128.0.0.0/1", "169.252.0.0/14"] {
            assert!(!block(wide).opens(metadata), "{wide}");
        }
        for named in ["169.254.0.0/16", "169.254.169.254", "169.254.169.0/24"] {
            assert!(block(named).opens(metadata), "{named}");
        }
        assert!(block("0.0.0.0/0").opens(Ipv4Addr::new(8, 8, 8, 8)));
        assert!(!block("127.0.0.0/8").opens(Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn loose_spellings_are_refused() {
        for bad in [
            "",
            "10",
            "10.1",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/008",
            "10.0.0.1/8",
            "010.0.0.1",
            "0x0a.0.0.1",
            "::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn blocks_survive_being_written(bits in any::<u32>(), prefix in 0u8..=32) {
            let block = Cidr::new(Ipv4Addr::from_bits(bits), prefix);
            prop_assert_eq!(block.to_string().parse::<Cidr>(), Ok(block));
            prop_assert!(block.contains(block.base()) && block.contains(block.last()));
        }

        #[test]
        fn what_is_never_reachable_is_opened_by_no_block(bits in any::<u32>(), prefix in 0u8..=32) {
            let address = Ipv4Addr::from_bits(bits);
            let opened = Cidr::new(address, prefix).opens(address);
            prop_assert!(!(opened && AddressClass::of(address) == AddressClass::Never));
        }
    }
}
