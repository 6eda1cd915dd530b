//! What the host's package manager is configured with: suite, mirrors, keys.
//!
//! Reads `/etc/os-release` and both formats of apt sources, and keeps the entries that belong to
//! the distribution itself. What vendors add for single programs is left out: their packages have
//! no place in the default image, and neither have their keys.

use std::fs;
use std::path::{Path, PathBuf};

use super::BootstrapError;

/// Suites that belong to a release besides the one named like it.
const SUITE_SUFFIXES: [&str; 3] = ["-updates", "-security", "-backports"];

/// One mirror and what to take from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AptSource {
    pub uris: Vec<String>,
    pub suites: Vec<String>,
    pub components: Vec<String>,
    /// Path of a keyring, fingerprints or a whole key, as in the host's file.
    pub signed_by: Option<String>,
}

pub(super) struct Host {
    /// `debian`, `ubuntu`, …
    pub distribution: String,
    pub suite: String,
    pub sources: Vec<AptSource>,
}

impl Host {
    /// `root` is `/` except in tests.
    pub fn read(root: &Path) -> Result<Self, BootstrapError> {
        let unknown = |reason: String| BootstrapError::UnknownHost { reason };
        let release = fs::read_to_string(root.join("etc/os-release"))
            .map_err(|error| unknown(format!("/etc/os-release: {error}")))?;
        let field = |key: &str| os_release_field(&release, key);
        let distribution =
            field("ID").ok_or_else(|| unknown("/etc/os-release has no ID".to_owned()))?;
        let suite = field("VERSION_CODENAME")
            .ok_or_else(|| unknown("/etc/os-release has no VERSION_CODENAME".to_owned()))?;
        let mut all = Vec::new();
        for path in source_files(root) {
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("sources") => all.extend(parse_deb822(&text)),
                _ => all.extend(text.lines().filter_map(parse_one_line)),
            }
        }
        let sources = of_distribution(all, &suite);
        if sources.is_empty() {
            return Err(BootstrapError::NoSources { suite });
        }
        Ok(Self {
            distribution,
            suite,
            sources,
        })
    }

    /// The sources as they go into the image.
    pub fn deb822(&self) -> String {
        self.sources
            .iter()
            .map(AptSource::deb822)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Keyrings on the host that the image needs too.
    pub fn keyrings(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self
            .sources
            .iter()
            .filter_map(|source| source.signed_by.as_deref())
            .flat_map(|value| value.split([',', ' ']))
            .filter(|word| word.starts_with('/'))
            .map(PathBuf::from)
            .collect();
        paths.sort();
        paths.dedup();
        paths
    }
}

impl AptSource {
    fn deb822(&self) -> String {
        let mut text = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: {}\n",
            self.uris.join(" "),
            self.suites.join(" "),
            self.components.join(" ")
        );
        if let Some(signed_by) = &self.signed_by {
            text.push_str("Signed-By: ");
            // A key given in full goes over several lines, each indented.
            text.push_str(&signed_by.replace('\n', "\n "));
            text.push('\n');
        }
        text
    }

    /// Distributions sign with a keyring of theirs, or one that is trusted without being named.
    fn has_distribution_key(&self) -> bool {
        self.signed_by
            .as_deref()
            .is_none_or(|value| value.contains("-archive-"))
    }
}

fn os_release_field(text: &str, key: &str) -> Option<String> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
    let value = line.trim().trim_matches(['"', '\'']);
    let harmless = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (!value.is_empty() && value.bytes().all(harmless)).then(|| value.to_owned())
}

fn source_files(root: &Path) -> Vec<PathBuf> {
    let mut files = vec![root.join("etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir(root.join("etc/apt/sources.list.d")) {
        files.extend(entries.flatten().map(|entry| entry.path()).filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "list" || extension == "sources")
        }));
    }
    files.sort();
    files
}

/// `deb [signed-by=… arch=…] URI SUITE COMPONENT…`
fn parse_one_line(line: &str) -> Option<AptSource> {
    let line = line.split('#').next()?.trim();
    let mut rest = line
        .strip_prefix("deb")?
        .strip_prefix([' ', '\t'])?
        .trim_start();
    let mut signed_by = None;
    if let Some(inside) = rest.strip_prefix('[') {
        let (options, after) = inside.split_once(']')?;
        for option in options.split_whitespace() {
            if let Some(value) = option.strip_prefix("signed-by=") {
                signed_by = Some(value.to_owned());
            }
        }
        rest = after;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    let (uri, suite) = (words.next()?, words.next()?);
    Some(AptSource {
        uris: vec![uri],
        suites: vec![suite],
        components: words.collect(),
        signed_by,
    })
}

fn parse_deb822(text: &str) -> Vec<AptSource> {
    let mut found = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            found.extend(stanza(&std::mem::take(&mut fields)));
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((key, value)) = line.split_once(':') {
            fields.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    found
}

fn stanza(fields: &[(String, String)]) -> Option<AptSource> {
    let field = |key: &str| {
        fields
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
    };
    let words = |key: &str| -> Vec<String> {
        let value = field(key).map(String::as_str).unwrap_or_default();
        value.split_whitespace().map(str::to_owned).collect()
    };
    let enabled = field("enabled").is_none_or(|value| !value.eq_ignore_ascii_case("no"));
    let (uris, suites) = (words("uris"), words("suites"));
    if !enabled || !words("types").iter().any(|kind| kind == "deb") || uris.is_empty() {
        return None;
    }
    let signed_by = field("signed-by").map(|value| value.trim_start_matches('\n').to_owned());
    Some(AptSource {
        uris,
        suites,
        components: words("components"),
        signed_by,
    })
}

/// The entries of the distribution's own archive for this release.
fn of_distribution(all: Vec<AptSource>, suite: &str) -> Vec<AptSource> {
    let belongs = |name: &str| {
        name.strip_prefix(suite)
            .is_some_and(|rest| rest.is_empty() || SUITE_SUFFIXES.contains(&rest))
    };
    let mut kept: Vec<AptSource> = Vec::new();
    for mut source in all {
        source.suites.retain(|name| belongs(name));
        let has_main = source
            .components
            .iter()
            .any(|component| component == "main");
        // A file: or cdrom: mirror cannot be reached from inside a sandbox.
        source
            .uris
            .retain(|uri| uri.starts_with("http://") || uri.starts_with("https://"));
        if has_main
            && !source.suites.is_empty()
            && !source.uris.is_empty()
            && !kept.contains(&source)
        {
            kept.push(source);
        }
    }
    // A private mirror with a key of its own is fine when it is all there is.
    if kept
        .iter()
        .any(|source| source.has_distribution_key() && source.suites.iter().any(|s| s == suite))
    {
        kept.retain(AptSource::has_distribution_key);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> Result<Host, BootstrapError> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Host::read(root.path())
    }

    const RELEASE: (&str, &str) = (
        "etc/os-release",
        "PRETTY_NAME=\"Debian 12\"\nID=debian\nVERSION_CODENAME=bookworm\n",
    );

    #[test]
    fn both_formats_are_read_and_vendors_left_out() {
        let host = host(&[
            RELEASE,
            (
                "etc/apt/sources.list",
                "# comment\ndeb-src http://m.example/debian bookworm main\n\
                 deb [signed-by=/k/debian-archive-keyring.gpg arch=amd64] http://m.example/debian bookworm main contrib # x\n\
                 deb [signed-by=/k/vendor.gpg] https://v.example/repo bookworm main\n\
                 deb https://d.example/linux bookworm stable\n\
                 deb file:/srv/mirror bookworm main\n",
            ),
            (
                "etc/apt/sources.list.d/debian.sources",
                "Types: deb deb-src\n# note\nURIs: http://s.example/security\nSuites: bookworm-security sid\nComponents: main\n\n\
                 Types: deb\nEnabled: no\nURIs: http://off.example\nSuites: bookworm\nComponents: main\n",
            ),
            ("etc/apt/sources.list.d/old.list.save", "deb http://save.example bookworm main\n"),
        ])
        .unwrap();
        assert_eq!(host.suite, "bookworm");
        let uris: Vec<_> = host
            .sources
            .iter()
            .map(|source| source.uris[0].as_str())
            .collect();
        assert_eq!(
            uris,
            ["http://m.example/debian", "http://s.example/security"]
        );
        assert_eq!(host.sources[0].components, ["main", "contrib"]);
        assert_eq!(host.sources[1].suites, ["bookworm-security"]);
        assert_eq!(
            host.keyrings(),
            [Path::new("/k/debian-archive-keyring.gpg")]
        );
        assert_eq!(host.sources[0].uris, ["http://m.example/debian"]);
        assert_eq!(parse_deb822(&host.deb822()), host.sources);
    }

    #[test]
    fn a_private_mirror_with_its_own_key_is_used_when_it_is_the_only_one() {
        let line = "deb [signed-by=/k/mine.gpg] http://mine.example/debian bookworm main\n";
        let host = host(&[RELEASE, ("etc/apt/sources.list", line)]).unwrap();
        assert_eq!(host.sources.len(), 1);
    }

    #[test]
    fn a_key_given_in_full_survives_being_written_again() {
        let text = "Types: deb\nURIs: http://m.example\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN\n .\n abc\n";
        let parsed = parse_deb822(text);
        assert_eq!(parsed[0].signed_by.as_deref(), Some("-----BEGIN\n.\nabc"));
        assert_eq!(parse_deb822(&parsed[0].deb822()), parsed);
    }

    #[test]
    fn a_host_without_sources_or_release_is_refused() {
        assert!(
            matches!(host(&[RELEASE]), Err(BootstrapError::NoSources { suite }) if suite == "bookworm")
        );
        assert!(matches!(host(&[]), Err(BootstrapError::UnknownHost { .. })));
        let odd = ("etc/os-release", "ID=debian\nVERSION_CODENAME=\"x; rm\"\n");
        assert!(matches!(
            host(&[odd]),
            Err(BootstrapError::UnknownHost { .. })
        ));
    }
}
