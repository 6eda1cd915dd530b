//! Named lists of rules: those shipped with the project, those of the operator, and `packages`,
//! which is what the host's own package managers are set up to use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;

use cove_model::NetworkPolicy;
use cove_model::network::{AddressClass, Cidr, Entry, EntryError, EntryKind, Rule, Target};

use super::packages::PackageHosts;
use crate::policy::{Allowed, Policy, RULES_MAX};

const SHIPPED: &str = include_str!("presets.txt");
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The preset that is read from the host.
const PACKAGES: &str = "packages";
/// Behind a preset's name: every organisation may use it, whatever addresses it holds.
const TENANTS: &str = "tenants";
/// Any will do: nothing is sent there.
const ANY_PORT: u16 = 443;

/// For whom a policy is filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The operator's own organisation, which may use every preset.
    Operator,
    /// Everybody else: addresses of the operator's networks only from presets that are marked.
    Tenants,
}

#[derive(Debug, Clone, Default)]
pub struct Presets {
    /// The operator's own, in the form of the shipped one. A list there adds to the one of the same
    /// name. Read whenever a policy is set; absent when the path leads to nothing.
    pub file: Option<PathBuf>,
    pub packages: PackageHosts,
    /// Private ranges that are everybody's to list, so that they need no mark.
    pub tenant_ranges: Vec<Cidr>,
}

#[derive(Debug, thiserror::Error)]
pub enum PresetError {
    #[error("there is no preset '{name}'; there are: {known}")]
    Unknown { name: String, known: String },
    #[error("preset 'packages' is empty: no package manager of this host names a registry")]
    NoPackages,
    #[error("the presets in {path} cannot be read")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the presets in {path} are wrong in line {line}: {problem}")]
    Line {
        path: PathBuf,
        line: usize,
        problem: String,
    },
    #[error(
        "preset '{name}' holds the private range {block}, which is not open to this organisation; the operator can open it by writing [{name} tenants] in the presets file"
    )]
    Private { name: String, block: Cidr },
    #[error("the presets were not read to the end")]
    Ended,
    #[error("the presets hold more than {RULES_MAX} rules together")]
    Many,
}

#[derive(Debug, Default)]
struct Lists {
    rules: BTreeMap<String, Vec<Rule>>,
    for_tenants: BTreeSet<String>,
}

impl Presets {
    /// The policy with every preset replaced by its rules. Reads files, and may ask tools.
    pub fn expand(
        &self,
        policy: &NetworkPolicy,
        audience: Audience,
    ) -> Result<Policy, PresetError> {
        let mut allowed = Vec::new();
        let mut lists = None;
        for entry in policy.entries() {
            let name = match entry.kind() {
                EntryKind::Rule(rule) => {
                    let rule = rule.clone();
                    allowed.push(Allowed { rule, preset: None });
                    continue;
                }
                EntryKind::Preset(name) => name,
            };
            let lists = match &lists {
                Some(lists) => lists,
                None => lists.insert(self.lists()?),
            };
            let mut rules = lists.rules.get(name).cloned().unwrap_or_default();
            if name == PACKAGES {
                rules.extend(self.packages.rules());
                if rules.is_empty() {
                    return Err(PresetError::NoPackages);
                }
            }
            if rules.is_empty() {
                let mut known: Vec<String> = lists.rules.keys().cloned().collect();
                known.push(PACKAGES.to_owned());
                let known = known.join(", ");
                let name = name.clone();
                return Err(PresetError::Unknown { name, known });
            }
            let closed = self.private(&rules);
            if let Some(block) = closed
                && audience == Audience::Tenants
                && !lists.for_tenants.contains(name)
            {
                let name = name.clone();
                return Err(PresetError::Private { name, block });
            }
            allowed.extend(rules.into_iter().map(|rule| Allowed {
                rule,
                preset: Some(name.clone()),
            }));
            if allowed.len() > RULES_MAX {
                return Err(PresetError::Many);
            }
        }
        Ok(Policy {
            mode: policy.mode,
            allowed,
        })
    }

    /// [`Presets::expand`] where a thread must not wait.
    pub async fn expand_async(
        &self,
        policy: &NetworkPolicy,
        audience: Audience,
    ) -> Result<Policy, PresetError> {
        if !policy.entries().any(Entry::is_preset) {
            return self.expand(policy, audience);
        }
        let (presets, policy) = (self.clone(), policy.clone());
        let expanded = tokio::task::spawn_blocking(move || presets.expand(&policy, audience)).await;
        expanded.unwrap_or(Err(PresetError::Ended))
    }

    /// Presets that only the operator's own organisation can use, with an address that is why. Asks no tools,
    /// so that `packages` is not among them.
    pub fn closed_to_tenants(&self) -> Result<Vec<(String, Cidr)>, PresetError> {
        let lists = self.lists()?;
        let unmarked = lists
            .rules
            .into_iter()
            .filter(|(name, _)| !lists.for_tenants.contains(name));
        let closed = unmarked.filter_map(|(name, rules)| Some((name, self.private(&rules)?)));
        Ok(closed.collect())
    }

    /// The first address of the operator's own networks that is not open to everybody.
    fn private(&self, rules: &[Rule]) -> Option<Cidr> {
        rules.iter().find_map(|rule| match rule.target {
            Target::Addresses(block) => {
                let open = self.tenant_ranges.iter();
                let open = open.into_iter().any(|range| block.lies_within(*range));
                (is_operators(block) && !open).then_some(block)
            }
            Target::Name(_) => None,
        })
    }

    fn lists(&self) -> Result<Lists, PresetError> {
        let mut lists = Lists::default();
        read(SHIPPED, &mut lists).expect("the shipped file is tested");
        let Some(path) = &self.file else {
            return Ok(lists);
        };
        let failed = |source| PresetError::File {
            path: path.clone(),
            source,
        };
        let text = match fs::metadata(path) {
            Ok(found) if found.len() > FILE_BYTES_MAX => {
                return Err(failed(io::Error::other("it is too long")));
            }
            Ok(_) => fs::read_to_string(path).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(lists),
            Err(error) => return Err(failed(error)),
        };
        read(&text, &mut lists).map_err(|(line, problem)| PresetError::Line {
            path: path.clone(),
            line,
            problem,
        })?;
        Ok(lists)
    }
}

/// Whether listing a block opens something that is not the internet's: what is never opened is no matter.
pub fn is_operators(block: Cidr) -> bool {
    let private = AddressClass::private_blocks().iter();
    private.into_iter().any(|range| block.lies_within(*range))
        || (block.prefix() == 32 && is_this_host(block.base()))
}

/// The kernel sends from an address of ours to reach it exactly when it is ours; nothing is sent.
fn is_this_host(address: Ipv4Addr) -> bool {
    let asked = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect((address, ANY_PORT)).map(|()| socket))
        .and_then(|socket| socket.local_addr());
    asked.is_ok_and(|from| from.ip() == address)
}

/// A name in brackets, with `tenants` behind it where everybody may use it, then its rules, one on each
/// line; `#` begins a comment.
fn read(text: &str, lists: &mut Lists) -> Result<(), (usize, String)> {
    let mut name: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or(line).trim();
        let wrong = |problem: String| (number + 1, problem);
        if line.is_empty() {
            continue;
        }
        if let Some(header) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            let (header, mark) = match header.split_once(char::is_whitespace) {
                Some((header, mark)) => (header, Some(mark.trim())),
                None => (header, None),
            };
            let entry = format!("preset:{header}").parse::<EntryKind>();
            entry.map_err(|error| wrong(error.to_string()))?;
            match mark {
                None => {}
                Some(TENANTS) => {
                    lists.for_tenants.insert(header.to_owned());
                }
                Some(mark) => {
                    return Err(wrong(format!(
                        "'{mark}' behind the name; only '{TENANTS}' can stand there"
                    )));
                }
            }
            name = Some(header.to_owned());
            continue;
        }
        let Some(name) = &name else {
            return Err(wrong("a rule before the first [name]".into()));
        };
        let rule = line.parse();
        let rule = rule.map_err(|error: EntryError| wrong(error.to_string()))?;
        lists.rules.entry(name.clone()).or_default().push(rule);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cove_model::NetworkMode;

    use super::*;

    fn policy(allow: &[&str]) -> NetworkPolicy {
        NetworkPolicy {
            mode: NetworkMode::Allowlist,
            allow: Some(Entry::list(allow.iter().copied()).unwrap()),
            ..NetworkPolicy::default()
        }
    }

    fn bare() -> Presets {
        Presets {
            file: None,
            packages: PackageHosts {
                root: PathBuf::from("/nonexistent"),
                home: None,
                ask_tools: None,
                ..PackageHosts::default()
            },
            tenant_ranges: Vec::new(),
        }
    }

    #[test]
    fn shipped_presets_are_there() {
        for name in ["github", "anthropic", "openai"] {
            let entry = format!("preset:{name}");
            let policy = bare()
                .expand(&policy(&[&entry]), Audience::Tenants)
                .unwrap();
            assert!(!policy.allowed.is_empty());
            assert!(policy.allowed[0].to_string().starts_with(&entry));
        }
    }

    #[test]
    fn unknown_and_empty_presets_are_told() {
        let error = bare()
            .expand(&policy(&["preset:nope"]), Audience::Tenants)
            .unwrap_err();
        assert!(error.to_string().contains("github"), "{error}");
        let error = bare().expand(&policy(&["preset:packages"]), Audience::Tenants);
        assert!(matches!(error, Err(PresetError::NoPackages)));
    }

    #[test]
    fn the_operators_file_adds_to_the_shipped_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(
            file.path(),
            "# ours\n[github]\ngit.example\n[ours]\n*.corp.example:8443 # x\n",
        )
        .unwrap();
        let presets = Presets {
            file: Some(file.path().to_owned()),
            ..bare()
        };
        let policy = presets
            .expand(
                &policy(&["preset:github", "preset:ours"]),
                Audience::Tenants,
            )
            .unwrap();
        let rules: Vec<String> = policy
            .allowed
            .iter()
            .map(|it| it.rule.to_string())
            .collect();
        assert!(rules.contains(&"git.example".into()) && rules.contains(&"github.com".into()));
        assert!(rules.contains(&"*.corp.example:8443".into()));
    }

    #[test]
    fn a_mistake_in_the_file_is_told_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let presets = Presets {
            file: Some(file.path().to_owned()),
            ..bare()
        };
        for (text, line) in [
            ("x.example\n", 1),
            ("[a]\n\nhttps://x\n", 3),
            ("[A b]\n", 1),
            ("[a]\n[a everybody]\n", 2),
            ("[a tenants operators]\n", 1),
        ] {
            fs::write(file.path(), text).unwrap();
            let error = presets.expand(&policy(&["preset:github"]), Audience::Tenants);
            assert!(
                matches!(error, Err(PresetError::Line { line: told, .. }) if told == line),
                "{text:?}: {error:?}"
            );
        }
    }

    #[test]
    fn private_addresses_are_for_tenants_only_where_the_preset_is_marked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[closed]\ndb.example\n10.20.0.0/16:5432\n[metadata]\n169.254.169.254\n\
                    [open tenants]\n10.20.0.0/16:5432\n[public]\n93.184.216.34\n\
                    [later]\n10.30.0.1\n[later  tenants]\n[listed]\n10.77.1.0/24\n";
        fs::write(file.path(), text).unwrap();
        let presets = Presets {
            file: Some(file.path().to_owned()),
            tenant_ranges: vec!["10.77.0.0/16".parse().unwrap()],
            ..bare()
        };
        for (name, for_tenants) in [
            ("closed", false),
            ("metadata", false),
            ("open", true),
            ("public", true),
            ("later", true),
            ("listed", true),
        ] {
            let policy = policy(&["example.com", &format!("preset:{name}")]);
            presets.expand(&policy, Audience::Operator).unwrap();
            let told = presets.expand(&policy, Audience::Tenants);
            assert_eq!(told.is_ok(), for_tenants, "{name}: {told:?}");
            if let Err(error) = told {
                let wanted = format!("[{name} tenants]");
                assert!(error.to_string().contains(&wanted), "{error}");
            }
        }
        let closed = presets.closed_to_tenants().unwrap();
        let closed: Vec<_> = closed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(closed, ["closed", "metadata"]);
    }
}
