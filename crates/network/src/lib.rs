//! The network of a host's sandboxes, at the level of packets: interfaces, addresses, rules, limits.
//!
//! A sandbox's namespace gets one end of a pair of interfaces. Inside, every sandbox has the same
//! address, so that a memory snapshot restores anywhere; outside, each has one of its own, by which the
//! rules (see `ruleset`) and the gateway know it. Everything goes to the kernel over netlink.
//!
//! Names, TLS and HTTP are not looked at here: resolver and gateway listen where
//! [`Network::set_listeners`] says, and see a sandbox's outer address as their peer.
#![forbid(unsafe_code)]

pub mod abandoned;
mod address;
mod conntrack;
mod denials;
mod inside;
mod link;
pub mod netlink;
mod network;
mod nft;
mod policy;
pub mod probe;
mod ruleset;
mod tap;

pub use address::{Addresses, BadRange, INSIDE, MAC, index_of, interface};
pub use denials::{Denial, Denials};
pub use inside::{is_attached, let_ping, listen, make_local};
pub use link::Counters;
pub use netlink::NetlinkError;
pub use network::{Gate, Network, NetworkConfig, NetworkError, forwards, table_name};
pub use policy::{Flow, Mode, Rules};
pub use ruleset::{CONNECTIONS_MAX, Ports};
pub use tap::TAP;
