//! One entry of an allow list: its text is parsed here, and nowhere else.
//!
//! The grammar only ever grows: rows, records and snapshot files hold entries as text, and what one
//! version stored has to be read by the next.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::address::{AddressClass, Cidr, CidrError};
use super::name::{Name, NameError};
use super::{ALLOW_ENTRIES_MAX, ALLOW_ENTRY_BYTES_MAX};
use crate::spec::SpecError;

/// Where an entry for a name leads when it says no port.
pub const DEFAULT_PORTS: [u16; 2] = [80, 443];
pub const PRESET_BYTES_MAX: usize = 32;

/// How much of a refused entry its error quotes.
const SHOWN_CHARS: usize = 80;

/// An entry, parsed. It is stored, sent and shown as the text that it was written as.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Entry {
    kind: EntryKind,
    text: String,
}

/// What an entry allows. Whoever decides by it matches every kind, so that a new kind does not compile
/// until each of them says what it means there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// Names or addresses, and ports of them.
    Rule(Rule),
    /// A named list that the host fills in.
    Preset(String),
}

/// What is allowed, in a form that is decided by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    pub target: Target,
    /// Absent: ports 80 and 443 of a name, every port of an address.
    pub ports: Option<PortRange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    Name(Pattern),
    Addresses(Cidr),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Pattern {
    Exact(Name),
    /// Every name below this one, at any depth.
    Below(Name),
}

/// From the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("it has more than {ALLOW_ENTRY_BYTES_MAX} bytes")]
    Long,
    #[error("{0}")]
    Name(NameError),
    #[error("{0}")]
    Addresses(CidrError),
    #[error("a port is a number from 1 to 65535, or two with a dash between")]
    Port,
    #[error("a preset's name has 1 to {PRESET_BYTES_MAX} lowercase letters, digits or dashes")]
    Preset,
    #[error("sandboxes have no IPv6, so IPv6 addresses cannot be listed")]
    Ipv6,
    #[error("this host, multicast and reserved addresses can never be reached")]
    Never,
    #[error(
        "'*' is allowed only at the start, before a dot, as in *.example.com; to allow everything use mode 'open'"
    )]
    Star,
    #[error("write the host alone, without a scheme or a path")]
    Url,
    #[error(
        "remove terminate: and list the name alone; TLS is terminated only for hosts of secrets the sandbox may use"
    )]
    Terminate,
}

impl Entry {
    /// The entries of an allow list as a caller wrote them; for where requests are decoded.
    pub fn list<T>(texts: T) -> Result<Vec<Self>, SpecError>
    where
        T: IntoIterator<Item: Into<String>, IntoIter: ExactSizeIterator>,
    {
        let texts = texts.into_iter();
        check_length(texts.len())?;
        texts.map(|text| Self::try_from(text.into())).collect()
    }

    pub fn kind(&self) -> &EntryKind {
        &self.kind
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The addresses that it lists, when it lists addresses. What a preset holds is the host's to say.
    pub fn addresses(&self) -> Option<Cidr> {
        match &self.kind {
            EntryKind::Rule(rule) => match rule.target {
                Target::Addresses(block) => Some(block),
                Target::Name(_) => None,
            },
            EntryKind::Preset(_) => None,
        }
    }

    pub fn is_preset(&self) -> bool {
        match self.kind {
            EntryKind::Preset(_) => true,
            EntryKind::Rule(_) => false,
        }
    }
}

pub(super) fn check_length(entries: usize) -> Result<(), SpecError> {
    if entries <= ALLOW_ENTRIES_MAX {
        return Ok(());
    }
    Err(super::refused(&format!(
        "at most {ALLOW_ENTRIES_MAX} entries, not {entries}"
    )))
}

impl Rule {
    /// A rule for one name on the usual ports.
    pub fn exact(name: Name) -> Self {
        Self {
            target: Target::Name(Pattern::Exact(name)),
            ports: None,
        }
    }

    /// Whether this rule says anything about that port.
    pub fn covers_port(&self, port: u16) -> bool {
        match (&self.ports, &self.target) {
            (Some(range), _) => range.contains(port),
            (None, Target::Name(_)) => DEFAULT_PORTS.contains(&port),
            (None, Target::Addresses(_)) => true,
        }
    }

    pub fn allows_name(&self, name: &Name) -> bool {
        matches!(&self.target, Target::Name(pattern) if pattern.matches(name))
    }

    pub fn allows_address(&self, address: Ipv4Addr) -> bool {
        matches!(&self.target, Target::Addresses(block) if block.opens(address))
    }
}

impl Pattern {
    pub fn matches(&self, name: &Name) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Below(suffix) => name.above(suffix).is_some(),
        }
    }
}

impl PortRange {
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    pub fn single(port: u16) -> Self {
        Self {
            first: port,
            last: port,
        }
    }
}

impl FromStr for Entry {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::try_from(text.to_owned())
    }
}

impl TryFrom<String> for Entry {
    type Error = SpecError;
    fn try_from(text: String) -> Result<Self, SpecError> {
        match text.parse() {
            Ok(kind) => Ok(Self { kind, text }),
            Err(error) => {
                let error: EntryError = error;
                let shown: String = text.chars().take(SHOWN_CHARS).collect();
                let shown = shown.escape_debug();
                Err(super::refused(&format!("entry '{shown}': {error}")))
            }
        }
    }
}

impl Serialize for Entry {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for EntryKind {
    type Err = EntryError;
    fn from_str(text: &str) -> Result<Self, EntryError> {
        if text.len() > ALLOW_ENTRY_BYTES_MAX {
            return Err(EntryError::Long);
        }
        let Some(name) = text.strip_prefix("preset:") else {
            return text.parse().map(Self::Rule);
        };
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if (1..=PRESET_BYTES_MAX).contains(&name.len()) && name.bytes().all(known) {
            Ok(Self::Preset(name.to_owned()))
        } else {
            Err(EntryError::Preset)
        }
    }
}

impl FromStr for Rule {
    type Err = EntryError;
    fn from_str(text: &str) -> Result<Self, EntryError> {
        if text.len() > ALLOW_ENTRY_BYTES_MAX {
            return Err(EntryError::Long);
        }
        if text.starts_with("terminate:") {
            return Err(EntryError::Terminate);
        }
        if text.contains("://") {
            return Err(EntryError::Url);
        }
        if text.contains('[') || without_prefix(text).parse::<Ipv6Addr>().is_ok() {
            return Err(EntryError::Ipv6);
        }
        let (host, ports) = match text.rsplit_once(':') {
            Some((host, ports)) => (host, Some(ports.parse()?)),
            None => (text, None),
        };
        let target = if let Some(suffix) = host.strip_prefix("*.") {
            Target::Name(Pattern::Below(name(suffix)?))
        } else if is_address(host) {
            Target::Addresses(addresses(host)?)
        } else if host.contains('/') {
            return Err(EntryError::Url);
        } else {
            Target::Name(Pattern::Exact(name(host)?))
        };
        Ok(Self { target, ports })
    }
}

fn without_prefix(text: &str) -> &str {
    text.split_once('/').map_or(text, |(address, _)| address)
}

/// Anything of digits, dots and one slash is meant as addresses, so that a slip in one is reported as such.
fn is_address(host: &str) -> bool {
    without_prefix(host)
        .bytes()
        .all(|b| b.is_ascii_digit() || b == b'.')
        && !host.is_empty()
}

fn name(text: &str) -> Result<Name, EntryError> {
    if text.contains('*') {
        return Err(EntryError::Star);
    }
    Name::from_text(text).map_err(EntryError::Name)
}

fn addresses(text: &str) -> Result<Cidr, EntryError> {
    let block: Cidr = text.parse().map_err(EntryError::Addresses)?;
    let never = AddressClass::never_blocks();
    if never.iter().any(|never| block.lies_within(*never)) {
        return Err(EntryError::Never);
    }
    Ok(block)
}

impl FromStr for PortRange {
    type Err = EntryError;
    fn from_str(text: &str) -> Result<Self, EntryError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self {
            first: port(first)?,
            last: port(last)?,
        };
        if range.first <= range.last {
            Ok(range)
        } else {
            Err(EntryError::Port)
        }
    }
}

fn port(text: &str) -> Result<u16, EntryError> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    let port = text.parse().ok().filter(|_| plain);
    port.ok_or(EntryError::Port)
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Name(Pattern::Exact(name)) => write!(f, "{name}")?,
            Target::Name(Pattern::Below(name)) => write!(f, "*.{name}")?,
            Target::Addresses(block) => write!(f, "{block}")?,
        }
        match &self.ports {
            Some(ports) => write!(f, ":{ports}"),
            None => Ok(()),
        }
    }
}

/// In one form, whichever of several it was written in.
impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::Preset(name) => write!(f, "preset:{name}"),
        }
    }
}

impl TryFrom<String> for Rule {
    type Error = EntryError;
    fn try_from(text: String) -> Result<Self, EntryError> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> String {
        rule.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().unwrap()
    }

    #[test]
    fn entries_are_written_back_in_one_form() {
        for (given, canonical) in [
            ("Example.com.", "example.com"),
            ("*.Example.com:443", "*.example.com:443"),
            ("example.com:8000-8010", "example.com:8000-8010"),
            ("example.com:22-22", "example.com:22"),
            ("10.1.2.3/32", "10.1.2.3"),
            ("10.0.0.0/8:22", "10.0.0.0/8:22"),
            ("preset:packages", "preset:packages"),
        ] {
            assert_eq!(given.parse::<EntryKind>().unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn an_entry_is_stored_and_shown_as_it_was_written() {
        for text in [
            "Example.com.",
            "B\u{fc}cher.example",
            "*.example.com:443",
            "10.1.2.3/32",
            "10.0.0.0/8:22-22",
            "preset:packages",
        ] {
            let entry: Entry = text.parse().unwrap();
            let stored = serde_json::to_string(&entry).unwrap();
            assert_eq!(stored, serde_json::to_string(text).unwrap());
            assert_eq!(serde_json::from_str::<Entry>(&stored).unwrap(), entry);
            assert_eq!(entry.as_str(), text);
        }
    }

    #[test]
    fn what_is_no_entry_is_decoded_nowhere() {
        let error = serde_json::from_str::<Entry>(r#""exa mple.com""#).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("network.allow: entry 'exa mple.com'"),
            "{message}"
        );
        for other in ["1", "null", r#"{"name":"example.com"}"#, r#"["a.com"]"#] {
            assert!(serde_json::from_str::<Entry>(other).is_err(), "{other}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for bad in [
            "",
            "*",
            "*.",
            "*.*.com",
            "a.*.com",
            "*a.com",
            "example.com:",
            "example.com:0",
            "example.com:65536",
            "example.com:2-1",
            "example.com:+80",
            "example.com:080",
            "https://example.com",
            "example.com/path",
            "preset:",
            "preset:A",
            "preset:a b",
            "::1",
            "fd00::/8",
            "[::1]:80",
            "127.0.0.1",
            "127.0.0.0/8",
            "224.0.0.1",
            "0.0.0.0/8",
            "1.2.3",
            "1.2.3.4/40",
            "user@example.com",
            "a\0b.com",
            "terminate:example.com",
        ] {
            assert!(bad.parse::<EntryKind>().is_err(), "{bad:?} was accepted");
        }
        let error = "terminate:a.com".parse::<EntryKind>().unwrap_err();
        assert_eq!(error, EntryError::Terminate);
    }

    #[test]
    fn names_without_a_port_mean_the_web() {
        assert!(rule("example.com").covers_port(443) && rule("example.com").covers_port(80));
        assert!(!rule("example.com").covers_port(22));
        assert!(rule("example.com:22").covers_port(22) && !rule("example.com:22").covers_port(443));
        assert!(rule("10.0.0.0/8").covers_port(5432));
    }

    #[test]
    fn a_star_stands_for_one_label_or_more() {
        let name = |text| Name::from_text(text).unwrap();
        assert!(rule("*.example.com").allows_name(&name("a.b.example.com")));
        assert!(!rule("*.example.com").allows_name(&name("example.com")));
        assert!(!rule("example.com").allows_name(&name("a.example.com")));
    }

    proptest! {
        #[test]
        fn parsing_what_was_written_gives_the_same_entry(text in "\\PC{0,60}") {
            if let Ok(entry) = text.parse::<EntryKind>() {
                prop_assert_eq!(entry.to_string().parse::<EntryKind>(), Ok(entry));
            }
        }

        #[test]
        fn entries_like_real_ones_survive_too(text in "(\\*\\.)?[a-z0-9-]{1,12}(\\.[a-z0-9]{1,8}){0,3}(/[0-9]{1,2})?(:[0-9]{1,5}(-[0-9]{1,5})?)?") {
            if let Ok(entry) = text.parse::<EntryKind>() {
                prop_assert_eq!(entry.to_string().parse::<EntryKind>(), Ok(entry));
            }
        }
    }
}
