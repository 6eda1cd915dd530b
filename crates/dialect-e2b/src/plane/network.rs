//! E2B's words for what a sandbox may reach, as a Cove policy.
//!
//! There a list of refused addresses is checked after a list of allowed names; in use that says one of
//! three things, and those are Cove's modes: everything, nothing, or nothing but a list.

use cove_control::ControlError;
use cove_dialect::network::{cleared, entries};
use cove_model::network::Entry;
use cove_model::{NetworkMode, NetworkPolicy};

use super::shapes::{Network, NetworkShown};
use crate::refusal::Refusal;

/// E2B's spelling of everywhere.
const EVERYWHERE: &str = "0.0.0.0/0";

/// `old` keeps what E2B has no words for.
pub fn policy(
    wanted: Option<&Network>,
    internet: Option<bool>,
    old: Option<&NetworkPolicy>,
) -> Result<NetworkPolicy, Refusal> {
    let empty = Network::default();
    let wanted = wanted.unwrap_or(&empty);
    refuse_the_rest(wanted)?;
    let refused = wanted.deny_out.as_deref().unwrap_or_default();
    let other = refused.iter().find(|entry| cleared(entry) != EVERYWHERE);
    if let Some(other) = other {
        return Err(Refusal::invalid(format!(
            "denyOut '{other}': Cove refuses everything but a list, or nothing; denyOut takes only {EVERYWHERE}"
        )));
    }
    let internet = internet.or(wanted.allow_internet_access).unwrap_or(true);
    let closed = !refused.is_empty() || !internet;
    let allowed = wanted.allow_out.as_deref().unwrap_or_default();
    let (mode, allow) = match (closed, allowed) {
        (true, []) => (NetworkMode::None, None),
        (true, list) => {
            let list = entries(list).map_err(ControlError::from)?;
            (NetworkMode::Allowlist, Some(list))
        }
        (false, []) => (NetworkMode::Open, None),
        (false, _) => {
            return Err(Refusal::invalid(format!(
                "allowOut means something only where the rest is refused: add {EVERYWHERE} to denyOut, or leave allowOut out"
            )));
        }
    };
    Ok(NetworkPolicy {
        mode,
        allow,
        bandwidth_up_mbit: old.and_then(|old| old.bandwidth_up_mbit),
        bandwidth_down_mbit: old.and_then(|old| old.bandwidth_down_mbit),
    })
}

fn refuse_the_rest(wanted: &Network) -> Result<(), Refusal> {
    let asked = [
        (
            wanted.rules.as_ref().is_some_and(|rules| !rules.is_empty()),
            "network.rules",
        ),
        (wanted.egress_proxy.is_some(), "network.egressProxy"),
        (
            wanted.dns_servers.as_ref().is_some_and(|v| !v.is_empty()),
            "network.dnsServers",
        ),
        (
            wanted.mask_request_host.is_some(),
            "network.maskRequestHost",
        ),
        (
            wanted.https_ports.as_ref().is_some_and(|v| !v.is_empty()),
            "network.httpsPorts",
        ),
    ];
    if let Some((_, what)) = asked.iter().find(|(asked, _)| *asked) {
        return Err(Refusal::unsupported(what));
    }
    if wanted.allow_public_traffic == Some(true) {
        return Err(Refusal::unsupported(
            "network.allowPublicTraffic: ports inside are private here until their owner shares them one by one",
        ));
    }
    Ok(())
}

/// The policy in E2B's words.
pub fn shown(policy: &NetworkPolicy) -> NetworkShown {
    let closed = policy.mode != NetworkMode::Open;
    NetworkShown {
        allow_out: policy.entries().map(Entry::to_string).collect(),
        deny_out: match closed {
            true => vec![EVERYWHERE.to_owned()],
            false => Vec::new(),
        },
        allow_public_traffic: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(json: &str) -> Network {
        serde_json::from_str(json).unwrap()
    }

    fn mode(json: &str, internet: Option<bool>) -> Result<NetworkMode, Refusal> {
        policy(Some(&network(json)), internet, None).map(|policy| policy.mode)
    }

    #[test]
    fn the_three_things_that_can_be_said_are_the_three_modes() {
        assert_eq!(mode("{}", None).unwrap(), NetworkMode::Open);
        assert_eq!(mode("{}", Some(false)).unwrap(), NetworkMode::None);
        let nothing = r#"{"denyOut":["0.0.0.0/0"]}"#;
        assert_eq!(mode(nothing, None).unwrap(), NetworkMode::None);
        let list = r#"{"denyOut":["0.0.0.0/0"],"allowOut":["a.example"]}"#;
        assert_eq!(mode(list, None).unwrap(), NetworkMode::Allowlist);
        let list = r#"{"allowOut":["a.example"]}"#;
        assert_eq!(mode(list, Some(false)).unwrap(), NetworkMode::Allowlist);
        let bits = r#"{"denyOut":["0.0.0.0/0"],"allowOut":["203.0.113.9/24"]}"#;
        let policy = policy(Some(&network(bits)), None, None).unwrap();
        assert_eq!(shown(&policy).allow_out, ["203.0.113.0/24"]);
    }

    #[test]
    fn what_would_be_weaker_than_it_says_is_refused() {
        for json in [
            r#"{"allowOut":["a.example"]}"#,
            r#"{"denyOut":["10.0.0.0/8"]}"#,
            r#"{"rules":{"a.example":[]}}"#,
            r#"{"egressProxy":{"address":"a:1"}}"#,
            r#"{"dnsServers":["1.1.1.1"]}"#,
            r#"{"allowPublicTraffic":true}"#,
            r#"{"maskRequestHost":"x"}"#,
            r#"{"httpsPorts":[443]}"#,
        ] {
            assert!(mode(json, None).is_err(), "{json}");
        }
    }
}
