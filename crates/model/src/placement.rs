//! Where sandboxes go: what the operator said of each host, and what a sandbox asks of its host.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spec::{SpecError, field_error};

pub use cove_limits::{
    HOST_LABELS_MAX, HOST_TAINTS_MAX, ORG_TOLERATIONS_MAX, PLACEMENT_WORD_MAX,
    SANDBOX_TOLERATIONS_MAX,
};

/// What the operator said of a host. Never what a tenant said.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostTraits {
    /// The failure domain it is in; empty: none was given. Hosts without one share the empty one.
    pub zone: String,
    pub labels: BTreeMap<String, String>,
    /// Only sandboxes that tolerate all of these may come.
    pub taints: BTreeSet<String>,
}

/// A change of a host's traits; what is not named stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraitsChange {
    /// An empty one takes the zone away.
    pub zone: Option<String>,
    /// `None` removes a label.
    pub labels: BTreeMap<String, Option<String>>,
    /// Whether each of these is there.
    pub taints: BTreeMap<String, bool>,
}

/// How hosts of equal fit are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "PlacementStrategy"))]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Evenly, over zones first.
    #[default]
    Spread,
    /// One after the other, so that others stay empty.
    Pack,
}

/// What a sandbox asks of its host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Placement {
    /// Labels that its host must have, with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schemars(extend("maxProperties" = HOST_LABELS_MAX)))]
    pub labels: BTreeMap<String, String>,
    /// Zone that its host must be in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = PLACEMENT_WORD_MAX)))]
    pub zone: Option<String>,
    /// Taints that its host may have. The organisation needs the operator's permission for each.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(
            length(max = SANDBOX_TOLERATIONS_MAX),
            inner(length(min = 1, max = PLACEMENT_WORD_MAX))
        )
    )]
    pub tolerate: BTreeSet<String>,
    /// Which of several fitting hosts it goes to; default: `spread`.
    #[serde(skip_serializing_if = "is_default")]
    pub strategy: Strategy,
}

fn is_default(strategy: &Strategy) -> bool {
    *strategy == Strategy::default()
}

/// One thing that a sandbox asks of its host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    Zone(String),
    Label(String, String),
}

impl Wish {
    pub fn is_met_by(&self, host: &HostTraits) -> bool {
        match self {
            Self::Zone(zone) => host.zone == *zone,
            Self::Label(key, value) => host.labels.get(key) == Some(value),
        }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zone(zone) => write!(f, "zone {zone}"),
            Self::Label(key, value) => write!(f, "label {key}={value}"),
        }
    }
}

impl Placement {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn wishes(&self) -> impl Iterator<Item = Wish> {
        let zone = self.zone.iter().cloned().map(Wish::Zone);
        let labels = self.labels.iter();
        zone.chain(labels.map(|(key, value)| Wish::Label(key.clone(), value.clone())))
    }

    /// A taint of the host that it does not tolerate.
    pub fn kept_off_by<'a>(&self, host: &'a HostTraits) -> Option<&'a str> {
        let mut taints = host.taints.iter().map(String::as_str);
        taints.find(|taint| !self.tolerate.contains(*taint))
    }

    /// What it asks for and none of these hosts has, however much room there is.
    pub fn unmet(&self, hosts: &[HostTraits]) -> Option<String> {
        let nobody = |wish: &Wish| !hosts.iter().any(|host| wish.is_met_by(host));
        if let Some(wish) = self.wishes().find(nobody) {
            return Some(wish.to_string());
        }
        if self.wishes().next().is_none() || hosts.iter().any(|host| self.suits(host)) {
            return None;
        }
        let each: Vec<String> = self.wishes().map(|wish| wish.to_string()).collect();
        Some(format!("all of {}", each.join(", ")))
    }

    /// Whether the host has all that it asks for.
    pub fn suits(&self, host: &HostTraits) -> bool {
        self.wishes().all(|wish| wish.is_met_by(host))
    }

    pub fn check(&self) -> Result<(), SpecError> {
        const LABELS: &str = "placement.labels";
        const TOLERATE: &str = "placement.tolerate";
        at_most(LABELS, self.labels.len(), HOST_LABELS_MAX)?;
        at_most(TOLERATE, self.tolerate.len(), SANDBOX_TOLERATIONS_MAX)?;
        for (key, value) in &self.labels {
            word(LABELS, key)?;
            word(LABELS, value)?;
        }
        if let Some(zone) = &self.zone {
            word("placement.zone", zone)?;
        }
        self.tolerate.iter().try_for_each(|it| word(TOLERATE, it))
    }
}

impl HostTraits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn check(&self) -> Result<(), SpecError> {
        at_most("labels", self.labels.len(), HOST_LABELS_MAX)?;
        at_most("taints", self.taints.len(), HOST_TAINTS_MAX)?;
        if !self.zone.is_empty() {
            word("zone", &self.zone)?;
        }
        for (key, value) in &self.labels {
            word("labels", key)?;
            word("labels", value)?;
        }
        self.taints.iter().try_for_each(|it| word("taints", it))
    }

    /// As it is after a change. It may then have too many of something: see [`HostTraits::check`].
    pub fn changed(mut self, change: &TraitsChange) -> Self {
        if let Some(zone) = &change.zone {
            self.zone.clone_from(zone);
        }
        for (key, value) in &change.labels {
            match value {
                Some(value) => self.labels.insert(key.clone(), value.clone()),
                None => self.labels.remove(key),
            };
        }
        set(&mut self.taints, &change.taints);
        self
    }
}

impl TraitsChange {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Removing what has an impossible name is refused too: it is a mistake.
    pub fn check(&self) -> Result<(), SpecError> {
        if let Some(zone) = self.zone.as_ref().filter(|zone| !zone.is_empty()) {
            word("zone", zone)?;
        }
        at_most("labels", self.labels.len(), 2 * HOST_LABELS_MAX)?;
        for (key, value) in &self.labels {
            word("labels", key)?;
            value.iter().try_for_each(|value| word("labels", value))?;
        }
        at_most("taints", self.taints.len(), 2 * HOST_TAINTS_MAX)?;
        self.taints.keys().try_for_each(|it| word("taints", it))
    }
}

/// For an audit record.
impl fmt::Display for TraitsChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.zone.iter().map(|zone| format!("zone {zone}")));
        parts.extend(self.labels.iter().map(|(key, value)| match value {
            Some(value) => format!("label {key}={value}"),
            None => format!("no label {key}"),
        }));
        parts.extend(self.taints.iter().map(|(taint, there)| match there {
            true => format!("taint {taint}"),
            false => format!("no taint {taint}"),
        }));
        f.write_str(&parts.join(", "))
    }
}

/// Adds what is to be there, and removes what is not.
pub fn set(words: &mut BTreeSet<String>, change: &BTreeMap<String, bool>) {
    for (word, there) in change {
        match there {
            true => words.insert(word.clone()),
            false => words.remove(word),
        };
    }
}

/// The taints that an organisation may tolerate from now on, or not any more.
pub fn check_tolerations(change: &BTreeMap<String, bool>) -> Result<(), SpecError> {
    const FIELD: &str = "tolerations";
    at_most(FIELD, change.len(), 2 * ORG_TOLERATIONS_MAX)?;
    change.keys().try_for_each(|it| word(FIELD, it))
}

fn at_most(field: &'static str, count: usize, most: usize) -> Result<(), SpecError> {
    match count <= most {
        true => Ok(()),
        false => Err(field_error(
            field,
            format!("at most {most} entries, not {count}"),
        )),
    }
}

/// A key or value of a label, a zone, a taint.
fn word(field: &'static str, word: &str) -> Result<(), SpecError> {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"._/-".contains(byte);
    let bytes = word.as_bytes();
    let fits = bytes.len() <= PLACEMENT_WORD_MAX
        && bytes.iter().all(inner)
        && ends(bytes.first())
        && ends(bytes.last());
    if fits {
        return Ok(());
    }
    let shown: String = word.chars().take(PLACEMENT_WORD_MAX).collect();
    Err(field_error(
        field,
        format!(
            "'{}' must be 1 to {PLACEMENT_WORD_MAX} letters, digits, '.', '_', '/' or '-', and begin and end with a letter or digit",
            shown.escape_debug()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_plain_letters_and_a_limit() {
        let longest = "a".repeat(PLACEMENT_WORD_MAX);
        for good in ["a", "eu-1", "h100", "example.com/gpu", "A_b", &longest] {
            word("zone", good).unwrap();
        }
        let too_long = "a".repeat(PLACEMENT_WORD_MAX + 1);
        for bad in ["", "-a", "a-", "a b", "a=b", "ü", "a\n", "a,b", &too_long] {
            assert!(word("zone", bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_change_leaves_alone_what_it_does_not_name() {
        let before = HostTraits {
            zone: "a".into(),
            labels: BTreeMap::from([("gpu".into(), "a100".into()), ("disk".into(), "ssd".into())]),
            taints: BTreeSet::from(["spot".into()]),
        };
        let change = TraitsChange {
            zone: None,
            labels: BTreeMap::from([("gpu".into(), Some("h100".into())), ("disk".into(), None)]),
            taints: BTreeMap::from([("team".into(), true), ("spot".into(), false)]),
        };
        change.check().unwrap();
        assert_eq!(
            change.to_string(),
            "no label disk, label gpu=h100, no taint spot, taint team"
        );
        let after = before.clone().changed(&change);
        assert_eq!(after.zone, "a");
        assert_eq!(
            after.labels,
            BTreeMap::from([("gpu".into(), "h100".into())])
        );
        assert_eq!(after.taints, BTreeSet::from(["team".into()]));
        let away = TraitsChange {
            zone: Some(String::new()),
            ..TraitsChange::default()
        };
        away.check().unwrap();
        assert_eq!(after.changed(&away).zone, "");
        assert_eq!(before.clone().changed(&TraitsChange::default()), before);
    }

    #[test]
    fn a_placement_is_written_short_and_refuses_what_it_does_not_know() {
        assert_eq!(serde_json::to_string(&Placement::default()).unwrap(), "{}");
        let read = serde_json::from_str::<Placement>;
        let text = r#"{"labels":{"gpu":"h100"},"zone":"a","tolerate":["team"],"strategy":"pack"}"#;
        let placement = read(text).unwrap();
        placement.check().unwrap();
        assert_eq!(serde_json::to_string(&placement).unwrap(), text);
        for bad in [r#"{"host":"n1"}"#, r#"{"strategy":"random"}"#] {
            assert!(read(bad).is_err(), "{bad} was accepted");
        }
        for bad in [
            r#"{"labels":{"":"a"}}"#,
            r#"{"labels":{"a":""}}"#,
            r#"{"zone":""}"#,
            r#"{"tolerate":["a b"]}"#,
        ] {
            assert!(read(bad).unwrap().check().is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn what_no_host_has_is_named() {
        let host = |zone: &str, gpu: Option<&str>| HostTraits {
            zone: zone.into(),
            labels: gpu
                .map(|gpu| ("gpu".into(), gpu.into()))
                .into_iter()
                .collect(),
            ..HostTraits::default()
        };
        let hosts = [host("a", Some("h100")), host("b", None)];
        let asked = |zone: Option<&str>, gpu: Option<&str>| {
            let asked = Placement {
                zone: zone.map(Into::into),
                labels: host("", gpu).labels,
                ..Placement::default()
            };
            asked.unmet(&hosts).unwrap_or_default()
        };
        assert_eq!(asked(None, None), "");
        assert_eq!(asked(Some("a"), Some("h100")), "");
        assert_eq!(asked(None, Some("a100")), "label gpu=a100");
        assert_eq!(asked(Some("c"), Some("a100")), "zone c");
        assert_eq!(
            asked(Some("b"), Some("h100")),
            "all of zone b, label gpu=h100"
        );
        assert_eq!(Placement::default().unmet(&[]), None);
    }

    #[test]
    fn taints_keep_off_who_does_not_tolerate_all_of_them() {
        let tolerate = |names: &[&str]| Placement {
            tolerate: names.iter().map(|name| (*name).into()).collect(),
            ..Placement::default()
        };
        let host = HostTraits {
            taints: BTreeSet::from(["one".into(), "two".into()]),
            ..HostTraits::default()
        };
        assert_eq!(tolerate(&[]).kept_off_by(&host), Some("one"));
        assert_eq!(tolerate(&["one"]).kept_off_by(&host), Some("two"));
        assert_eq!(tolerate(&["one", "two", "three"]).kept_off_by(&host), None);
        assert_eq!(tolerate(&[]).kept_off_by(&HostTraits::default()), None);
    }
}
