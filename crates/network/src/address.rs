//! Which addresses and names a host's sandboxes have.
//!
//! One range of addresses serves all engines of a host. Its first half has the *outer* addresses, one
//! for each sandbox by the index of its uid range; in the second half lie the two that are the same
//! for every sandbox: the gateway's, and the *inner* one that it sees as its own.

use std::net::Ipv4Addr;

/// Every host-side interface begins with this.
pub const PREFIX: &str = "cv";
/// What the interface is called inside.
pub const INSIDE: &str = "eth0";
/// Both ends of every pair have it: with ARP off the kernel addresses frames to its own.
pub const MAC: [u8; 6] = [0x02, 0xc0, 0x5e, 0x00, 0x00, 0x01];
/// Bits of the prefix of the network that inner address and gateway share.
pub const INNER_PREFIX: u8 = 30;
const RANGE_PREFIX: u8 = 15;
/// Where in its range the gateway is.
const GATEWAY: u32 = 0x1_0001;
/// Set aside for tests of network devices, so that hardly any host uses it.
const DEFAULT_RANGE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    base: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the first address of a /{RANGE_PREFIX} network")]
pub struct BadRange(String);

impl Default for Addresses {
    fn default() -> Self {
        Self {
            base: DEFAULT_RANGE.into(),
        }
    }
}

impl std::str::FromStr for Addresses {
    type Err = BadRange;

    /// `198.18.0.0/15`; other lengths are refused.
    fn from_str(text: &str) -> Result<Self, BadRange> {
        let bad = || BadRange(text.to_owned());
        let (address, bits) = text.split_once('/').ok_or_else(bad)?;
        let base: u32 = address.parse::<Ipv4Addr>().map_err(|_| bad())?.into();
        let aligned = base & !mask(RANGE_PREFIX) == 0;
        if bits != RANGE_PREFIX.to_string() || !aligned {
            return Err(bad());
        }
        Ok(Self { base })
    }
}

impl std::fmt::Display for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{RANGE_PREFIX}", Ipv4Addr::from(self.base))
    }
}

impl Addresses {
    /// The address that stands for a sandbox on its host; `index` is its uid range's.
    pub fn outer(&self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.base + (index & 0xffff))
    }

    /// The index behind an outer address.
    pub fn index(&self, outer: Ipv4Addr) -> Option<u32> {
        u32::from(outer)
            .checked_sub(self.base)
            .filter(|index| *index <= 0xffff)
    }

    /// Where sandboxes send everything, and where resolver and gateway listen.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.base + GATEWAY)
    }

    /// Whether an address is the gateway's in any range.
    pub fn is_gateway(address: Ipv4Addr) -> bool {
        u32::from(address) & !mask(RANGE_PREFIX) == GATEWAY
    }

    /// What every sandbox sees as its own address.
    pub fn inner(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 0x1_0002)
    }

    pub fn range(&self) -> (Ipv4Addr, u8) {
        (self.base.into(), RANGE_PREFIX)
    }

    pub fn overlaps(&self, network: Ipv4Addr, bits: u8) -> bool {
        let shorter = mask(bits.min(RANGE_PREFIX));
        u32::from(network) & shorter == self.base & shorter
    }
}

/// The interface of a sandbox on the host's side.
pub fn interface(index: u32) -> String {
    format!("{PREFIX}{index}")
}

/// The index behind an interface's name.
pub fn index_of(interface: &str) -> Option<u32> {
    let digits = interface.strip_prefix(PREFIX)?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| plain)
}

pub fn mask(bits: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_an_address_of_its_own_and_can_be_read_back() {
        let plan = Addresses::default();
        for index in [1, 28_672, 65_535] {
            let outer = plan.outer(index);
            assert_eq!(plan.index(outer), Some(index));
            assert_ne!(outer, plan.gateway());
            assert_ne!(outer, plan.inner());
            assert_eq!(index_of(&interface(index)), Some(index));
        }
        assert_eq!(plan.index(plan.gateway()), None);
        assert_eq!(plan.index(Ipv4Addr::new(198, 17, 255, 255)), None);
    }

    #[test]
    fn names_of_other_interfaces_have_no_index() {
        for name in ["cv", "cvx", "cv01", "cv-1", "cv1x", "eth0", "cv99999999999"] {
            assert_eq!(index_of(name), None, "{name}");
        }
    }

    #[test]
    fn ranges_are_checked() {
        assert_eq!("198.18.0.0/15".parse(), Ok(Addresses::default()));
        for bad in [
            "198.19.0.0/15",
            "10.0.0.0/8",
            "10.0.0.0",
            "x/15",
            "10.0.0.0/ 15",
        ] {
            assert!(bad.parse::<Addresses>().is_err(), "{bad}");
        }
        assert_eq!(
            "10.2.0.0/15".parse::<Addresses>().unwrap().to_string(),
            "10.2.0.0/15"
        );
    }

    #[test]
    fn overlapping_networks_are_found() {
        let plan = Addresses::default();
        let net = |a, b, c, d| Ipv4Addr::new(a, b, c, d);
        assert!(plan.overlaps(net(198, 18, 5, 0), 24));
        assert!(plan.overlaps(net(198, 0, 0, 0), 8));
        assert!(plan.overlaps(net(0, 0, 0, 0), 0));
        assert!(!plan.overlaps(net(198, 20, 0, 0), 16));
        assert!(!plan.overlaps(net(10, 0, 0, 0), 8));
    }
}
