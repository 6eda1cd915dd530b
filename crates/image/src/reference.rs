//! References to images at a registry: `registry.example:5000/team/app:1.2@sha256:…`.

use std::fmt;

const MAX_REFERENCE_BYTES: usize = 512;
const MAX_TAG_BYTES: usize = 128;
const DEFAULT_TAG: &str = "latest";
/// The one registry whose name is not that of the server that answers for it, and whose official
/// images are written without the repository's first part.
const HUB: &str = "docker.io";
const HUB_SERVER: &str = "registry-1.docker.io";
const HUB_OTHER_NAMES: [&str; 2] = ["index.docker.io", HUB_SERVER];
const HUB_OFFICIAL: &str = "library";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Host, with a port where one is given.
    pub registry: String,
    pub repository: String,
    /// Present unless only a digest is given.
    pub tag: Option<String>,
    /// `sha256:…`. What is pulled must have it.
    pub digest: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("'{text}' is not a reference to an image: {reason}")]
    Invalid { text: String, reason: &'static str },
    #[error("'{text}' names no registry, and no default registry is set")]
    NoRegistry { text: String },
}

impl Reference {
    /// `default_registry` goes in front of references that begin with no registry.
    pub fn parse(text: &str, default_registry: Option<&str>) -> Result<Self, ReferenceError> {
        let shown = || text.chars().take(MAX_REFERENCE_BYTES).collect::<String>();
        let invalid = |reason| ReferenceError::Invalid {
            text: shown(),
            reason,
        };
        if text.len() > MAX_REFERENCE_BYTES {
            return Err(invalid("it is too long"));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) if is_digest(digest) => (rest, Some(digest.to_owned())),
            Some(_) => {
                return Err(invalid(
                    "only digests of the form sha256:<64 hex digits> are known",
                ));
            }
            None => (text, None),
        };
        // A colon behind the last slash begins a tag; any other one a port.
        let name_start = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (path, tag) = match rest[name_start..].split_once(':') {
            Some((name, tag)) => (&rest[..name_start + name.len()], Some(tag.to_owned())),
            None => (rest, None),
        };
        if tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid("the tag is malformed"));
        }
        let prefixed;
        let path = match path.split_once('/') {
            Some((host, _)) if is_registry(host) => path,
            _ => {
                let default =
                    default_registry.ok_or_else(|| ReferenceError::NoRegistry { text: shown() })?;
                prefixed = format!("{default}/{path}");
                &prefixed
            }
        };
        let (registry, repository) = path
            .split_once('/')
            .ok_or_else(|| invalid("it names no repository"))?;
        if !registry
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b))
        {
            return Err(invalid("the registry is malformed"));
        }
        if !repository.split('/').all(is_component) {
            return Err(invalid(
                "the repository may have a-z, 0-9 and single separators only",
            ));
        }
        let tag = tag.or_else(|| digest.is_none().then(|| DEFAULT_TAG.to_owned()));
        let mut registry = registry.to_ascii_lowercase();
        if HUB_OTHER_NAMES.contains(&&*registry) {
            registry = HUB.to_owned();
        }
        let repository = match registry == HUB && !repository.contains('/') {
            true => format!("{HUB_OFFICIAL}/{repository}"),
            false => repository.to_owned(),
        };
        Ok(Self {
            registry,
            repository,
            tag,
            digest,
        })
    }

    /// The host, with a port where one is given, that answers for the registry.
    pub(crate) fn server(&self) -> &str {
        match self.registry == HUB {
            true => HUB_SERVER,
            false => &self.registry,
        }
    }

    /// What to ask the registry for.
    pub(crate) fn wanted(&self) -> &str {
        self.digest
            .as_deref()
            .or(self.tag.as_deref())
            .unwrap_or(DEFAULT_TAG)
    }

    /// The names an image pulled by this reference is found by: as asked for, and by its digest.
    pub(crate) fn names(&self, digest: &str) -> Vec<String> {
        let pinned = Self {
            tag: None,
            digest: Some(digest.to_owned()),
            ..self.clone()
        };
        let mut names = vec![self.to_string(), pinned.to_string()];
        names.dedup();
        names
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// A first component is a registry when it cannot be part of a repository's name.
fn is_registry(host: &str) -> bool {
    host.contains(['.', ':']) || host == "localhost"
}

pub(crate) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn is_tag(tag: &str) -> bool {
    let first = tag
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    first
        && tag.len() <= MAX_TAG_BYTES
        && tag
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

fn is_component(part: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    edge(part.bytes().next())
        && edge(part.bytes().last())
        && part
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
        && !part.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn every_part_is_found() {
        let parsed = |text: &str| {
            let r = Reference::parse(text, Some("hub.example/library")).unwrap();
            (
                r.registry,
                r.repository,
                r.tag.unwrap_or_default(),
                r.digest.is_some(),
            )
        };
        let row = |a: &str, b: &str, c: &str, d| (a.to_owned(), b.to_owned(), c.to_owned(), d);
        assert_eq!(
            parsed("r.example/app"),
            row("r.example", "app", "latest", false)
        );
        assert_eq!(
            parsed("R.example:5000/a/b-c_d:V1.2"),
            row("r.example:5000", "a/b-c_d", "V1.2", false)
        );
        assert_eq!(
            parsed("localhost/app:x"),
            row("localhost", "app", "x", false)
        );
        assert_eq!(
            parsed(&format!("r.example/app@{DIGEST}")),
            row("r.example", "app", "", true)
        );
        assert_eq!(
            parsed(&format!("r.example/app:1@{DIGEST}")),
            row("r.example", "app", "1", true)
        );
        assert_eq!(
            parsed("python:3.12"),
            row("hub.example", "library/python", "3.12", false)
        );
        assert_eq!(
            parsed("team/python"),
            row("hub.example", "library/team/python", "latest", false)
        );
    }

    #[test]
    fn the_hubs_images_are_found_by_all_their_usual_names() {
        let whole = "docker.io/library/python:3.12";
        for text in [
            whole,
            "docker.io/python:3.12",
            "index.docker.io/library/python:3.12",
            "registry-1.docker.io/python:3.12",
            "python:3.12",
            "library/python:3.12",
        ] {
            let reference = Reference::parse(text, Some("docker.io")).unwrap();
            assert_eq!(reference.to_string(), whole, "{text}");
            assert_eq!(reference.server(), "registry-1.docker.io", "{text}");
        }
        let of_a_team = Reference::parse("docker.io/team/app", None).unwrap();
        assert_eq!(of_a_team.repository, "team/app");
        let elsewhere = Reference::parse("r.example:5000/python", None).unwrap();
        assert_eq!(
            (elsewhere.server(), &*elsewhere.repository),
            ("r.example:5000", "python")
        );
    }

    #[test]
    fn what_could_leave_the_path_of_a_url_is_refused() {
        for bad in [
            "",
            "r.example/",
            "r.example/../x",
            "r.example/A",
            "r.example/a?b",
            "r.example/a b",
            "r.example/a:",
            "r.example/a:b c",
            "r.example/a@sha256:12",
            "r.example/a@md5:0",
            "r.example//a",
            "r.example/a/.b",
            "u@r.example/a",
            "r.example%2f/a",
            "r.example/a#b",
        ] {
            assert!(
                Reference::parse(bad, Some("d.example")).is_err(),
                "{bad:?} was accepted"
            );
        }
        assert!(matches!(
            Reference::parse("debian", None),
            Err(ReferenceError::NoRegistry { .. })
        ));
    }

    #[test]
    fn a_reference_prints_as_it_parses() {
        let text = format!("r.example:5/a/b:t@{DIGEST}");
        assert_eq!(Reference::parse(&text, None).unwrap().to_string(), text);
    }
}
