//! What a sandbox may reach: the policy as it is asked for, and the grammar of its entries.
//!
//! Entries arrive as text and are parsed where a request is decoded ([`Entry::list`]). From there on they
//! are typed: control, the runner and the engine check the policy ([`NetworkPolicy::check`], and what
//! each of them allows), the host fills in presets, and the result ([`Rule`]s) becomes packet filter
//! elements and what the gateway decides by. On disk and between processes an entry is its text again.
//!
//! ```text
//! example.com            that name, ports 80 and 443
//! example.com:5432       that name, that port only; example.com:8000-8010 a range
//! *.example.com          every name below it, at any depth, but not example.com itself
//! 10.1.0.0/16            those addresses, every port; 10.1.2.3:22 one address, one port
//! preset:packages        a named list that the host fills in
//! ```

use serde::{Deserialize, Serialize};

use crate::spec::SpecError;

pub mod address;
pub mod entry;
pub mod name;

pub use address::{AddressClass, Cidr};
pub use entry::{Entry, EntryError, EntryKind, Pattern, PortRange, Rule, Target};
pub use name::{Name, NameError};

pub use cove_limits::{ALLOW_ENTRIES_MAX, ALLOW_ENTRY_BYTES_MAX, BANDWIDTH_MAX_MBIT};

/// Mode of a network policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Reach"))]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// Loopback only.
    #[default]
    None,
    /// Only what `allow` lists.
    Allowlist,
    /// The internet, but never the host, its neighbours or private ranges.
    Open,
}

/// The policy of one sandbox. `allow` absent and `allow` empty differ: an empty list allows nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkPolicy {
    pub mode: NetworkMode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<Entry>>,
    /// What the sandbox may send, in megabits per second; absent means no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_up_mbit: Option<u32>,
    /// Download limit, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_down_mbit: Option<u32>,
}

impl NetworkPolicy {
    /// Whether this policy can be enforced as it is written.
    pub fn check(&self) -> Result<(), SpecError> {
        for (field, mbit) in [
            ("network.bandwidth_up_mbit", self.bandwidth_up_mbit),
            ("network.bandwidth_down_mbit", self.bandwidth_down_mbit),
        ] {
            if mbit.is_some_and(|mbit| !(1..=BANDWIDTH_MAX_MBIT).contains(&mbit)) {
                let problem = format!("must be between 1 and {BANDWIDTH_MAX_MBIT}");
                return Err(SpecError::Field { field, problem });
            }
        }
        let listed = match (self.mode, &self.allow) {
            (NetworkMode::None, Some(list)) if !list.is_empty() => {
                return Err(refused(
                    "mode 'none' reaches nothing, so nothing can be listed; use mode 'allowlist'",
                ));
            }
            (NetworkMode::Allowlist, None) => {
                return Err(refused(
                    "mode 'allowlist' needs a list; an empty one ([]) allows nothing",
                ));
            }
            (_, None) => return Ok(()),
            (_, Some(list)) => list,
        };
        entry::check_length(listed.len())?;
        let public = |entry: &&Entry| entry.addresses().is_none();
        match listed.iter().find(public) {
            Some(entry) if self.mode == NetworkMode::Open => Err(refused(&format!(
                "entry '{}': mode 'open' reaches every public name already; only private addresses can be added",
                entry.kind()
            ))),
            _ => Ok(()),
        }
    }

    /// The entries of `allow`; none where there is no list.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.allow.iter().flatten()
    }
}

fn refused(problem: &str) -> SpecError {
    SpecError::Field {
        field: "network.allow",
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(mode: NetworkMode, allow: Option<&[&str]>) -> NetworkPolicy {
        NetworkPolicy {
            mode,
            allow: allow.map(|list| list.iter().map(|text| text.parse().unwrap()).collect()),
            ..NetworkPolicy::default()
        }
    }

    #[test]
    fn no_list_and_an_empty_list_differ() {
        assert!(policy(NetworkMode::Allowlist, None).check().is_err());
        policy(NetworkMode::Allowlist, Some(&[])).check().unwrap();
        policy(NetworkMode::Open, None).check().unwrap();
        policy(NetworkMode::None, Some(&[])).check().unwrap();
    }

    #[test]
    fn a_policy_that_is_stored_today_is_read_and_written_back_the_same() {
        // As rows, records and snapshot files of version 0.1 hold them.
        let none: NetworkPolicy = serde_json::from_str(r#"{"mode":"none"}"#).unwrap();
        assert_eq!(none, NetworkPolicy::default());
        let stored = concat!(
            r#"{"mode":"allowlist","allow":["Example.com","*.pypi.org","example.com:8000-8010","#,
            r#""10.1.0.0/16","10.1.2.3/32:22","preset:packages"],"#,
            r#""bandwidth_up_mbit":10,"bandwidth_down_mbit":100}"#
        );
        let policy: NetworkPolicy = serde_json::from_str(stored).unwrap();
        policy.check().unwrap();
        assert_eq!(serde_json::to_string(&policy).unwrap(), stored);
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        assert!(
            policy(NetworkMode::None, Some(&["example.com"]))
                .check()
                .is_err()
        );
        assert!(
            policy(NetworkMode::Open, Some(&["example.com"]))
                .check()
                .is_err()
        );
        assert!(
            policy(NetworkMode::Open, Some(&["preset:github"]))
                .check()
                .is_err()
        );
        policy(NetworkMode::Open, Some(&["10.0.0.0/8"]))
            .check()
            .unwrap();
    }

    #[test]
    fn long_lists_are_refused() {
        let many = vec!["example.com"; ALLOW_ENTRIES_MAX + 1];
        assert!(policy(NetworkMode::Allowlist, Some(&many)).check().is_err());
        assert!(Entry::list(many).is_err());
        let enough = vec!["example.com"; ALLOW_ENTRIES_MAX];
        Entry::list(enough.clone()).unwrap();
        policy(NetworkMode::Allowlist, Some(&enough))
            .check()
            .unwrap();
    }
}
