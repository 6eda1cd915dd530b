//! Named lists of rules: those shipped with the project, those of the operator, and `packages`,
//! which is what the host's own package managers are set up to use.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use cove_model::network::{Entry, EntryError, Rule};
use cove_model::{NetworkPolicy, SpecError};

use super::packages::PackageHosts;
use crate::policy::{Allowed, Policy, RULES_MAX};

const SHIPPED: &str = include_str!("presets.txt");
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The preset that is read from the host.
const PACKAGES: &str = "packages";

#[derive(Debug, Clone, Default)]
pub struct Presets {
    /// The operator's own, in the form of the shipped one. A list there adds to the one of the same
    /// name. Read whenever a policy is set; absent when the path leads to nothing.
    pub file: Option<PathBuf>,
    pub packages: PackageHosts,
}

#[derive(Debug, thiserror::Error)]
pub enum PresetError {
    #[error(transparent)]
    Policy(#[from] SpecError),
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
    #[error("the presets were not read to the end")]
    Ended,
    #[error("the presets hold more than {RULES_MAX} rules together")]
    Many,
}

type Lists = BTreeMap<String, Vec<Rule>>;

impl Presets {
    /// The policy with every preset replaced by its rules. Reads files, and may ask tools.
    pub fn expand(&self, policy: &NetworkPolicy) -> Result<Policy, PresetError> {
        let entries = policy.entries()?;
        let mut allowed = Vec::new();
        let mut lists = None;
        for entry in entries {
            let name = match entry {
                Entry::Rule(rule) => {
                    allowed.push(Allowed { rule, preset: None });
                    continue;
                }
                Entry::Preset(name) => name,
            };
            if lists.is_none() {
                lists = Some(self.lists()?);
            }
            let mut rules = lists
                .as_ref()
                .and_then(|lists| lists.get(&name))
                .cloned()
                .unwrap_or_default();
            if name == PACKAGES {
                rules.extend(self.packages.rules());
                if rules.is_empty() {
                    return Err(PresetError::NoPackages);
                }
            }
            if rules.is_empty() {
                let mut known: Vec<String> = lists.unwrap_or_default().into_keys().collect();
                known.push(PACKAGES.to_owned());
                let known = known.join(", ");
                return Err(PresetError::Unknown { name, known });
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
    pub async fn expand_async(&self, policy: &NetworkPolicy) -> Result<Policy, PresetError> {
        let named = |entry: &String| entry.starts_with("preset:");
        if !policy.allow.iter().flatten().any(named) {
            return self.expand(policy);
        }
        let (presets, policy) = (self.clone(), policy.clone());
        let expanded = tokio::task::spawn_blocking(move || presets.expand(&policy)).await;
        expanded.unwrap_or(Err(PresetError::Ended))
    }

    fn lists(&self) -> Result<Lists, PresetError> {
        let mut lists = Lists::new();
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

/// A name in brackets, then its rules, one on each line; `#` begins a comment.
fn read(text: &str, lists: &mut Lists) -> Result<(), (usize, String)> {
    let mut name: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or(line).trim();
        let wrong = |problem: String| (number + 1, problem);
        if line.is_empty() {
            continue;
        }
        if let Some(header) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            let entry = format!("preset:{header}").parse::<Entry>();
            entry.map_err(|error| wrong(error.to_string()))?;
            name = Some(header.to_owned());
            continue;
        }
        let Some(name) = &name else {
            return Err(wrong("a rule before the first [name]".into()));
        };
        let rule = line.parse();
        let rule = rule.map_err(|error: EntryError| wrong(error.to_string()))?;
        lists.entry(name.clone()).or_default().push(rule);
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
            allow: Some(allow.iter().map(|&text| text.to_owned()).collect()),
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
        }
    }

    #[test]
    fn shipped_presets_are_there() {
        for name in ["github", "anthropic", "openai"] {
            let entry = format!("preset:{name}");
            let policy = bare().expand(&policy(&[&entry])).unwrap();
            assert!(!policy.allowed.is_empty());
            assert!(policy.allowed[0].to_string().starts_with(&entry));
        }
    }

    #[test]
    fn unknown_and_empty_presets_are_told() {
        let error = bare().expand(&policy(&["preset:nope"])).unwrap_err();
        assert!(error.to_string().contains("github"), "{error}");
        let error = bare().expand(&policy(&["preset:packages"]));
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
            .expand(&policy(&["preset:github", "preset:ours"]))
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
        ] {
            fs::write(file.path(), text).unwrap();
            let error = presets.expand(&policy(&["preset:github"]));
            assert!(
                matches!(error, Err(PresetError::Line { line: told, .. }) if told == line),
                "{text:?}: {error:?}"
            );
        }
    }
}
