//! What organisations besides the home one may have the host reach for them.
//!
//! The host stands in networks that are its operator's: private ranges, the cloud's metadata, its own
//! services. Listing an address in a policy opens it, so that only who owns the host may list one of
//! those, but for ranges that the operator opened to everybody.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use cove_model::NetworkPolicy;
use cove_model::network::{AddressClass, Cidr, Entry};

use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;

/// Any will do: nothing is sent.
const REGISTRY_PORT: u16 = 443;
const HINT: &str =
    "the operator can open a range to all organisations with the setting tenant_private_ranges";

impl Control {
    /// Refuses a policy that opens what is the operator's.
    pub(crate) fn check_reach(
        &self,
        principal: &Principal,
        policy: &NetworkPolicy,
    ) -> Result<(), ControlError> {
        if principal.home {
            return Ok(());
        }
        for block in policy.entries().filter_map(Entry::addresses) {
            if !self.is_open_to_tenants(block) {
                return Err(ControlError::new(
                    ErrorCode::Forbidden,
                    format!("the network policy lists {block}, a private range of the operator"),
                )
                .hint(HINT));
            }
        }
        Ok(())
    }

    /// Refuses a registry given as an address that only the host should reach. Names are looked up by the
    /// host, which checks every address it is about to dial: what a name leads to here may be another
    /// address by then, and saying so would tell which names there are on the operator's networks.
    pub(crate) fn check_registry(&self, home: bool, reference: &str) -> Result<(), ControlError> {
        let Some(registry) = registry_of(reference).filter(|_| !home) else {
            return Ok(());
        };
        let host = match registry.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => registry.split(':').next().unwrap_or_default(),
        };
        let address = match host.parse::<IpAddr>() {
            Ok(address) => address.to_canonical(),
            Err(_) if host == "localhost" => IpAddr::from(Ipv4Addr::LOCALHOST),
            Err(_) => return Ok(()),
        };
        let open = match address {
            IpAddr::V4(address) => self.is_open_to_tenants(Cidr::single(address)),
            IpAddr::V6(address) => {
                !(address.is_loopback()
                    || address.is_unspecified()
                    || address.is_unicast_link_local()
                    || address.is_unique_local())
            }
        };
        if open {
            return Ok(());
        }
        Err(ControlError::new(
            ErrorCode::Forbidden,
            format!("the registry {registry} is on a private network of the operator"),
        )
        .hint(HINT))
    }

    fn is_open_to_tenants(&self, block: Cidr) -> bool {
        let listed = &self.config().tenant_private_ranges;
        let mut own = AddressClass::private_blocks()
            .iter()
            .chain(AddressClass::never_blocks())
            .any(|private| block.lies_within(*private));
        // A single address may be the host's, whatever range it is of.
        own |= block.prefix() == 32 && is_this_host(block.base());
        !own || listed.iter().any(|range| block.lies_within(*range))
    }
}

/// The part of a reference that names a registry; without one the operator's default is meant.
pub(crate) fn registry_of(reference: &str) -> Option<&str> {
    let (first, _) = reference.split_once('/')?;
    (first.contains(['.', ':']) || first == "localhost").then_some(first)
}

/// The kernel sends from an address of ours to reach it exactly when it is ours; nothing is sent.
fn is_this_host(address: Ipv4Addr) -> bool {
    let asked = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect((address, REGISTRY_PORT)).map(|()| socket))
        .and_then(|socket| socket.local_addr());
    asked.is_ok_and(|from| from.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_names_a_registry_or_the_default_is_meant() {
        assert_eq!(registry_of("localhost:5000/team/a"), Some("localhost:5000"));
        assert_eq!(registry_of("localhost/a"), Some("localhost"));
        assert_eq!(registry_of("10.0.0.1/a:1"), Some("10.0.0.1"));
        assert_eq!(registry_of("library/python:3"), None);
        assert_eq!(registry_of("python:3"), None);
    }
}
