//! The registries that the host's own package managers are set up to use.
//!
//! Read from their configuration each time a policy asks for them: apt's sources, pip's, npm's and
//! cargo's settings. A manager with no setting of its own uses one built into it; pip and npm can
//! be asked for theirs, which takes long and is remembered a while, and cargo leaves its name in
//! its cache.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use cove_model::network::{Cidr, Name, Pattern, PortRange, Rule, Target};

/// Settings longer than this are not settings.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Files looked at in one directory.
const FILES_MAX: usize = 256;
/// How long a package manager may take to tell what it uses, and how long that is believed.
const TOOL: Duration = Duration::from_secs(10);
const TOLD_FOR: Duration = Duration::from_secs(600);
/// How often it is looked at meanwhile.
const TOOL_LOOK: Duration = Duration::from_millis(20);
const TOOL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Where to look.
#[derive(Debug, Clone)]
pub struct PackageHosts {
    /// `/`, but for tests.
    pub root: PathBuf,
    /// The home whose settings count, the operator's; default: root's.
    pub home: Option<PathBuf>,
    /// The user id under which pip and npm may be run to tell what is built into them: one that owns
    /// nothing and that no other server uses. `None`: they are not run.
    pub ask_tools: Option<u32>,
    /// What they reported last.
    pub told: Told,
}

type Told = Arc<Mutex<Option<(Instant, String)>>>;

impl Default for PackageHosts {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            home: Some(PathBuf::from("/root")),
            ask_tools: None,
            told: Told::default(),
        }
    }
}

impl PackageHosts {
    /// May take seconds the first time, when tools are asked.
    pub fn rules(&self) -> Vec<Rule> {
        let mut found = Found::default();
        self.apt(&mut found);
        let own_pip = self.pip(&mut found);
        let own_npm = self.npm(&mut found);
        if let Some(uid) = self.ask_tools
            && !(own_pip && own_npm)
        {
            found.words(&self.tools(uid, own_pip, own_npm));
        }
        self.cargo(&mut found);
        found.rules()
    }

    fn tools(&self, uid: u32, own_pip: bool, own_npm: bool) -> String {
        // Held while they run, so that they run once for all who ask.
        let mut told = self.told.lock();
        if let Some((at, text)) = &*told
            && at.elapsed() < TOLD_FOR
        {
            return text.clone();
        }
        let mut text = String::new();
        if !own_pip {
            text += &ask(uid, "python3", &["-c", PIP_ASK]);
        }
        if !own_npm {
            text += &ask(uid, "npm", &["config", "get", "registry"]);
        }
        *told = Some((Instant::now(), text.clone()));
        text
    }

    fn apt(&self, found: &mut Found) {
        let etc = self.root.join("etc/apt");
        let mut files = files_in(&etc.join("sources.list.d"));
        files.push(etc.join("sources.list"));
        for path in files {
            let kind = path.extension().and_then(|it| it.to_str());
            if matches!(kind, Some("list" | "sources")) {
                found.words(&uncommented(&path));
            }
        }
        let mut files = files_in(&etc.join("apt.conf.d"));
        files.push(etc.join("apt.conf"));
        for path in files {
            for line in uncommented(&path).lines() {
                let line = line.trim();
                if line.starts_with("Acquire::") && line.contains("Proxy") {
                    found.words(line);
                }
            }
        }
    }

    fn pip(&self, found: &mut Found) -> bool {
        let mut files = vec![self.root.join("etc/pip.conf")];
        if let Some(home) = &self.home {
            files.push(home.join(".config/pip/pip.conf"));
            files.push(home.join(".pip/pip.conf"));
        }
        let mut own_index = false;
        for path in files {
            for line in uncommented(&path).lines() {
                let key = line.split(['=', ':']).next().unwrap_or(line).trim();
                own_index |= key == "index-url";
                // Further values of a setting stand on lines of their own.
                found.words(line);
            }
        }
        own_index
    }

    fn npm(&self, found: &mut Found) -> bool {
        let mut files = vec![
            self.root.join("etc/npmrc"),
            self.root.join("usr/etc/npmrc"),
            self.root.join("usr/local/etc/npmrc"),
        ];
        if let Some(home) = &self.home {
            files.push(home.join(".npmrc"));
        }
        let mut own_registry = false;
        for path in files {
            for line in uncommented(&path).lines() {
                let (key, value) = line.split_once('=').unwrap_or((line, ""));
                let key = key.trim();
                own_registry |= key == "registry";
                if key == "registry" || key.ends_with(":registry") || key.ends_with("proxy") {
                    found.words(value);
                }
            }
        }
        own_registry
    }

    fn cargo(&self, found: &mut Found) {
        let Some(home) = &self.home else {
            return;
        };
        let home = home.join(".cargo");
        for name in ["config.toml", "config"] {
            for line in uncommented(&home.join(name)).lines() {
                let key = line.split('=').next().unwrap_or(line).trim();
                let last = key.rsplit('.').next().unwrap_or(key);
                if ["registry", "index", "proxy"].contains(&last) {
                    found.words(line);
                }
            }
        }
        // Caches are named after the registry's host, with a number behind.
        for index in files_in(&home.join("registry/index")) {
            let name = index.file_name().and_then(|it| it.to_str());
            if let Some((host, _)) = name.and_then(|name| name.rsplit_once('-')) {
                found.host(host, None);
            }
            let config = read(&index.join("config.json"));
            found.words(&config.replace(['"', ',', '{', '}'], " "));
        }
    }
}

/// What pip would use by default.
const PIP_ASK: &str = "from pip._internal.models.index import PyPI as p\n\
    print(p.simple_url, 'https://' + p.file_storage_domain)";

fn ask(uid: u32, program: &str, arguments: &[&str]) -> String {
    let asked = Command::new(program)
        .args(arguments)
        .current_dir("/")
        // They need nothing of what the server was given.
        .env_clear()
        .env("PATH", TOOL_PATH)
        .env("HOME", "/nonexistent")
        .uid(uid)
        .gid(uid)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    // A host without that package manager has no registry of it either.
    asked.map_or_else(|_| String::new(), answer_of)
}

/// What it prints fits into a pipe, so it can be read after its end.
fn answer_of(mut child: Child) -> String {
    let deadline = Instant::now() + TOOL;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(TOOL_LOOK),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break false;
            }
        }
    };
    let mut text = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let read = stdout.take(FILE_BYTES_MAX).read_to_end(&mut text);
        if !status || read.is_err() {
            text.clear();
        }
    }
    String::from_utf8_lossy(&text).into_owned() + "\n"
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .take(FILES_MAX)
        .collect()
}

fn read(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() <= FILE_BYTES_MAX => {
            fs::read_to_string(path).unwrap_or_default()
        }
        _ => String::new(),
    }
}

fn uncommented(path: &Path) -> String {
    let text = read(path);
    let kept = text.lines().filter(|line| {
        let line = line.trim_start();
        !line.starts_with(['#', ';']) && !line.starts_with("//")
    });
    kept.collect::<Vec<_>>().join("\n")
}

#[derive(Default)]
struct Found {
    hosts: BTreeSet<(String, Option<u16>)>,
}

impl Found {
    /// Every URL among the words of a text.
    fn words(&mut self, text: &str) {
        let ends = |c: char| c.is_whitespace() || "\"'=;,<>[]".contains(c);
        for word in text.split(ends) {
            // The transport of an index stands before its scheme: sparse+https://
            let word = word.rsplit('+').next().unwrap_or(word);
            let Some((scheme, rest)) = word.split_once("://") else {
                continue;
            };
            if !["http", "https"].contains(&scheme) {
                continue;
            }
            let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
            let authority = authority.rsplit('@').next().unwrap_or(authority);
            match authority.rsplit_once(':') {
                None => self.host(authority, None),
                Some((host, port)) => match port.parse() {
                    Ok(port) => self.host(host, Some(port)),
                    Err(_) => continue,
                },
            }
        }
    }

    fn host(&mut self, host: &str, port: Option<u16>) {
        // The web's ports come together: registries redirect from one to the other.
        let port = port.filter(|port| ![80, 443].contains(port));
        self.hosts.insert((host.to_ascii_lowercase(), port));
    }

    fn rules(self) -> Vec<Rule> {
        let rule = |(host, port): (String, Option<u16>)| {
            let target = match host.parse::<Cidr>() {
                Ok(address) => Target::Addresses(address),
                Err(_) => Target::Name(Pattern::Exact(Name::from_text(&host).ok()?)),
            };
            let ports = port.map(PortRange::single);
            Some(Rule { target, ports })
        };
        self.hosts.into_iter().filter_map(rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn every_package_managers_settings_are_read() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        write(
            at,
            "etc/apt/sources.list",
            "# deb http://old.example/ x\ndeb [signed-by=/a] http://apt1.example/debian stable main\n",
        );
        write(
            at,
            "etc/apt/sources.list.d/a.sources",
            "Types: deb\nURIs: http://apt2.example/debian https://apt3.example:8443/x\n",
        );
        write(
            at,
            "etc/apt/sources.list.d/b.list.off",
            "deb http://off.example/ x\n",
        );
        write(
            at,
            "etc/pip.conf",
            "[global]\nindex-url = https://user:pass@pip1.example/simple\nextra-index-url =\n    https://pip2.example/simple\n",
        );
        write(
            at,
            "home/.npmrc",
            "registry=https://npm1.example/\n@corp:registry=https://npm2.example/x\n//npm1.example/:_authToken=secret\n",
        );
        write(
            at,
            "home/.cargo/config.toml",
            "[source.mirror]\nregistry = \"sparse+https://cargo1.example/index/\"\n",
        );
        write(
            at,
            "home/.cargo/registry/index/cargo2.example-0123456789abcdef/config.json",
            "{\"dl\":\"https://cargo3.example/crates\",\"api\":\"https://cargo4.example\"}",
        );
        let hosts = PackageHosts {
            root: at.to_owned(),
            home: Some(at.join("home")),
            ask_tools: None,
            ..PackageHosts::default()
        };
        let rules: Vec<String> = hosts.rules().iter().map(Rule::to_string).collect();
        let expected = [
            "apt1.example",
            "apt2.example",
            "apt3.example:8443",
            "cargo1.example",
            "cargo2.example",
            "cargo3.example",
            "cargo4.example",
            "npm1.example",
            "npm2.example",
            "pip1.example",
            "pip2.example",
        ];
        assert_eq!(rules, expected);
    }

    #[test]
    fn a_host_without_settings_has_none() {
        let root = tempfile::tempdir().unwrap();
        let hosts = PackageHosts {
            root: root.path().to_owned(),
            home: None,
            ask_tools: None,
            ..PackageHosts::default()
        };
        assert!(hosts.rules().is_empty());
    }
}
