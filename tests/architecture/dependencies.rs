//! What may come in from outside: the rules of deny.toml on licences, banned crates and sources, checked
//! against the locked tree without any tool but cargo. `make check` asks cargo-deny as well where it is
//! installed.

use std::path::Path;
use std::process::Command;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

struct Rules {
    licences: Vec<String>,
    banned: Vec<String>,
}

impl Rules {
    /// Each list stands on one line there.
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
        let text = std::fs::read_to_string(path).unwrap();
        let list = |key: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap();
            let words = line.split('"').skip(1).step_by(2);
            words.map(str::to_owned).collect()
        };
        Self {
            licences: list("allow = ["),
            banned: list("deny = ["),
        }
    }

    fn allows(&self, expression: &str) -> bool {
        let spaced = expression
            .replace('/', " OR ")
            .replace('(', " ( ")
            .replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut rest = words.as_slice();
        let said = self.any(&mut rest);
        said == Some(true) && rest.is_empty()
    }

    fn any(&self, words: &mut &[&str]) -> Option<bool> {
        let mut said = self.all(words)?;
        while take(words, "OR") {
            said |= self.all(words)?;
        }
        Some(said)
    }

    fn all(&self, words: &mut &[&str]) -> Option<bool> {
        let mut said = self.one(words)?;
        while take(words, "AND") {
            said &= self.one(words)?;
        }
        Some(said)
    }

    fn one(&self, words: &mut &[&str]) -> Option<bool> {
        if take(words, "(") {
            let said = self.any(words)?;
            return take(words, ")").then_some(said);
        }
        let (first, mut rest) = words.split_first()?;
        let mut licence = (*first).to_owned();
        if take(&mut rest, "WITH") {
            let (exception, after) = rest.split_first()?;
            licence = format!("{licence} WITH {exception}");
            rest = after;
        }
        *words = rest;
        Some(self.licences.contains(&licence))
    }
}

fn take(words: &mut &[&str], word: &str) -> bool {
    match words.split_first() {
        Some((first, rest)) if *first == word => {
            *words = rest;
            true
        }
        _ => false,
    }
}

/// The platform cargo builds for, such as `x86_64-unknown-linux-gnu`.
fn host_platform() -> String {
    let output = Command::new(env!("CARGO")).arg("-vV").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.unwrap().to_owned()
}

#[test]
fn every_dependency_has_an_allowed_licence_and_comes_from_the_registry() {
    let rules = Rules::read();
    // Only what this platform builds: crates of other platforms are never fetched by a build, so asking
    // for them offline would fail on a machine that has built nothing else.
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version=1"])
        .args(["--filter-platform", &host_platform()])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{} packages", packages.len());
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        if rules.banned.iter().any(|banned| banned == name) {
            wrong.push(format!("{name} is banned"));
        }
        // Our own crates have none.
        let Some(source) = package["source"].as_str() else {
            continue;
        };
        if source != REGISTRY {
            wrong.push(format!("{name} comes from {source}"));
        }
        let licence = package["license"].as_str().unwrap_or("no licence");
        if !rules.allows(licence) {
            wrong.push(format!("{name} is under {licence}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What reads untrusted bytes and may not be linked into the privileged process: TLS, HTTP, archives and
/// compression, which the confined programs read.
const NOT_IN_THE_RUNNER: &[&str] = &[
    "async-compression",
    "axum",
    "brotli",
    "bzip2",
    "cove-client",
    "cove-server",
    "flate2",
    "h2",
    "http",
    "http-body",
    "httparse",
    "hyper",
    "hyper-rustls",
    "hyper-util",
    "libz-sys",
    "lz4_flex",
    "lzma-rs",
    "miniz_oxide",
    "native-tls",
    "openssl",
    "reqwest",
    "rustls",
    "rustls-native-certs",
    "rustls-webpki",
    "ruzstd",
    "tar",
    "tokio-native-tls",
    "tokio-rustls",
    "tungstenite",
    "ureq",
    "webpki-roots",
    "xz2",
    "zip",
    "zlib-rs",
    "zstd",
    "zstd-safe",
    "zstd-sys",
];

/// Every crate that is linked into `package` when it is built by itself.
fn linked_into(package: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--package", package])
        .args(["--edges=normal", "--prefix=none", "--format={p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let listed = String::from_utf8(output.stdout).unwrap();
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn what_runs_as_root_links_nothing_that_reads_tls_http_or_archives() {
    for package in [
        "cove-image",
        "cove-engine",
        "cove-seats",
        "cove-isolation-container",
        "cove-isolation-gvisor",
        "cove-isolation-vm",
    ] {
        let names = linked_into(package);
        assert!(
            names.iter().any(|name| name == "cove-confine") && names.len() > 50,
            "{names:?}"
        );
        for name in names {
            let read = NOT_IN_THE_RUNNER.contains(&name.as_str());
            assert!(!read, "{package} depends on {name}");
        }
    }
    // The names are those of today's crates: the confined programs have them.
    for (program, has) in [("cove-fetcher", "rustls"), ("cove-unpack", "flate2")] {
        assert!(linked_into(program).iter().any(|name| name == has));
        assert!(NOT_IN_THE_RUNNER.contains(&has));
    }
}

/// The programs' own halves of these crates are features: what is linked into root's process has none of them,
/// so that it holds neither the gateway's readers of packets nor the decoders of archives.
#[test]
fn what_runs_as_root_holds_the_handles_of_confined_programs_alone() {
    let programs = [
        "cove-fetcher",
        "cove-gateway",
        "cove-parser",
        "cove-terminator",
        "cove-unpack",
    ];
    let features = |package: &str, more: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--locked", "--package", package])
            .args(["--edges=normal,features", "--prefix=none"])
            .args(more)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        String::from_utf8(output.stdout).unwrap()
    };
    let linked = features("cove-engine", &[]);
    for program in programs {
        assert!(linked.contains(&format!("{program} v")), "{linked}");
        let with = format!("{program} feature \"program\"");
        assert!(
            !linked.contains(&with),
            "the engine links the program half of {program}"
        );
    }
    // The name is that of today: the fetcher's program has the gateway's resolver.
    let fetcher = features("cove-fetcher", &[]);
    assert!(
        fetcher.contains("cove-gateway feature \"program\""),
        "{fetcher}"
    );
}

/// The privileged process runs no program that reads what guests or other untrusted sources made.
#[test]
fn the_engine_runs_no_tar() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut left: Vec<_> = [
        "criu",
        "engine",
        "image",
        "isolation",
        "isolation-container",
        "isolation-gvisor",
        "isolation-vm",
        "parser",
        "pool",
        "seats",
        "spawner",
        "supervisor",
        "unpack",
    ]
    .iter()
    .map(|name| crates.join(name).join("src"))
    .collect();
    let mut looked = 0;
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            continue;
        }
        looked += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        for program in ["tar", "gzip", "zstd", "unzip", "cpio"] {
            let run = format!("Command::new(\"{program}\")");
            assert!(!text.contains(&run), "{} runs {program}", path.display());
        }
    }
    assert!(looked > 50, "{looked} files");
}

#[test]
fn licence_expressions_mean_what_they_say() {
    let rules = Rules::read();
    assert!(!rules.banned.is_empty());
    for allowed in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "(MIT OR GPL-3.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(rules.allows(allowed), "{allowed}");
    }
    for refused in [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(GPL-3.0 OR LGPL-2.1) AND MIT",
        "MIT WITH something",
        "MIT OR",
        "(MIT",
        "",
    ] {
        assert!(!rules.allows(refused), "{refused}");
    }
}
