//! A policy with its presets filled in, and what it decides.

use std::net::Ipv4Addr;

use cove_model::NetworkMode;
use cove_model::network::{AddressClass, Name, Pattern, Rule, Target};
use serde::{Deserialize, Serialize};

/// More than every preset together has.
pub const RULES_MAX: usize = 4096;

/// What a sandbox may reach, ready to decide by.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Policy {
    pub mode: NetworkMode,
    pub allowed: Vec<Allowed>,
}

/// A rule and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowed {
    pub rule: Rule,
    /// The preset that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
}

/// Why something was not allowed, as the log and the guest see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("the sandbox has no network")]
    NoNetwork,
    #[error("not in the allow list")]
    NotListed,
    #[error("in the allow list, but not on this port")]
    NotThisPort,
    #[error("a private address that no entry of the allow list covers")]
    Private,
    #[error("an address that can never be reached")]
    Never,
}

impl std::fmt::Display for Allowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.preset {
            Some(preset) => write!(f, "preset:{preset} {}", self.rule),
            None => write!(f, "{}", self.rule),
        }
    }
}

/// How a name came to be allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The rule as the log shows it.
    pub rule: String,
    /// Bytes of the name that the guest chose itself, below a `*.` entry.
    pub chosen_bytes: u32,
}

impl Policy {
    /// Whether the resolver may answer for this name, whatever its port.
    pub fn name(&self, name: &Name) -> Result<Grant, Denied> {
        match self.mode {
            NetworkMode::None => Err(Denied::NoNetwork),
            NetworkMode::Open => Ok(Grant {
                rule: "open".to_owned(),
                chosen_bytes: 0,
            }),
            NetworkMode::Allowlist => self.listed(name, |_| true).ok_or(Denied::NotListed),
        }
    }

    /// Whether a connection may be made to this name and port.
    pub fn name_and_port(&self, name: &Name, port: u16) -> Result<Grant, Denied> {
        if self.mode != NetworkMode::Allowlist {
            return Err(Denied::NoNetwork);
        }
        if let Some(grant) = self.listed(name, |rule| rule.covers_port(port)) {
            return Ok(grant);
        }
        match self.listed(name, |_| true) {
            Some(_) => Err(Denied::NotThisPort),
            None => Err(Denied::NotListed),
        }
    }

    /// An exact entry is found before a star, so that it is not charged as a chosen name.
    fn listed(&self, name: &Name, usable: impl Fn(&Rule) -> bool) -> Option<Grant> {
        let mut starred = None;
        for allowed in &self.allowed {
            if !allowed.rule.allows_name(name) || !usable(&allowed.rule) {
                continue;
            }
            match &allowed.rule.target {
                Target::Name(Pattern::Exact(_)) => {
                    return Some(Grant {
                        rule: allowed.to_string(),
                        chosen_bytes: 0,
                    });
                }
                Target::Name(Pattern::Below(suffix)) if starred.is_none() => {
                    let chosen = name.above(suffix).map_or(0, str::len);
                    starred = Some(Grant {
                        rule: allowed.to_string(),
                        chosen_bytes: u32::try_from(chosen).unwrap_or(u32::MAX),
                    });
                }
                _ => {}
            }
        }
        starred
    }

    /// The entry that lists this address and port by themselves.
    pub fn address_and_port(&self, address: Ipv4Addr, port: u16) -> Option<&Allowed> {
        self.allowed
            .iter()
            .find(|allowed| allowed.rule.covers_port(port) && allowed.rule.allows_address(address))
    }

    /// Whether a name may be carried to this address and port: public, or listed with that port. An
    /// entry that opens a private address for one service opens no other service at it.
    pub fn may_carry_to(&self, address: Ipv4Addr, port: u16) -> Result<(), Denied> {
        self.may_lead_to(address)?;
        let private = AddressClass::of(address) == AddressClass::Private;
        if private && self.address_and_port(address, port).is_none() {
            return Err(Denied::Private);
        }
        Ok(())
    }

    /// Whether a name may be answered with this address: public, or listed for any port.
    pub fn may_lead_to(&self, address: Ipv4Addr) -> Result<(), Denied> {
        match AddressClass::of(address) {
            AddressClass::Public => Ok(()),
            AddressClass::Never => Err(Denied::Never),
            AddressClass::Private => self
                .allowed
                .iter()
                .any(|allowed| allowed.rule.allows_address(address))
                .then_some(())
                .ok_or(Denied::Private),
        }
    }

    /// Whether the list names exactly this address; what the host's own addresses need.
    pub fn names_address(&self, address: Ipv4Addr, port: u16) -> bool {
        self.allowed.iter().any(|allowed| {
            allowed.rule.covers_port(port)
                && matches!(&allowed.rule.target,
                    Target::Addresses(block) if block.prefix() == 32 && block.contains(address))
        })
    }

    /// Names that may be reached on this port and have one spelling.
    pub fn exact_names(&self, port: u16) -> impl Iterator<Item = &Name> {
        self.allowed.iter().filter_map(move |allowed| {
            match (&allowed.rule.target, allowed.rule.covers_port(port)) {
                (Target::Name(Pattern::Exact(name)), true) => Some(name),
                _ => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(mode: NetworkMode, rules: &[&str]) -> Policy {
        let allowed = rules.iter().map(|text| Allowed {
            rule: text.parse().unwrap(),
            preset: None,
        });
        Policy {
            mode,
            allowed: allowed.collect(),
        }
    }

    fn name(text: &str) -> Name {
        Name::from_text(text).unwrap()
    }

    #[test]
    fn ports_belong_to_their_entry() {
        let policy = policy(
            NetworkMode::Allowlist,
            &["a.example", "db.example:5432", "*.b.example:443"],
        );
        assert!(policy.name_and_port(&name("a.example"), 443).is_ok());
        assert_eq!(
            policy.name_and_port(&name("a.example"), 22),
            Err(Denied::NotThisPort)
        );
        assert!(policy.name_and_port(&name("db.example"), 5432).is_ok());
        assert_eq!(
            policy.name_and_port(&name("db.example"), 443),
            Err(Denied::NotThisPort)
        );
        assert_eq!(
            policy.name_and_port(&name("x.b.example"), 80),
            Err(Denied::NotThisPort)
        );
        assert_eq!(
            policy.name_and_port(&name("c.example"), 443),
            Err(Denied::NotListed)
        );
    }

    #[test]
    fn an_exact_entry_costs_no_chosen_bytes() {
        let policy = policy(NetworkMode::Allowlist, &["*.example", "a.example"]);
        assert_eq!(policy.name(&name("a.example")).unwrap().chosen_bytes, 0);
        assert_eq!(policy.name(&name("abc.x.example")).unwrap().chosen_bytes, 5);
    }

    #[test]
    fn private_addresses_need_an_entry_of_their_own() {
        let policy = policy(NetworkMode::Allowlist, &["10.1.0.0/16:443", "0.0.0.0/0"]);
        assert!(policy.may_lead_to(Ipv4Addr::new(10, 1, 2, 3)).is_ok());
        assert_eq!(
            policy.may_lead_to(Ipv4Addr::new(10, 2, 2, 3)),
            Err(Denied::Private)
        );
        assert_eq!(policy.may_lead_to(Ipv4Addr::LOCALHOST), Err(Denied::Never));
        assert!(
            policy
                .address_and_port(Ipv4Addr::new(10, 1, 2, 3), 22)
                .is_none()
        );
    }

    #[test]
    fn a_private_address_is_carried_to_on_its_listed_ports_alone() {
        let policy = policy(
            NetworkMode::Allowlist,
            &["partner.example", "10.1.2.3:5432", "10.2.0.0/16"],
        );
        let database = Ipv4Addr::new(10, 1, 2, 3);
        assert!(policy.may_carry_to(database, 5432).is_ok());
        for port in [80, 443] {
            assert_eq!(policy.may_carry_to(database, port), Err(Denied::Private));
        }
        let whole = Ipv4Addr::new(10, 2, 0, 1);
        assert!(policy.may_carry_to(whole, 443).is_ok(), "no port means all");
        let public = Ipv4Addr::new(93, 184, 216, 34);
        assert!(policy.may_carry_to(public, 443).is_ok());
    }

    #[test]
    fn no_network_means_no_names() {
        let none = Policy::default();
        assert_eq!(none.name(&name("a.example")), Err(Denied::NoNetwork));
        let empty = policy(NetworkMode::Allowlist, &[]);
        assert_eq!(empty.name(&name("a.example")), Err(Denied::NotListed));
    }
}
