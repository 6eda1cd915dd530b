//! What goes into the default image and how it gets there.

use std::path::Path;

use super::BootstrapError;
use super::sources::Host;
use crate::chain::hex_digest;
use crate::image::OciConfig;

/// What agents and people reach for first. Everything else is one `apt-get install` away.
const PACKAGES: &[&str] = &[
    "ca-certificates",
    "curl",
    "gcc",
    "git",
    "iproute2",
    "less",
    "libc6-dev",
    "make",
    "nano",
    "openssh-client",
    "procps",
    "python3",
    "python3-pip",
    "python3-venv",
    "python-is-python3",
    "sudo",
    "xz-utils",
];

/// Packages a recipe may add.
const MAX_EXTRA: usize = 200;
const MAX_WORD_BYTES: usize = 64;

/// A name, and what goes into the image beyond the default's packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    name: String,
    extra: Vec<String>,
    /// A current Node besides.
    node: bool,
}

/// What code of an agent expects to find, and a font for its figures.
const INTERPRETER: &[&str] = &[
    "fonts-dejavu-core",
    "python3-matplotlib",
    "python3-numpy",
    "python3-pandas",
    "python3-pil",
    "python3-requests",
];

impl Recipe {
    /// The default image.
    pub fn debian() -> Self {
        Self {
            name: super::NAME.to_owned(),
            extra: Vec::new(),
            node: false,
        }
    }

    /// The default image with what the code interpreter is at its best with.
    pub fn code_interpreter() -> Self {
        Self {
            name: INTERPRETER_NAME.to_owned(),
            extra: INTERPRETER.iter().map(|word| (*word).to_owned()).collect(),
            node: true,
        }
    }

    /// The default image and more packages of the host's mirror. The words become file names and
    /// arguments of the build, so they are plain or refused.
    pub fn with(name: &str, extra: &[&str]) -> Result<Self, BootstrapError> {
        let bad = |what, word: &str| BootstrapError::BadRecipe {
            what,
            word: word.to_owned(),
        };
        if !is_plain(name) || name == super::NAME || name == INTERPRETER_NAME {
            return Err(bad("a recipe's name", name));
        }
        if let Some(word) = extra.iter().find(|word| !is_plain(word)) {
            return Err(bad("a package", word));
        }
        if extra.len() > MAX_EXTRA {
            return Err(bad("the length of a recipe", &extra.len().to_string()));
        }
        let mut extra: Vec<String> = extra.iter().map(|word| (*word).to_owned()).collect();
        extra.sort();
        extra.dedup();
        Ok(Self {
            name: name.to_owned(),
            extra,
            node: false,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What every version of this recipe's image on this host is called in the cache.
    pub(super) fn stem(&self, host: &Host, arch: &str) -> String {
        let base = format!("{}-{}-{arch}", host.distribution, host.suite);
        match self.name == super::NAME {
            true => base,
            false => format!("{base}-{}", self.name),
        }
    }
}

/// Lower-case letters, digits, plus, minus and dot, beginning with a letter or digit.
fn is_plain(word: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    word.len() <= MAX_WORD_BYTES
        && word.bytes().next().is_some_and(plain)
        && word
            .bytes()
            .all(|byte| plain(byte) || b"+-.".contains(&byte))
}

const SCRIPT: &str = include_str!("customise.sh");
const NODE_SCRIPT: &str = include_str!("node.sh");
const INTERPRETER_NAME: &str = cove_model::spec::INTERPRETER_IMAGE;

/// Whether the one program is installed that builds images without the host's root. debootstrap, which would unpack
/// packages and run their scripts as root, is not used.
pub(super) fn is_tool_installed() -> bool {
    let places = [
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/usr/local/sbin",
        "/usr/local/bin",
    ];
    places
        .iter()
        .any(|dir| Path::new(dir).join("mmdebstrap").exists())
}

pub(super) fn oci_config() -> OciConfig {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    OciConfig {
        env: vec![variable("PATH", path), variable("LANG", "C.UTF-8")],
        cmd: vec!["bash".to_owned()],
        ..OciConfig::default()
    }
}

/// The shell script that builds `image.tar` in `work`, the build's own directory. Its last lines of
/// output explain a failure; lines that begin with `I: ` tell the stage.
pub(super) fn build_script(
    recipe: &Recipe,
    host: &Host,
    arch: &str,
    proxies: &[String],
    work: &Path,
) -> Script {
    let work_text = quote(&work.to_string_lossy());
    let keyrings: Vec<String> = host
        .keyrings()
        .iter()
        .map(|path| quote(&path.to_string_lossy()))
        .collect();
    let keyrings = keyrings.join(" ");
    let customise =
        format!("sh {work_text}/customise.sh \"$1\" {work_text}/host.sources {keyrings}");
    // Before the tree forgets how to reach the network.
    let customise = match recipe.node {
        true => format!("sh {work_text}/node.sh \"$1\" && {customise}"),
        false => customise,
    };
    let suite = quote(&host.suite);
    let extra = recipe.extra.iter().map(String::as_str);
    let packages: Vec<&str> = PACKAGES.iter().copied().chain(extra).collect();
    let packages = packages.join(",");
    let mut options = String::new();
    let settings = [
        "APT::Install-Recommends \"false\"",
        "Acquire::Languages \"none\"",
    ];
    for setting in settings
        .into_iter()
        .chain(proxies.iter().map(String::as_str))
    {
        options.push_str(&format!(" --aptopt={}", quote(setting)));
    }
    for rule in [
        "path-exclude=/usr/share/man/*",
        "path-exclude=/usr/share/locale/*",
    ] {
        options.push_str(&format!(" --dpkgopt={}", quote(rule)));
    }
    let build = format!(
        "set -eu\n\
         mmdebstrap --mode=unshare --variant=minbase --format=tar --verbose \
         --architectures={arch} --include={packages} --skip=output/dev{options} \
         --customize-hook={hook} {suite} {work_text}/image.tar {work_text}/host.sources\n\
         mkdir {work_text}/dev\n\
         tar --append --file {work_text}/image.tar --directory {work_text} ./dev\n",
        hook = quote(&customise),
    );
    Script {
        build,
        customise: SCRIPT,
        node: recipe.node.then_some(NODE_SCRIPT),
        sources: host.deb822(),
    }
}

/// Hexadecimal digits of a version.
pub(super) const VERSION_LENGTH: usize = 12;

/// Stands for everything that decides what the image holds: a change here or in the host's sources
/// is another image in the cache.
pub(super) fn version(recipe: &Recipe, host: &Host, arch: &str) -> String {
    let script = build_script(recipe, host, arch, &[], Path::new("/"));
    let mut parts = vec![script.build.as_str(), script.customise, &script.sources];
    parts.extend(script.node);
    let all = parts.join("\0");
    hex_digest(all.as_bytes())[..VERSION_LENGTH].to_owned()
}

/// The files of one build.
pub(super) struct Script {
    pub build: String,
    pub customise: &'static str,
    pub node: Option<&'static str>,
    pub sources: String,
}

/// One word for the shell, whatever is in it.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::AptSource;

    #[test]
    fn the_shell_accepts_the_script_whatever_the_paths() {
        let source = AptSource {
            uris: vec!["http://m.example/it's".to_owned()],
            suites: vec!["stable".to_owned()],
            components: vec!["main".to_owned()],
            signed_by: Some("/k/a key'.gpg".to_owned()),
        };
        let host = Host {
            distribution: "debian".to_owned(),
            suite: "stable".to_owned(),
            sources: vec![source],
        };
        let proxies = ["Acquire::http::Proxy \"http://p.example\"".to_owned()];
        let script = build_script(
            &Recipe::with("node", &["nodejs", "libstdc++6"]).unwrap(),
            &host,
            "amd64",
            &proxies,
            Path::new("/tmp/o'dd \"$dir\""),
        );
        let checked = std::process::Command::new("sh")
            .args(["-n", "-c", &script.build])
            .output()
            .unwrap();
        assert!(checked.status.success(), "{}\n{checked:?}", script.build);
    }

    #[test]
    fn another_mirror_is_another_image() {
        let host = |uri: &str| Host {
            distribution: "debian".to_owned(),
            suite: "stable".to_owned(),
            sources: vec![AptSource {
                uris: vec![uri.to_owned()],
                suites: vec!["stable".to_owned()],
                components: vec!["main".to_owned()],
                signed_by: None,
            }],
        };
        assert_eq!(
            version(&Recipe::debian(), &host("http://a.example"), "amd64"),
            version(&Recipe::debian(), &host("http://a.example"), "amd64")
        );
        assert_ne!(
            version(&Recipe::debian(), &host("http://a.example"), "amd64"),
            version(&Recipe::debian(), &host("http://b.example"), "amd64")
        );
        assert_ne!(
            version(&Recipe::debian(), &host("http://a.example"), "amd64"),
            version(&Recipe::debian(), &host("http://a.example"), "arm64")
        );
    }

    #[test]
    fn other_packages_are_another_image_and_odd_words_are_refused() {
        let host = Host {
            distribution: "debian".to_owned(),
            suite: "stable".to_owned(),
            sources: Vec::new(),
        };
        let recipe = |packages: &[&str]| Recipe::with("node", packages).unwrap();
        let version = |recipe: &Recipe| version(recipe, &host, "amd64");
        assert_eq!(
            version(&recipe(&["a", "b"])),
            version(&recipe(&["b", "a", "b"]))
        );
        assert_ne!(version(&recipe(&["a"])), version(&recipe(&["b"])));
        assert_eq!(recipe(&[]).stem(&host, "amd64"), "debian-stable-amd64-node");
        for word in ["", "a b", "--x", "../x", "a,b", "$(x)", "A", "x/y", "-a"] {
            assert!(Recipe::with("node", &[word]).is_err(), "{word}");
            assert!(Recipe::with(word, &[]).is_err(), "{word}");
        }
        assert!(Recipe::with("debian", &["npm"]).is_err());
    }

    #[test]
    fn words_reach_the_shell_as_they_are() {
        let odd = "a b'c\"$(x)`y`\\z\n*";
        let output = std::process::Command::new("sh")
            .args(["-c", &format!("printf %s {}", quote(odd))])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), odd);
    }
}
