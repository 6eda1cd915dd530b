//! Which isolation tiers there are, and which of them an organisation's sandboxes may have, as the operator decided.
//! Control applies it to requests; the runner applies it again, because control is not trusted with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::OrgId;

/// The isolation tier that runs when none is asked for.
pub const DEFAULT_ISOLATION: &str = "container";
/// Asks for the strongest isolation tier that the host has and that the operator allows.
pub const AUTO_ISOLATION: &str = "auto";
/// The isolation tier whose machines have a kernel of their own.
pub const VM_ISOLATION: &str = "vm";
/// Every isolation tier there is, the strongest first.
pub const ISOLATION_BY_STRENGTH: [&str; 3] = [VM_ISOLATION, "gvisor", "container"];

/// How the instructions of a virtual machine are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    /// By the processor, with hardware virtualisation.
    Kvm,
    /// By QEMU in software: slow, and used only if it is named.
    Software,
}

impl Accel {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Software => "software",
        }
    }

    /// What a tier's report calls it, among the capabilities.
    pub fn capability(self) -> String {
        format!("accel_{}", self.as_str())
    }
}

impl std::str::FromStr for Accel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Kvm, Self::Software];
        let found = all.into_iter().find(|accel| accel.as_str() == text);
        found.ok_or_else(|| format!("'{text}' is neither 'kvm' nor 'software'"))
    }
}

/// The tiers of one organisation, or of all that have no rule of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierRule {
    /// The tier of a sandbox whose request names none, or `auto`.
    pub default: String,
    pub allowed: Vec<String>,
}

impl Default for TierRule {
    fn default() -> Self {
        Self {
            default: DEFAULT_ISOLATION.into(),
            allowed: ISOLATION_BY_STRENGTH.map(str::to_owned).to_vec(),
        }
    }
}

impl TierRule {
    /// Of a list of tiers, the default first. `auto` may be the first entry and is no tier: then the strongest of
    /// the others is the default.
    pub fn of(list: &[impl AsRef<str>]) -> Result<Self, String> {
        let names: Vec<&str> = list.iter().map(AsRef::as_ref).collect();
        let Some((default, rest)) = names.split_first() else {
            return Err("names no tier".into());
        };
        let allowed: &[&str] = match *default == AUTO_ISOLATION {
            true => rest,
            false => &names,
        };
        if allowed.is_empty() {
            return Err(format!("names no tier besides '{AUTO_ISOLATION}'"));
        }
        if let Some(unknown) = allowed
            .iter()
            .find(|name| !ISOLATION_BY_STRENGTH.contains(name))
        {
            let known = ISOLATION_BY_STRENGTH.join(", ");
            return Err(format!("'{unknown}' is not a tier; the tiers are: {known}"));
        }
        Ok(Self {
            default: (*default).to_owned(),
            allowed: allowed.iter().map(|name| (*name).to_owned()).collect(),
        })
    }

    pub fn allows(&self, tier: &str) -> bool {
        self.allowed.iter().any(|name| name == tier)
    }

    /// The tier that is missing for machines by this `accel`. The border of an emulated machine counts as a container's,
    /// so it is for those who may have containers.
    pub fn missing_for(&self, accel: Option<Accel>) -> Option<&'static str> {
        let emulated = accel == Some(Accel::Software);
        (emulated && !self.allows(DEFAULT_ISOLATION)).then_some(DEFAULT_ISOLATION)
    }

    /// The strongest allowed tier among those that a host has.
    pub fn strongest<'a>(&self, of_host: &[&'a str]) -> Option<&'a str> {
        ISOLATION_BY_STRENGTH.into_iter().find_map(|tier| {
            let found = of_host.iter().find(|name| **name == tier);
            found.copied().filter(|_| self.allows(tier))
        })
    }
}

/// What the operator decided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IsolationPolicy {
    pub all: TierRule,
    pub of: BTreeMap<OrgId, TierRule>,
}

impl IsolationPolicy {
    pub fn rule(&self, org: &OrgId) -> &TierRule {
        self.of.get(org).unwrap_or(&self.all)
    }

    /// The rule of an organisation as a runner receives it; one without an id has none of its own.
    pub fn rule_of(&self, org: Option<&str>) -> &TierRule {
        match org.and_then(|org| org.parse().ok()) {
            Some(org) => self.rule(&org),
            None => &self.all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_a_list_with_the_default_first() {
        let rule = TierRule::of(&["gvisor", "container"]).expect("two tiers");
        assert_eq!(rule.default, "gvisor");
        assert_eq!(rule.allowed, ["gvisor", "container"]);
        let rule = TierRule::of(&["auto", "gvisor"]).expect("one tier");
        assert_eq!(
            (rule.default.as_str(), rule.allowed.len()),
            (AUTO_ISOLATION, 1)
        );
        let rule = TierRule::of(&["container", "vm"]).expect("two tiers");
        assert!(rule.allows(VM_ISOLATION));
        assert_eq!(rule.missing_for(Some(Accel::Software)), None);
        let hard = TierRule::of(&["vm", "gvisor"]).expect("two tiers");
        assert_eq!(hard.missing_for(Some(Accel::Kvm)), None);
        assert_eq!(hard.missing_for(Some(Accel::Software)), Some("container"));
        for wrong in [&["auto"][..], &[], &["qemu"], &["container", "auto"]] {
            TierRule::of(wrong).expect_err("not a rule");
        }
    }

    #[test]
    fn the_strongest_tier_is_allowed_and_there() {
        let both = TierRule::of(&["container", "gvisor"]).expect("two tiers");
        assert_eq!(both.strongest(&["container", "gvisor"]), Some("gvisor"));
        assert_eq!(both.strongest(&["container"]), Some("container"));
        assert_eq!(both.strongest(&["vm", "container"]), Some("container"));
        let all = TierRule::default();
        assert_eq!(all.strongest(&["container", "vm", "gvisor"]), Some("vm"));
        let one = TierRule::of(&["gvisor"]).expect("a tier");
        assert_eq!(one.strongest(&["container"]), None);
    }

    #[test]
    fn an_organisation_with_a_rule_of_its_own_goes_by_that_alone() {
        let (one, other) = (OrgId::random(), OrgId::random());
        let policy = IsolationPolicy {
            of: BTreeMap::from([(one.clone(), TierRule::of(&["gvisor"]).expect("a tier"))]),
            ..IsolationPolicy::default()
        };
        assert_eq!(policy.rule(&one).allowed, ["gvisor"]);
        assert_eq!(policy.rule(&other), &TierRule::default());
        assert_eq!(policy.rule_of(Some(one.as_str())).allowed, ["gvisor"]);
        for unknown in [None, Some("nobody")] {
            assert_eq!(policy.rule_of(unknown), &TierRule::default());
        }
    }
}
